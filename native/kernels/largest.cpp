// The largest of many values.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

namespace {

SOFTINDEX_INLINE void raise(Lanes& top, const Lanes& values) {
  for (int p = 0; p < parts; ++p) top.part[p] = larger(values.part[p], top.part[p]);
}

}  // namespace

// count >= 1. Returns at least -3e38, also where all values are -infinity: a difference from it is then defined.
float largest(const float* values, int64_t count) {
  float best = -3.0e38f;
  int64_t i = 0;
  if (count >= lanes) {
    // Four running maxima: a single one would have to wait for each comparison.
    Lanes tops[4];
    for (Lanes& top : tops) top = load(values);
    for (i = lanes; i + 4 * lanes <= count; i += 4 * lanes)
      for (int s = 0; s < 4; ++s) raise(tops[s], load(values + i + s * lanes));
    for (; i + lanes <= count; i += lanes) raise(tops[0], load(values + i));
    for (int s = 1; s < 4; ++s) raise(tops[0], tops[s]);
    float spread[lanes];
    store(spread, tops[0]);
    for (float value : spread) best = value > best ? value : best;
  }
  for (; i < count; ++i) best = values[i] > best ? values[i] : best;
  return best;
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
