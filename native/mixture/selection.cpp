// Keeps the best of the scores it is given.
#include "mixture/selection.h"

namespace softindex {

void Selection::shorten() {
  if ((int64_t)keys_.size() <= keep_) return;
  std::nth_element(keys_.begin(), keys_.begin() + keep_ - 1, keys_.end());
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

}  // namespace softindex
