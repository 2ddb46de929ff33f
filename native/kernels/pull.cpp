// Adds sixteen coordinates of many rows at a time to running estimates of the rows' dot products.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// pulls.blocks (any, n, 16): blocks of sixteen coordinates of every row. Reads blocks which[0 .. rounds) in this order,
// with one row of queries (rounds, 16), one scale and one weight for each. For each of the rows arms (count) and each
// block, with y the sum of the sixteen products and s the sum of their squared deviations from their mean:
//   t = sums + scale y;  first += weight t;  second += weight^2 t;  third += weight^2 t^2;
//   noise += weight^2 scale^2 16/15 s;  sums += y.
// A row's state stays in registers over all its blocks, and each block is read in order of rows.
void pull(const Pulls& pulls, const int64_t* arms, int64_t count, const PullState& state) {
  const float *blocks = pulls.blocks, *queries = pulls.queries;
  const int64_t n = pulls.n, rounds = pulls.rounds, *which = pulls.which;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t arm = arms[i];
    double sums = state.sums[arm], first = 0, second = 0, third = 0, noise = 0;
    for (int64_t r = 0; r < rounds; ++r) {
      const double scale = pulls.scales[r], weight = pulls.weights[r], squared = weight * weight;
      const Lanes query = load(queries + r * lanes);
      Lanes products = load(blocks + (which[r] * n + arm) * lanes), squares = {};
      for (int p = 0; p < parts; ++p) products.part[p] *= query.part[p];
      const float total = sum(products);
      const Vector mean = splat(total * (1.0f / lanes));
      for (int p = 0; p < parts; ++p) {
        const Vector deviation = products.part[p] - mean;
        squares.part[p] = deviation * deviation;
      }
      const double term = sums + scale * (double)total;
      first += weight * term;
      second += squared * term;
      third += squared * term * term;
      noise += squared * scale * scale * (16.0 / 15.0) * (double)sum(squares);
      sums += (double)total;
    }
    state.sums[arm] = sums;
    state.first[arm] += first;
    state.second[arm] += second;
    state.third[arm] += third;
    state.noise[arm] += noise;
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
