// The largest of many values.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// count >= 1. Returns at least -3e38, also where all values are -infinity: a difference from it is then defined.
float largest(const float* values, int64_t count) {
  float best = -3.0e38f;
  int64_t i = 0;
  if (count >= lanes) {
    Lanes top = load(values);
    for (i = lanes; i + lanes <= count; i += lanes) {
      const Lanes next = load(values + i);
      for (int p = 0; p < parts; ++p) top.part[p] = larger(next.part[p], top.part[p]);
    }
    float spread[lanes];
    store(spread, top);
    for (float value : spread) best = value > best ? value : best;
  }
  for (; i < count; ++i) best = values[i] > best ? values[i] : best;
  return best;
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
