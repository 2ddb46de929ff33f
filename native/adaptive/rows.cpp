// Rows read at full precision: half-precision numbers as float32, and dot products in double.
#include "adaptive/rows.h"

#include <algorithm>
#include <cstring>

namespace softindex {

// Simple loops without branches, so that the compiler vectorises them.
void widen_bfloat16(const uint16_t* __restrict from, int64_t count, float* __restrict to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = (uint32_t)from[i] << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

// Moves sign, exponent and fraction to their places in float32. The exponents have different offsets, so the result is
// too small by 2^112.
void widen_float16(const uint16_t* __restrict from, int64_t count, float* __restrict to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = ((uint32_t)from[i] & 0x8000) << 16 | ((uint32_t)from[i] & 0x7fff) << 13;
    float scaled;
    std::memcpy(&scaled, &bits, sizeof bits);
    to[i] = scaled * 0x1p112f;
  }
}

void dot_rows(const Kernels& kernels, const Rows& rows, const int64_t* which, int64_t count, const double* query,
              double* dots) {
  for (int64_t i = 0; i < count; ++i) {
    // The next row is somewhere else: its first pages are fetched while this one is multiplied.
    if (i + 1 < count)
      for (int64_t j = 0; j < std::min<int64_t>(rows.d, 4096); j += 16)
        __builtin_prefetch(rows.first + which[i + 1] * rows.d + j, 0, 3);
    dots[i] = kernels.double_dot(rows.first + which[i] * rows.d, query, rows.d);
  }
}

}  // namespace softindex
