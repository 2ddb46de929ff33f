// How much each column may add to dot products with a query.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

SOFTINDEX_INLINE Doubles magnitude(Doubles value) { return (Doubles)((DoubleBits)value & (DoubleBits{} + INT64_MAX)); }

}  // namespace

// For tiles of sixteen columns: sums[t] = the sum of the weights |query scale| in tile t. Adds to the moments, lane by
// lane, query^2 and weight^2, and counts the columns with any weight. query, scales, sums: start at the first tile.
void weigh_columns(const float* query, const float* scales, int64_t tiles, double* sums, ColumnMoments& moments) {
  DoubleLanes squares = load_double_lanes(moments.squares), weights = load_double_lanes(moments.squared_weights);
  DoubleBits used = {};
  for (int64_t t = 0; t < tiles; ++t) {
    DoubleLanes weight;
    for (int p = 0; p < double_parts; ++p) {
      const Doubles value = load_doubles(query + t * lanes + p * double_width);
      weight.part[p] = magnitude(value * load_doubles(scales + t * lanes + p * double_width));
      squares.part[p] += value * value;
      weights.part[p] += weight.part[p] * weight.part[p];
      used -= weight.part[p] > 0.0;
    }
    sums[t] = fold(weight);
  }
  store_double_lanes(moments.squares, squares);
  store_double_lanes(moments.squared_weights, weights);
  for (int l = 0; l < double_width; ++l) moments.used += used[l];
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
