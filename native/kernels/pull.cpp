// Adds columns of sixteen rows at a time to running estimates of the rows' dot products.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// The CPU's own prefetching follows only a few columns at once.
constexpr int64_t columns_at_once = 16;

// For each group of sixteen rows groups[0 .. count) and each column which[r] in turn, with a the numbers of the rows:
//   y = a query;  t = sums + scale y;  first += weight t;  second += weight^2 t;  third += weight^2 t^2;  sums += y.
// state (any, 4, 16): sums, first, second and third of each row of a group. Every row is computed on its own.
void pull(const Pulls& pulls, const int64_t* groups, int64_t count, double* state) {
  for (int64_t begin = 0; begin < pulls.rounds; begin += columns_at_once) {
    const int64_t end = begin + columns_at_once < pulls.rounds ? begin + columns_at_once : pulls.rounds;
    for (int64_t i = 0; i < count; ++i) {
      double* const here = state + groups[i] * 4 * lanes;
      DoubleLanes sums = load_double_lanes(here), first = load_double_lanes(here + lanes);
      DoubleLanes second = load_double_lanes(here + 2 * lanes), third = load_double_lanes(here + 3 * lanes);
      for (int64_t r = begin; r < end; ++r) {
        const float* const column = pulls.columns + pulls.which[r] * pulls.stride + groups[i] * lanes;
        const double query = pulls.query[r], scale = pulls.scales[r], weight = pulls.weights[r];
        const double squared = weight * weight;
        for (int p = 0; p < double_parts; ++p) {
          const Doubles product = load_doubles(column + p * double_width) * query;
          const Doubles term = sums.part[p] + scale * product, weighted = squared * term;
          first.part[p] += weight * term;
          second.part[p] += weighted;
          third.part[p] += weighted * term;
          sums.part[p] += product;
        }
      }
      store_double_lanes(here, sums);
      store_double_lanes(here + lanes, first);
      store_double_lanes(here + 2 * lanes, second);
      store_double_lanes(here + 3 * lanes, third);
    }
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
