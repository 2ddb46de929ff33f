// Dot products of one query or more with items kept as small integers, in a fixed order of additions.
#pragma once

#include "kernels/scan_together.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// queries (count) pointers to padded queries, centre_dots (count) their dot products with the centre; dots (count,
// stride). The integers become floats in lanes, which is exact; then
//   dot = centre_dot + scale * (query . integers), plus last coordinate of the query * bias where there is a bias.
template <class Element>
SOFTINDEX_INLINE void scan_residual_rows(const Residuals<Element>& rows, const float* const* queries,
                                         const float* centre_dots, int64_t count, float* dots, int64_t stride) {
  if (count == 1)
    scan_rows(rows.integers, queries[0], dots);
  else
    scan_together(rows.integers, queries, count, dots, stride);
  for (int64_t g = 0; g < count; ++g) {
    float* __restrict row = dots + g * stride;
    const float* __restrict scales = rows.scales;
    const float centre = centre_dots[g];
    for (int64_t i = 0; i < rows.integers.count; ++i) row[i] = centre + scales[i] * row[i];
    if (rows.bias == nullptr) continue;
    const float* __restrict bias = rows.bias;
    const float last = queries[g][rows.integers.d - 1];
    for (int64_t i = 0; i < rows.integers.count; ++i) row[i] += last * bias[i];
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
