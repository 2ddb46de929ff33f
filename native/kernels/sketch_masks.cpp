// Which items of a sketch can reach a score: four bits per number, sixteen items at a time, up to eight queries.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

constexpr int64_t group_bytes = 64;  // eight coordinates of sixteen items

#if defined(__AVX512BW__) || defined(__AVX2__)

#ifdef __AVX512BW__
typedef __m512i Bytes;
typedef __m512 Reals;
constexpr int together = 8;  // queries whose sums fit into the registers
SOFTINDEX_INLINE Bytes load_bytes(const void* from) { return _mm512_loadu_si512(from); }
SOFTINDEX_INLINE Bytes low_halves(Bytes both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
SOFTINDEX_INLINE Bytes high_halves(Bytes both) { return low_halves(_mm512_srli_epi16(both, 4)); }
SOFTINDEX_INLINE Bytes four_numbers(const int8_t* query) {
  int32_t four;
  std::memcpy(&four, query, 4);
  return _mm512_set1_epi32(four);
}
SOFTINDEX_INLINE Bytes pair_products(Bytes codes, Bytes query) { return _mm512_maddubs_epi16(codes, query); }
SOFTINDEX_INLINE Bytes add16(Bytes a, Bytes b) { return _mm512_add_epi16(a, b); }
SOFTINDEX_INLINE Bytes add_pairs(Bytes total, Bytes pairs) {
  return _mm512_add_epi32(total, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
SOFTINDEX_INLINE uint32_t reaching(Bytes dots, const float* scales, float shift, float least) {
  const Reals values =
      _mm512_mul_ps(_mm512_loadu_ps(scales), _mm512_add_ps(_mm512_cvtepi32_ps(dots), _mm512_set1_ps(shift)));
  return _mm512_cmp_ps_mask(values, _mm512_set1_ps(least), _CMP_NLT_UQ);
}
#else
typedef __m256i Bytes;
typedef __m256 Reals;
constexpr int together = 4;
SOFTINDEX_INLINE Bytes load_bytes(const void* from) { return _mm256_loadu_si256((const __m256i*)from); }
SOFTINDEX_INLINE Bytes low_halves(Bytes both) { return _mm256_and_si256(both, _mm256_set1_epi8(15)); }
SOFTINDEX_INLINE Bytes high_halves(Bytes both) { return low_halves(_mm256_srli_epi16(both, 4)); }
SOFTINDEX_INLINE Bytes four_numbers(const int8_t* query) {
  int32_t four;
  std::memcpy(&four, query, 4);
  return _mm256_set1_epi32(four);
}
SOFTINDEX_INLINE Bytes pair_products(Bytes codes, Bytes query) { return _mm256_maddubs_epi16(codes, query); }
SOFTINDEX_INLINE Bytes add16(Bytes a, Bytes b) { return _mm256_add_epi16(a, b); }
SOFTINDEX_INLINE Bytes add_pairs(Bytes total, Bytes pairs) {
  return _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
SOFTINDEX_INLINE uint32_t reaching(Bytes dots, const float* scales, float shift, float least) {
  const Reals values =
      _mm256_mul_ps(_mm256_loadu_ps(scales), _mm256_add_ps(_mm256_cvtepi32_ps(dots), _mm256_set1_ps(shift)));
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(values, _mm256_set1_ps(least), _CMP_NLT_UQ));
}
#endif

constexpr int items = sizeof(Bytes) / 4;  // of one register
constexpr int registers = 16 / items;     // that hold four numbers of each item of a block

#ifdef __AVX512VNNI__
SOFTINDEX_INLINE void add_group(Bytes& total, Bytes low, Bytes high, const int8_t* query) {
  total = _mm512_dpbusd_epi32(total, low, four_numbers(query));
  total = _mm512_dpbusd_epi32(total, high, four_numbers(query + 4));
}
constexpr int64_t widened = 1 << 30;  // groups: there is nothing to widen
#else
SOFTINDEX_INLINE void add_group(Bytes& total, Bytes low, Bytes high, const int8_t* query) {
  total = add16(total, add16(pair_products(low, four_numbers(query)), pair_products(high, four_numbers(query + 4))));
}
// 15 * 127 * 2 products * 2 halves * 4 groups = 30480: so much fits into 16 bits before it must be widened.
constexpr int64_t widened = 4;
#endif

// The sums of `count` queries with `length` registers of items, one every `step` bytes.
template <int count, int length>
SOFTINDEX_INLINE void add_up(const uint8_t* codes, int64_t step, int64_t groups, const SketchQuery* queries,
                             Bytes (&totals)[count][length]) {
  for (int q = 0; q < count; ++q)
    for (int r = 0; r < length; ++r) totals[q][r] = Bytes{};
  for (int64_t from = 0; from < groups; from += widened) {
    const int64_t to = groups - from < widened ? groups : from + widened;
#ifdef __AVX512VNNI__
    Bytes(&sums)[count][length] = totals;
#else
    Bytes sums[count][length] = {};
#endif
    for (int64_t g = from; g < to; ++g)
      for (int r = 0; r < length; ++r) {
        const Bytes both = load_bytes(codes + g * group_bytes + r * step);
        const Bytes low = low_halves(both), high = high_halves(both);
        for (int q = 0; q < count; ++q) add_group(sums[q][r], low, high, queries[q].integers + g * 8);
      }
#ifndef __AVX512VNNI__
    for (int q = 0; q < count; ++q)
      for (int r = 0; r < length; ++r) totals[q][r] = add_pairs(totals[q][r], sums[q][r]);
#endif
  }
}

template <int count>
SOFTINDEX_INLINE void mask_block(const SketchBlocks& blocks, int64_t block, const SketchQuery* queries, uint16_t* masks,
                                 int64_t stride) {
  const uint8_t* codes = blocks.codes + block * blocks.groups * group_bytes;
  uint32_t found[count] = {};
  for (int r = 0; r < registers; ++r) {
    Bytes totals[count][1];
    add_up<count, 1>(codes + r * sizeof(Bytes), 0, blocks.groups, queries, totals);
    const float* scales = blocks.scales + block * 16 + r * items;
    for (int q = 0; q < count; ++q)
      found[q] |= reaching(totals[q][0], scales, queries[q].shift, queries[q].least) << (r * items);
  }
  for (int q = 0; q < count; ++q) masks[q * stride + block] = (uint16_t)found[q];
}

// One query, four registers of items at a time: independent sums hide the latency of the additions.
SOFTINDEX_INLINE void mask_four(const SketchBlocks& blocks, int64_t block, const SketchQuery& query, uint16_t* masks) {
  constexpr int count = 4 / registers;  // blocks
  const int64_t bytes = blocks.groups * group_bytes;
  const uint8_t* codes = blocks.codes + block * bytes;
  fetch_ahead(codes, count * bytes);
  for (int r = 0; r < registers; ++r) {
    Bytes totals[1][count];
    add_up<1, count>(codes + r * sizeof(Bytes), bytes, blocks.groups, &query, totals);
    for (int b = 0; b < count; ++b) {
      const float* scales = blocks.scales + (block + b) * 16 + r * items;
      const uint32_t found = reaching(totals[0][b], scales, query.shift, query.least) << (r * items);
      masks[block + b] = (uint16_t)((r == 0 ? 0 : masks[block + b]) | found);
    }
  }
}

template <int count>
SOFTINDEX_INLINE void mask_all(const SketchBlocks& blocks, const SketchQuery* queries, uint16_t* masks,
                               int64_t stride) {
  int64_t block = 0;
  if (count == 1)
    for (; block + 4 / registers <= blocks.count; block += 4 / registers) mask_four(blocks, block, *queries, masks);
  for (; block < blocks.count; ++block) {
    fetch_ahead(blocks.codes + block * blocks.groups * group_bytes, blocks.groups * group_bytes);
    mask_block<count>(blocks, block, queries, masks, stride);
  }
}

#else

constexpr int together = 1;

template <int count>
SOFTINDEX_INLINE void mask_all(const SketchBlocks& blocks, const SketchQuery* queries, uint16_t* masks, int64_t) {
  const SketchQuery& query = *queries;
  for (int64_t block = 0; block < blocks.count; ++block) {
    int32_t dots[16] = {};
    const uint8_t* codes = blocks.codes + block * blocks.groups * group_bytes;
    for (int64_t g = 0; g < blocks.groups; ++g)
      for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 4; ++j) {
          const int32_t both = codes[g * group_bytes + i * 4 + j];
          dots[i] += (both & 15) * query.integers[g * 8 + j] + (both >> 4) * query.integers[g * 8 + 4 + j];
        }
    uint32_t found = 0;
    for (int i = 0; i < 16; ++i)
      found |= (uint32_t)!(blocks.scales[block * 16 + i] * ((float)dots[i] + query.shift) < query.least) << i;
    masks[block] = (uint16_t)found;
  }
}

#endif

}  // namespace

// masks (count, stride): bit i of a block is set unless scale * (dot + shift) < least for its item i, in float32, where
// dot is that of the item's codes, 0 .. 15, and the query's integers. A scale that is no number sets the bit. Byte 4 i
// + j of a group of eight coordinates has coordinate j of item i in its low half and coordinate j + 4 in its high half.
void sketch_masks(const SketchBlocks& blocks, const SketchQuery* queries, int64_t count, uint16_t* masks,
                  int64_t stride) {
  for (int64_t first = 0; first < count; first += together) {
    const SketchQuery* some = queries + first;
    uint16_t* to = masks + first * stride;
    switch (count - first < together ? count - first : together) {
      case 1:
        mask_all<1>(blocks, some, to, stride);
        break;
#if defined(__AVX512BW__) || defined(__AVX2__)
      case 2:
        mask_all<2>(blocks, some, to, stride);
        break;
      case 3:
        mask_all<3>(blocks, some, to, stride);
        break;
      case 4:
        mask_all<4>(blocks, some, to, stride);
        break;
#endif
#ifdef __AVX512BW__
      case 5:
        mask_all<5>(blocks, some, to, stride);
        break;
      case 6:
        mask_all<6>(blocks, some, to, stride);
        break;
      case 7:
        mask_all<7>(blocks, some, to, stride);
        break;
      case 8:
        mask_all<8>(blocks, some, to, stride);
        break;
#endif
    }
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
