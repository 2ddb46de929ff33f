// Integer dot products of long rows in eight and in four bits with a few queries: exact, so that only what the integers
// stand for is rounded.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

// So many products of 127 times 16383 at most add up to less than 2^31; longer rows are summed in 64 bits, part by
// part.
constexpr int64_t part_length = 1024;

#ifdef __AVX2__
SOFTINDEX_INLINE int32_t add_up(__m256i values) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1));
  return _mm_cvtsi128_si32(half);
}

SOFTINDEX_INLINE __m256i load_query(const int16_t* query) { return _mm256_loadu_si256((const __m256i*)query); }

// length is a whole number of lanes.
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
  return add_up(_mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, e)));
}

// 64 products of nibbles, 0 .. 15, with bytes, in pairs: no sum of four of them leaves 16 bits.
SOFTINDEX_INLINE __m256i nibble_products(const uint8_t* row, const int8_t* query) {
  const __m256i mask = _mm256_set1_epi8(15), both = _mm256_loadu_si256((const __m256i*)row);
  const __m256i low = _mm256_and_si256(both, mask), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
  const __m256i first = _mm256_maddubs_epi16(low, _mm256_loadu_si256((const __m256i*)query));
  const __m256i second = _mm256_maddubs_epi16(high, _mm256_loadu_si256((const __m256i*)(query + 32)));
  return _mm256_add_epi16(first, second);
}

SOFTINDEX_INLINE int64_t nibble_dot(const uint8_t* row, const int8_t* query, int64_t chunks) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i total = _mm256_setzero_si256(), other = total;
  int64_t c = 0;
  // 15 * 127 * 2 products * 2 halves * 4 = 30480: four sums fit into 16 bits before they must be widened.
  for (; c + 4 <= chunks; c += 4) {
    const __m256i a = nibble_products(row + c * 32, query + c * 64);
    const __m256i b = nibble_products(row + c * 32 + 32, query + c * 64 + 64);
    const __m256i e = nibble_products(row + c * 32 + 64, query + c * 64 + 128);
    const __m256i f = nibble_products(row + c * 32 + 96, query + c * 64 + 192);
    const __m256i sums = _mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_add_epi16(e, f));
    total = _mm256_add_epi32(total, _mm256_madd_epi16(sums, ones));
  }
  for (; c < chunks; ++c) {
    const __m256i sums = nibble_products(row + c * 32, query + c * 64);
    other = _mm256_add_epi32(other, _mm256_madd_epi16(sums, ones));
  }
  return add_up(_mm256_add_epi32(total, other));
}
#else
SOFTINDEX_INLINE int32_t dot_lanes(const int8_t* row, const int16_t* query, int64_t length) {
  return dot(row, query, length);
}

SOFTINDEX_INLINE int64_t nibble_dot(const uint8_t* __restrict row, const int8_t* __restrict query, int64_t chunks) {
  int32_t total = 0;
  for (int64_t c = 0; c < chunks; ++c)
    for (int64_t j = 0; j < 32; ++j) {
      const int32_t both = row[c * 32 + j];
      total += (both & 15) * (int32_t)query[c * 64 + j] + (both >> 4) * (int32_t)query[c * 64 + 32 + j];
    }
  return total;
}
#endif

}  // namespace

// queries (count, padded(d)), padded with zeros, within -16383 .. 16383; dots (count, stride).
void screen(Matrix<int8_t> rows, const int16_t* queries, int64_t count, int64_t* dots, int64_t stride) {
  const int64_t d = rows.d, width_d = padded(d);
  for (int64_t i = 0; i < rows.count; ++i) {
    const int8_t* row = rows.first + i * d;
    // Within the matrix whole lanes may be read past the end of a row, as the query is zero there.
    const bool inside = row + width_d <= rows.limit;
    for (int64_t g = 0; g < count; ++g) {
      const int16_t* query = queries + g * width_d;
      int64_t total = 0;
      for (int64_t begin = 0; begin < d; begin += part_length) {
        const int64_t whole = width_d - begin < part_length ? width_d - begin : part_length;
        const int64_t length = d - begin < part_length ? d - begin : part_length;
        total += inside ? dot_lanes(row + begin, query + begin, whole) : dot(row + begin, query + begin, length);
      }
      dots[g * stride + i] = total;
    }
  }
}

// rows (count, 32 chunks) bytes: the j-th of every 32 holds coordinate j of 64 in its low half and j + 32 in its high
// one. queries (count, 64 chunks), within -127 .. 127; no more than 2^14 chunks, whose sums fit into 32 bits.
void screen_nibbles(const uint8_t* rows, int64_t n, int64_t chunks, const int8_t* queries, int64_t count, int64_t* dots,
                    int64_t stride) {
  for (int64_t i = 0; i < n; ++i) {
    fetch_ahead(rows + i * chunks * 32, chunks * 32);
    for (int64_t g = 0; g < count; ++g)
      dots[g * stride + i] = nibble_dot(rows + i * chunks * 32, queries + g * chunks * 64, chunks);
  }
}

// The dot product of a row with a query in double, in sixteen sums that every target adds alike.
double double_dot(const float* __restrict row, const double* __restrict query, int64_t d) {
  double sums[lanes] = {};
  int64_t j = 0;
  for (; j + lanes <= d; j += lanes)
    for (int l = 0; l < lanes; ++l) sums[l] += (double)row[j + l] * query[j + l];
  for (int l = 0; j + l < d; ++l) sums[l] += (double)row[j + l] * query[j + l];
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  return sums[0];
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
