// Where keys are in a sorted array: many at a time, so that their reads of memory overlap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace softindex {

// Keys are searched this many at a time.
constexpr int64_t keys_at_a_time = 64;

// How many of count sorted keys are below the wanted one. Nothing is predicted: half of the guesses would be wrong.
template <class Key>
int64_t count_below(const Key* keys, int64_t count, Key wanted) {
  const Key* first = keys;
  while (count > 0) {
    const int64_t half = (count + 1) / 2;
    first += first[half - 1] < wanted ? half : 0;
    count -= half;
  }
  return first - keys;
}

// Sorted keys that somebody else owns, possibly in a mapped file. A few of them are copied and narrow the search to a
// stretch; inside it the place is guessed as if keys were spread evenly, and looked for around the guess.
template <class Key>
class SortedKeys {
 public:
  SortedKeys(const Key* keys, int64_t n) : keys_(keys), n_(n), stretch_(std::max<int64_t>(1, n / most_knots)) {
    for (int64_t i = 0; i < n; i += stretch_) knots_.push_back(keys[i]);
  }

  // ranks (m), m <= keys_at_a_time: the number of keys below each wanted one.
  void find(const Key* wanted, int64_t m, int64_t* ranks) const {
    for (int64_t j = 0; j < m; ++j) {
      ranks[j] = guess(wanted[j]);
      __builtin_prefetch(keys_ + ranks[j]);
    }
    for (int64_t j = 0; j < m; ++j) ranks[j] = settle(wanted[j], ranks[j]);
  }

  bool holds(int64_t rank, Key key) const { return rank < n_ && keys_[rank] == key; }

 private:
  static constexpr int64_t most_knots = 1024;

  int64_t guess(Key wanted) const {
    const int64_t knot = count_below(knots_.data(), (int64_t)knots_.size(), wanted);
    if (knot == 0) return 0;
    const int64_t begin = (knot - 1) * stretch_, end = std::min(begin + stretch_, n_ - 1);
    if (knot == (int64_t)knots_.size()) return end;
    const double low = (double)knots_[knot - 1], part = ((double)wanted - low) / ((double)knots_[knot] - low);
    // Keys that differ may be the same in double: then part is no number, and any guess will do.
    return part >= 0 && part <= 1 ? begin + (int64_t)(part * (double)(end - begin)) : begin;
  }

  // Steps away from the guess that double, then a binary search between the last two.
  int64_t settle(Key wanted, int64_t guess) const {
    int64_t low = guess, high = guess, step = 4;
    if (keys_[guess] < wanted) {
      for (; high < n_ && keys_[high] < wanted; step *= 2) {
        low = high;
        high += step;
      }
    } else {
      for (; low > 0 && !(keys_[low] < wanted); step *= 2) {
        high = low;
        low -= step;
      }
    }
    low = std::max<int64_t>(low, 0);
    return low + count_below(keys_ + low, std::min(high, n_) - low, wanted);
  }

  const Key* keys_;
  int64_t n_, stretch_;
  std::vector<Key> knots_;
};

}  // namespace softindex
