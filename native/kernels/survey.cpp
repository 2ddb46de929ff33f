// What a query costs: its squared length, and how many of its numbers are not zero.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// Squares are added in float32 for 256 numbers, each in a lane of its block, and then in double.
Survey survey(const float* numbers, int64_t count) {
  constexpr int64_t block = lanes * lanes;
  DoubleLanes squares = {};
  IntVector numbers_not_zero = {};
  const int64_t whole = count / lanes * lanes;
  for (int64_t begin = 0; begin < whole; begin += block) {
    const int64_t end = begin + block < whole ? begin + block : whole;
    Lanes square = {};
    for (int64_t j = begin; j < end; j += lanes) {
      const Lanes value = load(numbers + j);
      add_product(square, value, value);
      for (int p = 0; p < parts; ++p) numbers_not_zero -= value.part[p] != 0.0f;
    }
    float sums[lanes];
    store(sums, square);
    for (int p = 0; p < double_parts; ++p) squares.part[p] += load_doubles(sums + p * double_width);
  }
  Survey result = {fold(squares), 0};
  for (int l = 0; l < width; ++l) result.numbers += numbers_not_zero[l];
  for (int64_t j = whole; j < count; ++j) {
    result.squares += (double)numbers[j] * (double)numbers[j];
    result.numbers += numbers[j] != 0.0f;
  }
  return result;
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
