// Keeps the best of the scores it is given.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernels.h"
#include "mixture/views.h"

namespace softindex {

// An order of all floats, larger ones first: NaN, in damaged arrays, comes last.
inline bool comes_before(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// The best `keep` scores; ties go to the lower position. Losers are dropped in bulk.
class Selection {
 public:
  // Scores below the threshold are ignored: the caller must know that enough others follow, or check size().
  explicit Selection(int64_t keep, float threshold = std::numeric_limits<float>::lowest())
      : keep_(keep), threshold_(threshold) {}

  // Offers the first `count` scores of a tile, of items first, first + 1, ... NaN and -infinity are never kept.
  void offer(const Kernels& kernels, const float* scores, int64_t count, int64_t first) {
    offer_each(kernels, scores, count, [&](int64_t i) { return first + i; });
  }
  // The same, of the items at these positions.
  void offer(const Kernels& kernels, const float* scores, int64_t count, const int64_t* positions) {
    offer_each(kernels, scores, count, [&](int64_t i) { return positions[i]; });
  }
  void merge(const Selection& other) { keys_.insert(keys_.end(), other.keys_.begin(), other.keys_.end()); }
  // The lowest of the best `keep` scores; the caller knows that there were as many.
  float least() {
    shorten();
    return (int64_t)keys_.size() < keep_ ? std::numeric_limits<float>::lowest()
                                         : score(*std::max_element(keys_.begin(), keys_.end()));
  }
  int64_t size() const { return std::min(keep_, (int64_t)keys_.size()); }

  // Writes the results, best first, and returns their number.
  int64_t write_ranked(int64_t* positions, float* scores);

  // Writes the positions, all below n, in increasing order, and returns their number. marks: scratch memory.
  int64_t write_sorted(int64_t* positions, int64_t n, std::vector<uint64_t>& marks);

 private:
  // One integer that sorts as the pair (score, position) does, larger scores first. Comparing one integer halves the
  // work of a selection.
  static uint64_t make_key(float score, int64_t position) {
    uint32_t bits;
    score += 0.0f;  // makes -0 and 0 the same
    std::memcpy(&bits, &score, sizeof(bits));
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)~bits << 32 | (uint64_t)position;
  }
  template <class Position>
  void offer_each(const Kernels& kernels, const float* scores, int64_t count, const Position& position_of) {
    uint64_t candidates = kernels.mixture_threshold_mask(scores, threshold_);
    if (count < 64) candidates &= ((uint64_t)1 << count) - 1;
    for (; candidates != 0; candidates &= candidates - 1) {
      const int64_t i = __builtin_ctzll(candidates);
      keys_.push_back(make_key(scores[i], position_of(i)));
    }
    if ((int64_t)keys_.size() >= 2 * keep_ + 64) shorten();
  }
  static int64_t position(uint64_t key) { return (int64_t)(uint32_t)key; }
  static float score(uint64_t key) {
    uint32_t bits = ~(uint32_t)(key >> 32);
    bits = bits >> 31 ? bits & 0x7FFFFFFFu : ~bits;
    float result;
    std::memcpy(&result, &bits, sizeof(bits));
    return result;
  }
  void shorten();

  int64_t keep_;
  float threshold_;
  std::vector<uint64_t> keys_;
};

// Writes one row of results for each selection: best first, or by position if no scores are wanted. n: number of items.
void write(std::vector<Selection>& selections, int64_t n, int64_t threads, const Ranking& result);

}  // namespace softindex
