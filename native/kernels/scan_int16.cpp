// Dot products of a few queries with rows of 16-bit integers, which take half the memory bandwidth of floats.
#include "kernels/scan_rows.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// queries (count, padded(d)), padded with zeros, count from one to group_size; dots (count, stride).
void scan_int16(Matrix<int16_t> rows, const float* queries, int64_t count, float* dots, int64_t stride) {
  const int64_t width_d = padded(rows.d);
  if (count == group_size) {
    const float* four[group_size] = {queries, queries + width_d, queries + 2 * width_d, queries + 3 * width_d};
    return scan_four(rows, four, group_size, dots, stride);
  }
  for (int64_t g = 0; g < count; ++g) scan_rows(rows, queries + g * width_d, dots + g * stride);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
