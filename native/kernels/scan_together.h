// Dot products of many queries with rows of floats or of small integers: the rows are read from memory once.
#pragma once

#include "kernels/scan_rows.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// Numbers in the rows that all queries are compared with before the next rows are read: these stay in the first-level
// cache.
constexpr int64_t numbers_at_once = 2048;

// The rows as floats, padded with zeros or with numbers of the next row, which the query's padding makes zeros. Of
// floats there is no need for a copy.
template <class Element>
SOFTINDEX_INLINE Matrix<float> as_floats(const Matrix<Element>& rows, float* copies) {
  const int64_t width_d = padded(rows.d), whole = rows.d / lanes * lanes, readable = readable_rows(rows);
  for (int64_t i = 0; i < rows.count; ++i) {
    const Element* row = rows.first + i * rows.d;
    float* copy = copies + i * width_d;
    fetch_ahead(row, rows.d * (int64_t)sizeof(Element));
    const int64_t length = i < readable ? width_d : whole;
    for (int64_t j = 0; j < length; j += lanes) store(copy + j, load(row + j));
    if (length >= rows.d) continue;
    Element rest[lanes] = {};
    std::memcpy(rest, row + whole, (rows.d - whole) * sizeof(Element));
    store(copy + whole, load(rest));
  }
  return {copies, rows.count, width_d, copies + rows.count * width_d};
}
SOFTINDEX_INLINE Matrix<float> as_floats(const Matrix<float>& rows, float*) { return rows; }

// One to four queries.
template <class Element>
SOFTINDEX_INLINE void scan_few(const Matrix<Element>& rows, const float* const* queries, int64_t count, float* dots,
                               int64_t stride) {
  if (count == 1) return scan_rows(rows, queries[0], dots);
  const float* four[4];
  for (int64_t g = 0; g < 4; ++g) four[g] = queries[g < count ? g : count - 1];
  scan_four(rows, four, count, dots, stride);
}

// queries (count > 0) pointers to padded queries; dots (count, stride). Each dot product is that of scan_rows, but for
// the sign of a zero. Rows are taken a few at a time, and the next ones are fetched a part with each four queries:
// memory is then read while there is something to compute.
template <class Element>
SOFTINDEX_INLINE void scan_together(const Matrix<Element>& rows, const float* const* queries, int64_t count,
                                    float* dots, int64_t stride) {
  if (count <= 4) return scan_few(rows, queries, count, dots, stride);
  const int64_t d = rows.d, fitting = numbers_at_once / padded(d) / 4 * 4, step = fitting > 0 ? fitting : 4;
  const int64_t groups = (count + 3) / 4, ahead = (step * d * (int64_t)sizeof(Element) / groups + 63) / 64 * 64;
  alignas(64) float copies[sizeof(Element) < sizeof(float) ? numbers_at_once : 1];
  for (int64_t from = 0; from < rows.count; from += step) {
    const int64_t length = rows.count - from < step ? rows.count - from : step;
    const Matrix<Element> some = {rows.first + from * d, length, d, rows.limit};
    const bool converts = sizeof(Element) < sizeof(float) && fitting > 0;
    const Matrix<float> floats = converts ? as_floats(some, copies) : Matrix<float>{};
    for (int64_t g = 0; g < count; g += 4) {
      const int64_t few = count - g < 4 ? count - g : 4;
      if (converts) {
        scan_few(floats, queries + g, few, dots + g * stride + from, stride);
        continue;
      }
      const char* next = (const char*)(some.first + step * d) + g / 4 * ahead;
      for (int64_t byte = 0; byte < ahead; byte += 64) __builtin_prefetch(next + byte, 0, 3);
      scan_few(some, queries + g, few, dots + g * stride + from, stride);
    }
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
