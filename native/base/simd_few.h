// Doubles in registers of four, or two where there are no others: wider ones are converted from float32 at half the
// speed.
#pragma once

#include "base/simd_double.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

constexpr int few = width == 4 ? 2 : 4;

typedef double Few __attribute__((vector_size(few * 8)));
typedef double LooseFew __attribute__((vector_size(few * 8), aligned(8), may_alias));

SOFTINDEX_INLINE Few load_few(const float* from) {
#if defined(__AVX2__)
  return (Few)_mm256_cvtps_pd(_mm_loadu_ps(from));
#else
  Few result;
  for (int l = 0; l < few; ++l) result[l] = (double)from[l];
  return result;
#endif
}

SOFTINDEX_INLINE Few splat_few(double value) {
#if defined(__AVX2__)
  return (Few)_mm256_set1_pd(value);
#else
  Few result;
  for (int l = 0; l < few; ++l) result[l] = value;
  return result;
#endif
}

// sum + a b, as in add_exact_product.
SOFTINDEX_INLINE Few add_few(Few sum, Few a, Few b) {
#if defined(__FMA__)
  return (Few)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)sum);
#else
  return sum + a * b;
#endif
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
