// Draws one item from weights and their prefix sums.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// uniform in [0, 1). Binary search over blocks, then a linear search within one block. An item of weight zero is never
// picked: a block or an item is chosen only if it raises the running total.
int64_t pick(const float* weights, const double* prefix, int64_t count, double uniform) {
  const int64_t last = blocks(count) - 1;
  const double target = uniform * prefix[last];
  int64_t low = 0, high = last;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (prefix[middle] > target)
      high = middle;
    else
      low = middle + 1;
  }
  // uniform * total may round up to the total itself: step back to the last block of positive weight.
  while (low > 0 && prefix[low] == prefix[low - 1]) --low;
  double running = low > 0 ? prefix[low - 1] : 0.0;
  const int64_t begin = low * block_size, end = begin + block_size < count ? begin + block_size : count;
  int64_t chosen = begin;
  for (int64_t i = begin; i < end; ++i) {
    if (weights[i] == 0.0f) continue;
    chosen = i;
    running += weights[i];
    if (running > target) break;
  }
  return chosen;
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
