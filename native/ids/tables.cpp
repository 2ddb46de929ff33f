// Positions of ids: integers by their sorted values, strings by their sorted keyed hashes.
#include "ids/tables.h"

#include <stdexcept>

namespace softindex {
namespace {

// A longer id is refused when an index is built.
constexpr int64_t longest = 1 << 24;

int64_t checked(int64_t position, int64_t n) {
  if (position < 0 || position >= n) throw std::runtime_error("an id points to no item");
  return position;
}

}  // namespace

int64_t IntegerTable::find(const int64_t* wanted, int64_t m, int64_t* found) const {
  int64_t ranks[keys_at_a_time];
  for (int64_t from = 0; from < m; from += keys_at_a_time) {
    const int64_t count = std::min(keys_at_a_time, m - from);
    keys_.find(wanted + from, count, ranks);
    for (int64_t j = 0; j < count; ++j)
      if (keys_.holds(ranks[j], wanted[from + j])) __builtin_prefetch(positions_.at(ranks[j]));
    for (int64_t j = 0; j < count; ++j)
      found[from + j] = keys_.holds(ranks[j], wanted[from + j]) ? checked(positions_[ranks[j]], n_) : not_there;
  }
  return std::count(found, found + m, not_there);
}

Text Strings::at(int64_t position) const {
  const int64_t begin = position == 0 ? 0 : ends[position - 1], end = ends[position];
  if (begin < 0 || end < begin || end > length || end - begin > longest) throw std::runtime_error("an id is not text");
  return {text + begin, end - begin};
}

int64_t StringTable::find(const Text* wanted, int64_t m, int64_t* found) const {
  for (int64_t from = 0; from < m; from += keys_at_a_time)
    find_some(wanted + from, std::min(keys_at_a_time, m - from), found + from);
  return std::count(found, found + m, not_there);
}

// In rounds, each of which fetches what the next one reads: hashes, positions, ends, text.
void StringTable::find_some(const Text* wanted, int64_t m, int64_t* found) const {
  uint64_t hashes[keys_at_a_time];
  int64_t ranks[keys_at_a_time];
  Text texts[keys_at_a_time];
  for (int64_t j = 0; j < m; ++j) hashes[j] = keyed_hash(key_, wanted[j].bytes, wanted[j].size);
  hashes_.find(hashes, m, ranks);
  for (int64_t j = 0; j < m; ++j) {
    found[j] = hashes_.holds(ranks[j], hashes[j]) ? 0 : not_there;
    if (found[j] != not_there) __builtin_prefetch(positions_.at(ranks[j]));
  }
  for (int64_t j = 0; j < m; ++j) {
    if (found[j] == not_there) continue;
    found[j] = checked(positions_[ranks[j]], strings_.n);
    __builtin_prefetch(strings_.ends + found[j]);
  }
  for (int64_t j = 0; j < m; ++j) {
    if (found[j] == not_there) continue;
    texts[j] = strings_.at(found[j]);
    __builtin_prefetch(texts[j].bytes);
  }
  const auto same = [](const Text& a, const Text& b) {
    return a.size == b.size && std::memcmp(a.bytes, b.bytes, (size_t)a.size) == 0;
  };
  for (int64_t j = 0; j < m; ++j) {
    // Two ids may share a hash: walk the run of equal ones.
    while (found[j] != not_there && !same(wanted[j], texts[j])) {
      found[j] = hashes_.holds(++ranks[j], hashes[j]) ? checked(positions_[ranks[j]], strings_.n) : not_there;
      if (found[j] != not_there) texts[j] = strings_.at(found[j]);
    }
  }
}

}  // namespace softindex
