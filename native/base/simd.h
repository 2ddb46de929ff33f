// Sixteen float lanes, whatever the register width, so that every target adds in the same order.
//
// A dot product is split over sixteen running sums and folded 16 -> 8 -> 4 -> 2 -> 1. AVX-512 keeps the sums in
// one register, AVX2 in two, SSE and NEON in four: the additions are the same ones, multiplications and additions
// are never contracted, and so a result is the same bit for bit on every CPU.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "base/layout.h"

#define SOFTINDEX_INLINE inline __attribute__((always_inline))

namespace softindex {
namespace SOFTINDEX_TARGET {

#if defined(__AVX512F__)
constexpr int width = 16;
#elif defined(__AVX__)
constexpr int width = 8;
#else
constexpr int width = 4;
#endif

constexpr int parts = lanes / width;

typedef float Vector __attribute__((vector_size(width * 4)));
typedef float LooseVector __attribute__((vector_size(width * 4), aligned(4), may_alias));
typedef int32_t IntVector __attribute__((vector_size(width * 4)));
typedef float Quad __attribute__((vector_size(16)));

struct Lanes {
  Vector part[parts];
};

SOFTINDEX_INLINE Vector splat(float value) { return Vector{} + value; }

SOFTINDEX_INLINE Vector select(IntVector mask, Vector yes, Vector no) {
  return (Vector)((mask & (IntVector)yes) | (~mask & (IntVector)no));
}

// Compilers use the instruction for this only by its name.
SOFTINDEX_INLINE Vector larger(Vector a, Vector b) {
#if defined(__AVX512F__)
  return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vector)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return select(a > b, a, b);
#endif
}

SOFTINDEX_INLINE Lanes load(const float* from) {
  Lanes result;
  for (int p = 0; p < parts; ++p) result.part[p] = *(const LooseVector*)(from + p * width);
  return result;
}

// One register of small integers, widened. Compilers use the instruction for this only by its name.
SOFTINDEX_INLINE IntVector widen(const int16_t* from) {
#if defined(__AVX512F__)
  return (IntVector)_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
  return (IntVector)_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)from));
#else
  IntVector result;
  for (int i = 0; i < width; ++i) result[i] = from[i];
  return result;
#endif
}

SOFTINDEX_INLINE IntVector widen(const int8_t* from) {
#if defined(__AVX512F__)
  return (IntVector)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  return (IntVector)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  IntVector result;
  for (int i = 0; i < width; ++i) result[i] = from[i];
  return result;
#endif
}

// Sixteen small integers as floats; the conversion is exact.
SOFTINDEX_INLINE Lanes load(const int16_t* from) {
  Lanes result;
  for (int p = 0; p < parts; ++p) result.part[p] = __builtin_convertvector(widen(from + p * width), Vector);
  return result;
}

SOFTINDEX_INLINE Lanes load(const int8_t* from) {
  Lanes result;
  for (int p = 0; p < parts; ++p) result.part[p] = __builtin_convertvector(widen(from + p * width), Vector);
  return result;
}

SOFTINDEX_INLINE void store(float* to, const Lanes& from) {
  for (int p = 0; p < parts; ++p) *(LooseVector*)(to + p * width) = from.part[p];
}

SOFTINDEX_INLINE void add_product(Lanes& sum, const Lanes& a, const Lanes& b) {
  for (int p = 0; p < parts; ++p) sum.part[p] += a.part[p] * b.part[p];
}

SOFTINDEX_INLINE Lanes add(const Lanes& a, const Lanes& b) {
  Lanes result;
  for (int p = 0; p < parts; ++p) result.part[p] = a.part[p] + b.part[p];
  return result;
}

// Prefetches the memory 4 KiB after these bytes. The CPU's own prefetching starts anew at every page, and clusters are
// only a few pages long: fetching ahead makes a scan of codes a third faster. Addresses past the end do no harm.
SOFTINDEX_INLINE void fetch_ahead(const void* from, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch((const char*)from + byte + 4096, 0, 3);
}

// Integers add up to the same sum in any order, so each target may add as suits it.
SOFTINDEX_INLINE int32_t dot(const int8_t* __restrict row, const int16_t* __restrict query, int64_t length) {
  int32_t total = 0;
  for (int64_t j = 0; j < length; ++j) total += (int32_t)(int16_t)row[j] * (int32_t)query[j];
  return total;
}

#ifdef __AVX2__
// Sixteen products in two instructions: widen the row to 16 bits, multiply and add neighbours.
SOFTINDEX_INLINE __m256i add_products(__m256i total, const int8_t* row, __m256i query) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)row));
  return _mm256_add_epi32(total, _mm256_madd_epi16(wide, query));
}
#endif

// Fold sixteen lanes to four: lane j of the result is (j + j+8) + (j+4 + j+12).
SOFTINDEX_INLINE Quad fold(const Lanes& value) {
#if defined(__AVX512F__)
  typedef float Octet __attribute__((vector_size(32)));
  const Vector all = value.part[0];
  const Octet half = __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif defined(__AVX__)
  const Vector half = value.part[0] + value.part[1];
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#else
  return (value.part[0] + value.part[2]) + (value.part[1] + value.part[3]);
#endif
}

SOFTINDEX_INLINE float sum(const Lanes& value) {
  const Quad quad = fold(value);
  return (quad[0] + quad[2]) + (quad[1] + quad[3]);
}

// The sums of four values at once: the transposition costs less than four separate folds.
SOFTINDEX_INLINE Quad sum4(const Lanes& a, const Lanes& b, const Lanes& c, const Lanes& d) {
  const Quad qa = fold(a), qb = fold(b), qc = fold(c), qd = fold(d);
  const Quad ab = __builtin_shufflevector(qa, qb, 0, 4, 1, 5) + __builtin_shufflevector(qa, qb, 2, 6, 3, 7);
  const Quad cd = __builtin_shufflevector(qc, qd, 0, 4, 1, 5) + __builtin_shufflevector(qc, qd, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

#if defined(__AVX512F__)
// The sums of sixteen values at once, those of value[r][g] in lane 4 g + r: three instructions fold two registers into
// one, so that a sum takes three of them where sum4 takes six. Additions are those of sum4.
SOFTINDEX_INLINE Vector sum16(const Lanes (&value)[4][4]) {
  Vector row[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    Vector half[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const Vector a = value[r][2 * h].part[0], b = value[r][2 * h + 1].part[0];
      half[h] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    row[r] = __builtin_shufflevector(half[0], half[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
             __builtin_shufflevector(half[0], half[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
  Vector pair[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const Vector a = row[2 * h], b = row[2 * h + 1];
    pair[h] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
              __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  const Vector a = pair[0], b = pair[1];
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
#endif

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
