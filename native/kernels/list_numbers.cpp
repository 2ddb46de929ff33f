// The numbers of a query that are not zero.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// Appends `first` + j for all numbers[j] that are not zero to `which`, which has room for `count` and sixteen more.
// Returns what `survey` does, added up in one lane for each of sixteen places.
Survey list_numbers(const float* numbers, int64_t count, int64_t first, int32_t* which) {
  Survey result = {0, 0};
  DoubleLanes squares = {};
  int64_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    const Lanes value = load(numbers + j);
    Lanes square = {};
    add_product(square, value, value);
    unsigned mask = 0;
#if defined(__AVX512F__)
    mask = _mm512_cmp_ps_mask((__m512)value.part[0], _mm512_setzero_ps(), _CMP_NEQ_UQ);
#else
    for (int l = 0; l < lanes; ++l) mask |= (unsigned)(numbers[j + l] != 0.0f) << l;
#endif
    // Zeros often come in runs.
    if (mask == 0) continue;
    float sums[lanes];
    store(sums, square);
    for (int p = 0; p < double_parts; ++p) squares.part[p] += load_doubles(sums + p * double_width);
#if defined(__AVX512F__)
    const __m512i places = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                            _mm512_set1_epi32((int32_t)(first + j)));
    // Compressed in a register: storing a part of a register is slow on some CPUs.
    _mm512_storeu_si512(which + result.numbers, _mm512_maskz_compress_epi32((__mmask16)mask, places));
    result.numbers += __builtin_popcount(mask);
#else
    for (unsigned left = mask; left != 0; left &= left - 1)
      which[result.numbers++] = (int32_t)(first + j + __builtin_ctz(left));
#endif
  }
  result.squares = fold(squares);
  for (; j < count; ++j) {
    result.squares += (double)numbers[j] * (double)numbers[j];
    which[result.numbers] = (int32_t)(first + j);
    result.numbers += numbers[j] != 0.0f;
  }
  return result;
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
