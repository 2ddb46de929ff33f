// Dot products of one query, or of four, with rows of floats or of small integers, in a fixed order of additions.
#pragma once

#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// The number of rows that may be read up to a full set of lanes. Past a row's end comes the next row, which is finite,
// times the query's padding, which is zero: no remainder loop is needed and the sum is unchanged.
template <class Element>
SOFTINDEX_INLINE int64_t readable_rows(const Matrix<Element>& rows) {
  const int64_t room = rows.limit - rows.first - padded(rows.d);
  if (room < 0) return 0;
  const int64_t count = room / rows.d + 1;
  return count < rows.count ? count : rows.count;
}

// For the last rows of a matrix: copies the remainder, so that nothing past the matrix is read.
template <class Element>
SOFTINDEX_INLINE float dot_at_the_end(const Element* row, const float* query, int64_t d) {
  Lanes total = {};
  int64_t j = 0;
  for (; j + lanes <= d; j += lanes) add_product(total, load(row + j), load(query + j));
  if (j < d) {
    Element rest[lanes] = {};
    std::memcpy(rest, row + j, (d - j) * sizeof(Element));
    add_product(total, load(rest), load(query + j));
  }
  return sum(total);
}

// One query, four rows at a time: the query's lanes are loaded once for four rows, and independent sums hide the
// latency of the additions.
template <class Element>
SOFTINDEX_INLINE void scan_rows(const Matrix<Element>& rows, const float* query, float* dots) {
  const int64_t d = rows.d, width_d = padded(d), readable = readable_rows(rows);
  int64_t i = 0;
  for (; i + 4 <= readable; i += 4) {
    const Element* row = rows.first + i * d;
    fetch_ahead(row, 4 * d * (int64_t)sizeof(Element));
    Lanes a = {}, b = {}, c = {}, e = {};
    for (int64_t j = 0; j < width_d; j += lanes) {
      const Lanes query_lanes = load(query + j);
      add_product(a, load(row + j), query_lanes);
      add_product(b, load(row + d + j), query_lanes);
      add_product(c, load(row + 2 * d + j), query_lanes);
      add_product(e, load(row + 3 * d + j), query_lanes);
    }
    const Quad result = sum4(a, b, c, e);
    std::memcpy(dots + i, &result, sizeof(result));
  }
  for (; i < readable; ++i) {
    const Element* row = rows.first + i * d;
    Lanes total = {};
    for (int64_t j = 0; j < width_d; j += lanes) add_product(total, load(row + j), load(query + j));
    dots[i] = sum(total);
  }
  for (; i < rows.count; ++i) dots[i] = dot_at_the_end(rows.first + i * d, query, d);
}

#if defined(__AVX512F__)
// Four queries and four rows at a time, as far as there are four: a number that is loaded serves four products. Fills
// in the first `wanted` queries and returns how many rows it did.
template <class Element>
SOFTINDEX_INLINE int64_t scan_tiles(const Matrix<Element>& rows, const float* const* queries, int64_t wanted,
                                    float* dots, int64_t stride) {
  const int64_t d = rows.d, width_d = padded(d), readable = readable_rows(rows);
  const float *first = queries[0], *second = queries[1], *third = queries[2], *fourth = queries[3];
  int64_t i = 0;
  for (; i + 4 <= readable; i += 4) {
    const Element* row = rows.first + i * d;
    Lanes sums[4][4] = {};
    for (int64_t j = 0; j < width_d; j += lanes) {
      const Lanes query[4] = {load(first + j), load(second + j), load(third + j), load(fourth + j)};
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const Lanes row_lanes = load(row + r * d + j);
#pragma GCC unroll 4
        for (int g = 0; g < 4; ++g) add_product(sums[r][g], row_lanes, query[g]);
      }
    }
    float results[lanes];
    store(results, {{sum16(sums)}});
    for (int64_t g = 0; g < wanted; ++g) std::memcpy(dots + g * stride + i, results + 4 * g, 4 * sizeof(float));
  }
  return i;
}
#else
// Other CPUs have too few registers for sixteen sums.
template <class Element>
SOFTINDEX_INLINE int64_t scan_tiles(const Matrix<Element>&, const float* const*, int64_t, float*, int64_t) {
  return 0;
}
#endif

// Four queries, wherever they are: the matrix is read once for all of them. Fills in the first `wanted` of them.
template <class Element>
SOFTINDEX_INLINE void scan_four(const Matrix<Element>& rows, const float* const* queries, int64_t wanted, float* dots,
                                int64_t stride) {
  const int64_t d = rows.d, width_d = padded(d), readable = readable_rows(rows);
  const float *first = queries[0], *second = queries[1], *third = queries[2], *fourth = queries[3];
  int64_t i = scan_tiles(rows, queries, wanted, dots, stride);
  for (; i < readable; ++i) {
    const Element* row = rows.first + i * d;
    Lanes a = {}, b = {}, c = {}, e = {};
    for (int64_t j = 0; j < width_d; j += lanes) {
      const Lanes row_lanes = load(row + j);
      add_product(a, row_lanes, load(first + j));
      add_product(b, row_lanes, load(second + j));
      add_product(c, row_lanes, load(third + j));
      add_product(e, row_lanes, load(fourth + j));
    }
    const Quad result = sum4(a, b, c, e);
    for (int64_t g = 0; g < wanted; ++g) dots[g * stride + i] = result[g];
  }
  for (; i < rows.count; ++i)
    for (int64_t g = 0; g < wanted; ++g) dots[g * stride + i] = dot_at_the_end(rows.first + i * d, queries[g], d);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
