// Exact dot products of long rows of 8-bit integers with a few queries of 16-bit integers.
#include "kernels/sum_integers.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

// This many products of at most 127 * 16383 add up to less than 2^31. Longer rows are summed in 64 bits, chunk by
// chunk.
constexpr int64_t chunk_length = 1024;

#ifdef __AVX2__
SOFTINDEX_INLINE __m256i load_query(const int16_t* query) { return _mm256_loadu_si256((const __m256i*)query); }

// length is a multiple of the number of lanes.
SOFTINDEX_INLINE int32_t dot_lanes(const int8_t* row, const int16_t* query, int64_t length) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, e = a;
  int64_t j = 0;
  for (; j + 4 * lanes <= length; j += 4 * lanes) {
    a = add_products(a, row + j, load_query(query + j));
    b = add_products(b, row + j + lanes, load_query(query + j + lanes));
    c = add_products(c, row + j + 2 * lanes, load_query(query + j + 2 * lanes));
    e = add_products(e, row + j + 3 * lanes, load_query(query + j + 3 * lanes));
  }
  for (; j < length; j += lanes) a = add_products(a, row + j, load_query(query + j));
  return sum_integers(_mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, e)));
}
#else
SOFTINDEX_INLINE int32_t dot_lanes(const int8_t* row, const int16_t* query, int64_t length) {
  return dot(row, query, length);
}
#endif

}  // namespace

// queries (count, padded(d)), padded with zeros, within -16383 .. 16383; dots (count, stride).
void screen(Matrix<int8_t> rows, const int16_t* queries, int64_t count, int64_t* dots, int64_t stride) {
  const int64_t d = rows.d, width_d = padded(d);
  for (int64_t i = 0; i < rows.count; ++i) {
    const int8_t* row = rows.first + i * d;
    // Reading past the end of a row, up to a full set of lanes, is safe inside the matrix: the query is zero there.
    const bool inside = row + width_d <= rows.limit;
    for (int64_t g = 0; g < count; ++g) {
      const int16_t* query = queries + g * width_d;
      int64_t total = 0;
      for (int64_t begin = 0; begin < d; begin += chunk_length) {
        const int64_t padded_length = width_d - begin < chunk_length ? width_d - begin : chunk_length;
        const int64_t length = d - begin < chunk_length ? d - begin : chunk_length;
        total +=
            inside ? dot_lanes(row + begin, query + begin, padded_length) : dot(row + begin, query + begin, length);
      }
      dots[g * stride + i] = total;
    }
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
