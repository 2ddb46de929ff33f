// Finds the scores of a tile that reach a threshold.
#include "kernels/mixture_tile.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// Bit i is set if score i of the tile is at least the threshold; never for NaN.
uint64_t mixture_threshold_mask(const float* scores, float threshold) {
  uint64_t result = 0;
  for (int i = 0; i < registers; ++i) {
#if defined(__AVX512F__)
    const uint64_t bits = _mm512_cmp_ps_mask(read(scores + i * width), broadcast(threshold), _CMP_GE_OQ);
#elif defined(__AVX2__)
    const __m256 reached = _mm256_cmp_ps(read(scores + i * width), broadcast(threshold), _CMP_GE_OQ);
    const uint64_t bits = (uint64_t)(uint32_t)_mm256_movemask_ps(reached);
#else
    uint64_t bits = 0;
    for (int j = 0; j < width; ++j) bits |= (uint64_t)(scores[i * width + j] >= threshold) << j;
#endif
    result |= bits << (i * width);
  }
  return result;
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
