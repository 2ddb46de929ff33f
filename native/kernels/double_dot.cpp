// The dot product of a float32 row with a query in double.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// Sixteen running sums, which every target adds in the same order.
double double_dot(const float* __restrict row, const double* __restrict query, int64_t d) {
  double sums[lanes] = {};
  int64_t j = 0;
  for (; j + lanes <= d; j += lanes)
    for (int l = 0; l < lanes; ++l) sums[l] += (double)row[j + l] * query[j + l];
  for (int l = 0; j + l < d; ++l) sums[l] += (double)row[j + l] * query[j + l];
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  return sums[0];
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
