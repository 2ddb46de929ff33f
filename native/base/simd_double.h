// Sixteen lanes in double, whatever the register width: see simd.h.
#pragma once

#include "base/simd.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

constexpr int double_width = width / 2;
constexpr int double_parts = lanes / double_width;

typedef double Doubles __attribute__((vector_size(width * 4)));
typedef double LooseDoubles __attribute__((vector_size(width * 4), aligned(8), may_alias));
typedef float LooseHalf __attribute__((vector_size(width * 2), aligned(4), may_alias));
typedef int64_t DoubleBits __attribute__((vector_size(width * 4)));

SOFTINDEX_INLINE Doubles load_doubles(const double* from) { return *(const LooseDoubles*)from; }
SOFTINDEX_INLINE Doubles load_doubles(const float* from) {
  return __builtin_convertvector(*(const LooseHalf*)from, Doubles);
}
SOFTINDEX_INLINE void store_doubles(double* to, Doubles from) { *(LooseDoubles*)to = from; }

struct DoubleLanes {
  Doubles part[double_parts];
};

SOFTINDEX_INLINE DoubleLanes load_double_lanes(const double* from) {
  DoubleLanes result;
  for (int p = 0; p < double_parts; ++p) result.part[p] = load_doubles(from + p * double_width);
  return result;
}

SOFTINDEX_INLINE void store_double_lanes(double* to, const DoubleLanes& from) {
  for (int p = 0; p < double_parts; ++p) store_doubles(to + p * double_width, from.part[p]);
}

// sum + a b for numbers that were float32: the product is exact in double, so rounding once or twice is the same.
SOFTINDEX_INLINE Doubles add_exact_product(Doubles sum, Doubles a, Doubles b) {
#if defined(__AVX512F__)
  return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)sum);
#elif defined(__FMA__)
  return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)sum);
#else
  return sum + a * b;
#endif
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
