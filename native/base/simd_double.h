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
// Compilers use the instruction for this only by its name.
SOFTINDEX_INLINE Doubles load_doubles(const float* from) {
#if defined(__AVX512F__)
  return (Doubles)_mm512_cvtps_pd(_mm256_loadu_ps(from));
#elif defined(__AVX2__)
  return (Doubles)_mm256_cvtps_pd(_mm_loadu_ps(from));
#else
  return __builtin_convertvector(*(const LooseHalf*)from, Doubles);
#endif
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

// 16 -> 8 -> 4 -> 2 -> 1, whatever the width of a register.
SOFTINDEX_INLINE double fold(const DoubleLanes& value) {
  Doubles four[4 / double_width > 0 ? 4 / double_width : 1];
#if defined(__AVX512F__)
  const Doubles all = value.part[0] + value.part[1];
  four[0] = all + __builtin_shufflevector(all, all, 4, 5, 6, 7, 0, 1, 2, 3);
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
#elif defined(__AVX__)
  four[0] = (value.part[0] + value.part[2]) + (value.part[1] + value.part[3]);
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
#else
  for (int p = 0; p < 2; ++p) four[p] = (value.part[p] + value.part[p + 4]) + (value.part[p + 2] + value.part[p + 6]);
  const Doubles two = four[0] + four[1];
  return two[0] + two[1];
#endif
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
