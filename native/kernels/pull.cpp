// Sixteen coordinates of many rows at a time, each a term of an estimate of the row's dot product.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// blocks (any, n, 16): some coordinates of every row; which (rounds): the blocks to take, in this order, with queries
// (rounds, 16), scales and weights (rounds). For each of the rows named by arms (count) and each block, with y the sum
// of its sixteen products and s the sum of their squares about their mean:
//   t = sums + scale y;  first += weight t;  second += weight^2 t;  third += weight^2 t^2;
//   noise += weight^2 scale^2 16/15 s;  sums += y.
// A row's state stays in registers over all its blocks; each block is read from one end to the other.
void pull(const float* blocks, int64_t n, const int64_t* which, const float* queries, const double* scales,
          const double* weights, int64_t rounds, const int64_t* arms, int64_t count, Pulled pulled) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t arm = arms[i];
    double sums = pulled.sums[arm], first = 0, second = 0, third = 0, noise = 0;
    for (int64_t r = 0; r < rounds; ++r) {
      const double scale = scales[r], weight = weights[r], squared = weight * weight;
      const Lanes part = load(queries + r * lanes);
      Lanes products = load(blocks + (which[r] * n + arm) * lanes), squares = {};
      for (int p = 0; p < parts; ++p) products.part[p] *= part.part[p];
      const float total = sum(products);
      const Vector mean = splat(total * (1.0f / lanes));
      for (int p = 0; p < parts; ++p) {
        const Vector away = products.part[p] - mean;
        squares.part[p] = away * away;
      }
      const double term = sums + scale * (double)total;
      first += weight * term;
      second += squared * term;
      third += squared * term * term;
      noise += squared * scale * scale * (16.0 / 15.0) * (double)sum(squares);
      sums += (double)total;
    }
    pulled.sums[arm] = sums;
    pulled.first[arm] += first;
    pulled.second[arm] += second;
    pulled.third[arm] += third;
    pulled.noise[arm] += noise;
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
