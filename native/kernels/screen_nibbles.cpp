// Exact dot products of rows of 4-bit integers, two in a byte, with a few queries of 8-bit integers.
#include "kernels/sum_integers.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

#ifdef __AVX2__
// 64 products of nibbles, 0 .. 15, with bytes, added by fours into 16-bit integers, which cannot overflow.
SOFTINDEX_INLINE __m256i nibble_products(const uint8_t* row, const int8_t* query) {
  const __m256i mask = _mm256_set1_epi8(15), both = _mm256_loadu_si256((const __m256i*)row);
  const __m256i low = _mm256_and_si256(both, mask), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
  const __m256i first = _mm256_maddubs_epi16(low, _mm256_loadu_si256((const __m256i*)query));
  const __m256i second = _mm256_maddubs_epi16(high, _mm256_loadu_si256((const __m256i*)(query + 32)));
  return _mm256_add_epi16(first, second);
}

SOFTINDEX_INLINE int64_t nibble_dot(const uint8_t* row, const int8_t* query, int64_t chunks) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i total = _mm256_setzero_si256(), rest = total;
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
    rest = _mm256_add_epi32(rest, _mm256_madd_epi16(sums, ones));
  }
  return sum_integers(_mm256_add_epi32(total, rest));
}
#else
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

// rows (n, 32 chunks) bytes: byte j of every 32 has coordinate j of 64 in its low half and coordinate j + 32 in its
// high half. queries (count, 64 chunks), within -127 .. 127; dots (count, stride). At most 2^14 chunks, whose sums fit
// into 32 bits.
void screen_nibbles(const uint8_t* rows, int64_t n, int64_t chunks, const int8_t* queries, int64_t count, int64_t* dots,
                    int64_t stride) {
  for (int64_t i = 0; i < n; ++i) {
    fetch_ahead(rows + i * chunks * 32, chunks * 32);
    for (int64_t g = 0; g < count; ++g)
      dots[g * stride + i] = nibble_dot(rows + i * chunks * 32, queries + g * chunks * 64, chunks);
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
