// The sum of squares of a query, in the order that all kernels add them.
#pragma once

#include "base/simd_double.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// Squares are added in float32 for 512 numbers, each in one of two sums of sixteen lanes, and then in double.
class Squares {
 public:
  static constexpr int64_t block = 2 * lanes * lanes;

  SOFTINDEX_INLINE void add(const Lanes& value, int which) { add_product(some_[which], value, value); }
  SOFTINDEX_INLINE void end_block() {
    float sums[lanes];
    store(sums, softindex::SOFTINDEX_TARGET::add(some_[0], some_[1]));
    for (int p = 0; p < double_parts; ++p) all_.part[p] += load_doubles(sums + p * double_width);
    some_[0] = some_[1] = {};
  }
  SOFTINDEX_INLINE double total() const { return fold(all_); }

 private:
  Lanes some_[2] = {};
  DoubleLanes all_ = {};
};

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
