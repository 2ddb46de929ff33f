// The products of a query's coordinates that turn a quadratic form into one dot product.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// packed (d (d + 1) / 2): q_i q_j for i <= j, row by row. A form q' S q is the dot product of these with the packed
// upper triangle of S (off-diagonals doubled). The forms of all clusters are then one matrix-vector scan, which reads
// each number of S once.
void outer_product(const float* query, int64_t d, float* packed) {
  for (int64_t i = 0; i < d; ++i) {
    const float factor = query[i];
    for (int64_t j = i; j < d; ++j) *packed++ = factor * query[j];
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
