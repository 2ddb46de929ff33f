// Exact dot products of a few queries with rows of 8-bit integers.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

#ifdef __AVX2__
SOFTINDEX_INLINE void dot4(const int8_t* row, int64_t d, const int16_t* query, int64_t width_d, int32_t* dots) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, e = a;
  for (int64_t j = 0; j < width_d; j += lanes) {
    const __m256i lane_values = _mm256_loadu_si256((const __m256i*)(query + j));
    a = add_products(a, row + j, lane_values);
    b = add_products(b, row + d + j, lane_values);
    c = add_products(c, row + 2 * d + j, lane_values);
    e = add_products(e, row + 3 * d + j, lane_values);
  }
  const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, e));
  const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  _mm_storeu_si128((__m128i*)dots, sums);
}
#else
SOFTINDEX_INLINE void dot4(const int8_t* row, int64_t d, const int16_t* query, int64_t width_d, int32_t* dots) {
  for (int r = 0; r < 4; ++r) dots[r] = dot(row + r * d, query, width_d);
}
#endif

}  // namespace

// queries (count, padded(d)), padded with zeros, small enough that no sum overflows 32 bits. dots (count, stride).
void scan_int8(Matrix<int8_t> rows, const int16_t* queries, int64_t count, int32_t* dots, int64_t stride) {
  const int64_t d = rows.d, width_d = padded(d);
  int64_t i = 0;
  // Reading past the end of a row, up to a full set of lanes, is safe inside the matrix: the query is zero there.
  for (; i + 4 <= rows.count && rows.first + (i + 3) * d + width_d <= rows.limit; i += 4) {
    fetch_ahead(rows.first + i * d, 4 * d);
    for (int64_t g = 0; g < count; ++g)
      dot4(rows.first + i * d, d, queries + g * width_d, width_d, dots + g * stride + i);
  }
  for (; i < rows.count; ++i)
    for (int64_t g = 0; g < count; ++g) dots[g * stride + i] = dot(rows.first + i * d, queries + g * width_d, d);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
