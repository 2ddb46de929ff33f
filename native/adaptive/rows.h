// Rows read at full precision: half-precision numbers as float32, and dot products in double.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace softindex {

// Converts finite 16-bit floats to float32, exactly.
void widen_bfloat16(const uint16_t* from, int64_t count, float* to);
void widen_float16(const uint16_t* from, int64_t count, float* to);

// dots (count): the dot products of a query (d) with the rows named by `which` (count) of a matrix.
void dot_rows(const Kernels& kernels, const Rows& rows, const int64_t* which, int64_t count, const double* query,
              double* dots);

}  // namespace softindex
