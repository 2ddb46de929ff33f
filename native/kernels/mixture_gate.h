// The functions that the gate of a mixture applies to each number of a tile.
#pragma once

#include "kernels/mixture_tile.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

constexpr float float_limit = 86.0f;    // exp(-86) is about the smallest that float32 represents to full precision
constexpr double double_limit = 700.0;  // likewise for double

// exp(sign * x) for sign 1 or -1 and |x| <= 86. The error is at most eight half units in the last place, plus two for
// each unit of x.
SOFTINDEX_INLINE Vector exponential(Vector x, float sign) {
  const Vector log2_e = broadcast(sign * 1.44269504f), shift = broadcast(12582912.0f);
  const Vector shifted = multiply_add(x, log2_e, shift);  // adding 1.5 * 2^23 rounds to the nearest integer
  const Vector f = multiply_add(x, log2_e, shift - shifted);
  // The polynomial closest to 2^f for |f| <= 1/2, within 2.6 half units in the last place.
  Vector value = broadcast(0.00132764724f);
  const float lower[] = {0.00967554096f, 0.0555071309f, 0.240221202f, 0.693146944f, 1.00000012f};
  for (float next : lower) value = multiply_add(value, f, broadcast(next));
  return (Vector)((IntVector)value + ((IntVector)shifted << 23));
}

// The same in double.
SOFTINDEX_INLINE DoubleVector exponential(DoubleVector x, double sign) {
  const DoubleVector log2_e = broadcast(sign * 1.4426950408889634), shift = broadcast(6755399441055744.0);
  const DoubleVector shifted = multiply_add(x, log2_e, shift), n = shifted - shift;
  // ln 2 in two terms: the first has few enough digits that its product with an integer is exact.
  DoubleVector r = multiply_add(n, broadcast(-0.693147180369123816490), sign * x);
  r = multiply_add(n, broadcast(-1.90821492927058770002e-10), r);
  // Taylor to degree 13: |r| <= ln(2)/2, so the first omitted term is below 1e-17.
  DoubleVector value = broadcast(1.0 / 6227020800.0);
  const double factorials[] = {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0,
                               120.0,       24.0,       6.0,       2.0,      1.0,     1.0};
  for (double factorial : factorials) value = multiply_add(value, r, broadcast(1.0 / factorial));
  return (DoubleVector)((LongVector)value + ((LongVector)shifted << 52));
}

// x times its sigmoid. Beyond the limits the sigmoid is 0 or 1 to all digits that matter.
template <class Type, class Real>
SOFTINDEX_INLINE Type silu(Type x, Real limit) {
  const Type clamped = greater(lesser(x, broadcast(limit)), broadcast(-limit));
  return x / (exponential(clamped, (Real)-1) + (Real)1);
}

// scores (tile): the logits (pairs, tile), weighted by the softmax of the gate's outputs (pairs, tile).
template <class Real>
SOFTINDEX_INLINE void weighted_mean(int64_t pairs, const Real* logits, const Real* gate, Real limit, Real* scores) {
  for (int i = 0; i < registers; ++i) {
    Reals<Real> top = read(gate + i * reals<Real>), total = {}, weighted = {};
    for (int64_t p = 1; p < pairs; ++p) top = greater(top, read(gate + p * tile<Real> + i * reals<Real>));
    for (int64_t p = 0; p < pairs; ++p) {
      const int64_t at = p * tile<Real> + i * reals<Real>;
      const Reals<Real> weight = exponential(greater(read(gate + at) - top, broadcast(-limit)), (Real)1);
      total += weight;
      weighted = multiply_add(weight, read(logits + at), weighted);
    }
    write(scores + i * reals<Real>, weighted / total);
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
