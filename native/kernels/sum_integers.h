// The sum of the eight integers of an AVX2 register.
#pragma once

#include "base/simd.h"
#include "kernels/kernels.h"

#ifdef __AVX2__
namespace softindex {
namespace SOFTINDEX_TARGET {

SOFTINDEX_INLINE int32_t sum_integers(__m256i values) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1));
  return _mm_cvtsi128_si32(half);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
#endif
