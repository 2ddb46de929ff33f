// The numbers of a query that are not zero.
#include "base/simd_squares.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

// One bit for each of sixteen numbers that is not zero.
SOFTINDEX_INLINE unsigned not_zero(const float* numbers) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(_mm512_loadu_ps(numbers), _mm512_setzero_ps(), _CMP_NEQ_UQ);
#elif defined(__AVX2__)
  const __m256 zero = _mm256_setzero_ps();
  return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(numbers), zero, _CMP_NEQ_UQ)) |
         (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(numbers + 8), zero, _CMP_NEQ_UQ)) << 8;
#else
  unsigned mask = 0;
  for (int l = 0; l < lanes; ++l) mask |= (unsigned)(numbers[l] != 0.0f) << l;
  return mask;
#endif
}

// Writes `first` + l for every bit l of the mask, and returns their number.
SOFTINDEX_INLINE int64_t write_places(unsigned mask, int32_t first, int32_t* which) {
#if defined(__AVX512F__)
  const __m512i places = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                          _mm512_set1_epi32(first));
  // Compressed in a register: storing a part of a register is slow on some CPUs.
  _mm512_storeu_si512(which, _mm512_maskz_compress_epi32((__mmask16)mask, places));
  return __builtin_popcount(mask);
#else
  int64_t count = 0;
  for (; mask != 0; mask &= mask - 1) which[count++] = first + __builtin_ctz(mask);
  return count;
#endif
}

}  // namespace

// Writes `first` + j for all numbers[j] that are not zero to `which`, which has room for `count` and sixteen more.
// Returns what `survey` does.
Survey list_numbers(const float* numbers, int64_t count, int64_t first, int32_t* which) {
  Squares squares;
  int64_t found = 0;
  const int64_t whole = count / lanes * lanes;
  for (int64_t begin = 0; begin < whole; begin += Squares::block) {
    const int64_t end = begin + Squares::block < whole ? begin + Squares::block : whole;
    for (int64_t j = begin; j < end; j += 2 * lanes)
      for (int s = 0; s < 2 && j + s * lanes < end; ++s) {
        const int64_t here = j + s * lanes;
        squares.add(load(numbers + here), s);
        found += write_places(not_zero(numbers + here), (int32_t)(first + here), which + found);
      }
    squares.end_block();
  }
  Survey result = {squares.total(), found};
  for (int64_t j = whole; j < count; ++j) {
    result.squares += (double)numbers[j] * (double)numbers[j];
    which[result.numbers] = (int32_t)(first + j);
    result.numbers += numbers[j] != 0.0f;
  }
  return result;
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
