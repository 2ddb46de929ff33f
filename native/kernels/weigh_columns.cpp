// How much each column may add to dot products with a query.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

SOFTINDEX_INLINE Doubles magnitude(Doubles value) { return (Doubles)((DoubleBits)value & (DoubleBits{} + INT64_MAX)); }

// 16 -> 8 -> 4 -> 2 -> 1, whatever the width of a register.
SOFTINDEX_INLINE double fold(const DoubleLanes& value) {
  Doubles four[4 / double_width > 0 ? 4 / double_width : 1];
#if defined(__AVX512F__)
  const Doubles all = value.part[0] + value.part[1];
  four[0] = all + __builtin_shufflevector(all, all, 4, 5, 6, 7, 0, 1, 2, 3);
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
#elif defined(__AVX__)
  four[0] = (value.part[0] + value.part[2]) + (value.part[1] + value.part[3]);
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
#else
  for (int p = 0; p < 2; ++p) four[p] = (value.part[p] + value.part[p + 4]) + (value.part[p + 2] + value.part[p + 6]);
  const Doubles two = four[0] + four[1];
  return two[0] + two[1];
#endif
}

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
