// Turns integer dot products of codes into float32 scores.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// scores = base + step * scales * dots. In double and in this order, so that every target rounds the same way.
void decode(const int32_t* __restrict dots, const float* __restrict scales, int64_t count, double base, double step,
            float* __restrict scores) {
  for (int64_t i = 0; i < count; ++i) scores[i] = (float)(base + step * (double)scales[i] * (double)dots[i]);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
