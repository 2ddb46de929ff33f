// The values of quadratic forms of low rank, from the dot products of their factors with a query.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// dots and scales (count, rank), sums (count). A form of rank r is the sum of the squares of r scaled dot products.
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
