// Keeps the best of the scores it is given.
#include "mixture/selection.h"

#include "base/parallel.h"

namespace softindex {

namespace {

constexpr int64_t many = 4096;  // keys from which counting is faster than a selection of all of them
constexpr int bin_bits = 11;

// Moves the `keep` lowest keys to the front, the highest of them to place keep - 1; the rest follow in any order.
// Counting by the leading bits in which keys differ leaves only those of one bin to compare.
void move_lowest(std::vector<uint64_t>& keys, int64_t keep) {
  if ((int64_t)keys.size() < many) {
    std::nth_element(keys.begin(), keys.begin() + keep - 1, keys.end());
    return;
  }
  const auto [low, high] = std::minmax_element(keys.begin(), keys.end());
  const uint64_t least = *low, range = (*high - least) >> bin_bits;
  const int shift = range == 0 ? 0 : 64 - __builtin_clzll(range);
  std::vector<int64_t> counts((size_t)1 << bin_bits);
  for (uint64_t key : keys) ++counts[(key - least) >> shift];
  int64_t below = 0;
  uint64_t bin = 0;
  for (; below + counts[bin] < keep; ++bin) below += counts[bin];
  std::vector<uint64_t> sorted(keys.size());
  auto front = sorted.begin(), middle = front + below, back = middle + counts[bin];
  for (uint64_t key : keys) {
    const uint64_t own = (key - least) >> shift;
    *(own < bin ? front : own == bin ? middle : back)++ = key;
  }
  std::nth_element(sorted.begin() + below, sorted.begin() + keep - 1, middle);
  keys.swap(sorted);
}

}  // namespace

void Selection::shorten() {
  if ((int64_t)keys_.size() <= keep_) return;
  move_lowest(keys_, keep_);
  keys_.resize(keep_);
  threshold_ = score(keys_[keep_ - 1]);
}

int64_t Selection::write_ranked(int64_t* positions, float* scores) {
  shorten();
  std::sort(keys_.begin(), keys_.end());
  for (size_t i = 0; i < keys_.size(); ++i) {
    positions[i] = position(keys_[i]);
    scores[i] = score(keys_[i]);
  }
  return (int64_t)keys_.size();
}

int64_t Selection::write_sorted(int64_t* positions, int64_t n, std::vector<uint64_t>& marks) {
  shorten();
  const int64_t count = (int64_t)keys_.size(), words = (n + 63) / 64;
  if (words > 16 * count) {
    for (int64_t i = 0; i < count; ++i) positions[i] = position(keys_[i]);
    std::sort(positions, positions + count);
    return count;
  }
  // Many results: setting one bit per item and reading all bits is less work than sorting.
  marks.assign(words, 0);
  for (uint64_t key : keys_) marks[position(key) / 64] |= (uint64_t)1 << position(key) % 64;
  for (int64_t word = 0; word < words; ++word)
    for (uint64_t bits = marks[word]; bits != 0; bits &= bits - 1) *positions++ = word * 64 + __builtin_ctzll(bits);
  return count;
}

void write(std::vector<Selection>& selections, int64_t n, int64_t threads, const Ranking& result) {
  const int64_t count = (int64_t)selections.size(), keep = result.keep;
  // Starting threads takes as long as sorting a few thousand keys.
  parallel(count, count * keep < 1 << 16 ? 1 : threads, [&](const auto& next) {
    std::vector<uint64_t> marks;
    for (int64_t i = next(); i >= 0; i = next()) {
      int64_t *positions = result.positions + i * keep, found;
      if (result.scores != nullptr) {
        float* scores = result.scores + i * keep;
        found = selections[i].write_ranked(positions, scores);
        std::fill(scores + found, scores + keep, no_score);
      } else {
        found = selections[i].write_sorted(positions, n, marks);
      }
      std::fill(positions + found, positions + keep, -1);
    }
  });
}

}  // namespace softindex
