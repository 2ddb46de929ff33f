// Rounds a query to 16-bit integers, for dot products with rows of 8-bit integers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/kernels.h"

namespace softindex {

// Fills integers (d) and returns the step: the query is approximately step * integers. The integers are small enough
// that no sum of padded(d) products with numbers in -127 .. 127 overflows 32 bits.
inline double round_query(const float* query, int64_t d, int16_t* integers) {
  const double largest = std::min(32767.0, std::floor(2147483647.0 / 127.0 / (double)padded(d)));
  float peak = 0;
  for (int64_t j = 0; j < d; ++j) peak = std::max(peak, std::fabs(query[j]));
  const double inverse = peak > 0 ? largest / peak : 0.0;
  // Adding 1.5 * 2^52 rounds to the nearest integer, ties to even: nearbyint is a call on CPUs without SSE 4.1.
  const double shift = 6755399441055744.0;
  for (int64_t j = 0; j < d; ++j) integers[j] = (int16_t)((query[j] * inverse + shift) - shift);
  return peak / largest;
}

}  // namespace softindex
