// Dot products of a few queries with rows of 16-bit integers, which take half the memory bandwidth of floats.
#include "kernels/scan_rows.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// queries (count, padded(d)), padded with zeros, count from one to group_size; dots (count, stride).
void scan_int16(Matrix<int16_t> rows, const float* queries, int64_t count, float* dots, int64_t stride) {
  if (count == group_size) return scan_four(rows, queries, dots, stride);
  for (int64_t g = 0; g < count; ++g) scan_rows(rows, queries + g * padded(rows.d), dots + g * stride);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
