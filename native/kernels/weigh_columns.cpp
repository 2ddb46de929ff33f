// How much each column may add to dot products with a query.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

SOFTINDEX_INLINE Vector magnitude(Vector value) { return (Vector)((IntVector)value & INT32_MAX); }

SOFTINDEX_INLINE DoubleLanes widen(const Lanes& value) {
  float numbers[lanes];
  store(numbers, value);
  DoubleLanes result;
  for (int p = 0; p < double_parts; ++p) result.part[p] = load_doubles(numbers + p * double_width);
  return result;
}

}  // namespace

// Weights |query scale| of `count` times sixteen columns, in blocks of sixteen times sixteen: the columns
// 256 b + 16 i + l, i = 0 .. 15, are tile 16 b + l, and sums has the sum of each tile. So sums never cross lanes. Adds
// to the moments, lane by lane, query^2 (in float32 within a block) and weight^2, and counts the numbers that are
// not zero and the columns with any weight.
void weigh_columns(const float* query, const float* scales, int64_t count, double* sums, ColumnMoments& moments) {
  DoubleLanes squares = load_double_lanes(moments.squares), weights = load_double_lanes(moments.squared_weights);
  IntVector used = {}, numbers = {};
  for (int64_t begin = 0; begin < count; begin += lanes) {
    const int64_t end = begin + lanes < count ? begin + lanes : count;
    DoubleLanes sum = {};
    Lanes square = {};
    for (int64_t i = begin; i < end; ++i) {
      const Lanes value = load(query + i * lanes), scale = load(scales + i * lanes);
      Lanes weight;
      for (int p = 0; p < parts; ++p) {
        weight.part[p] = magnitude(value.part[p] * scale.part[p]);
        used -= weight.part[p] > 0.0f;
        numbers -= value.part[p] != 0.0f;
      }
      add_product(square, value, value);
      const DoubleLanes wide = widen(weight);
      for (int p = 0; p < double_parts; ++p) {
        sum.part[p] += wide.part[p];
        weights.part[p] += wide.part[p] * wide.part[p];
      }
    }
    store_double_lanes(sums + begin, sum);
    const DoubleLanes wide = widen(square);
    for (int p = 0; p < double_parts; ++p) squares.part[p] += wide.part[p];
  }
  store_double_lanes(moments.squares, squares);
  store_double_lanes(moments.squared_weights, weights);
  for (int l = 0; l < width; ++l) {
    moments.used += used[l];
    moments.numbers += numbers[l];
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
