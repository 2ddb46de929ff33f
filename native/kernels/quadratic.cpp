// The two halves of a quadratic form that are not a scan: what goes in, and what comes out.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// A full form q' S q is one dot product of the packed upper triangle of S (off-diagonals doubled) with the products
// q_i q_j, i <= j: so all clusters together are one matrix-vector scan, which reads each number of S once.
void outer_product(const float* query, int64_t d, float* packed) {
  for (int64_t i = 0; i < d; ++i) {
    const float factor = query[i];
    for (int64_t j = i; j < d; ++j) *packed++ = factor * query[j];
  }
}

// A form of rank r is the sum of the squares of r scaled dot products; dots holds them cluster after cluster.
void square_sums(const int32_t* dots, const float* scales, int64_t count, int64_t rank, double* sums) {
  for (int64_t i = 0; i < count; ++i) {
    double total = 0;
    for (int64_t r = 0; r < rank; ++r) {
      const double dot = (double)dots[i * rank + r] * scales[i * rank + r];
      total += dot * dot;
    }
    sums[i] = total;
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
