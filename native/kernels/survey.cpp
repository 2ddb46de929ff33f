// What a query costs: its squared length, and how many of its numbers are not zero.
#include "base/simd_squares.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

Survey survey(const float* numbers, int64_t count) {
  Squares squares;
  IntVector numbers_not_zero = {};
  const int64_t whole = count / lanes * lanes;
  for (int64_t begin = 0; begin < whole; begin += Squares::block) {
    const int64_t end = begin + Squares::block < whole ? begin + Squares::block : whole;
    for (int64_t j = begin; j < end; j += 2 * lanes)
      for (int s = 0; s < 2 && j + s * lanes < end; ++s) {
        const Lanes value = load(numbers + j + s * lanes);
        squares.add(value, s);
        for (int p = 0; p < parts; ++p) numbers_not_zero -= value.part[p] != 0.0f;
      }
    squares.end_block();
  }
  Survey result = {squares.total(), 0};
  for (int l = 0; l < width; ++l) result.numbers += numbers_not_zero[l];
  for (int64_t j = whole; j < count; ++j) {
    result.squares += (double)numbers[j] * (double)numbers[j];
    result.numbers += numbers[j] != 0.0f;
  }
  return result;
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
