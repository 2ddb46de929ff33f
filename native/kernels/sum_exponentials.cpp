// The sum of exponentials in double.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

SOFTINDEX_INLINE Doubles select(DoubleBits mask, Doubles yes, Doubles no) {
  return (Doubles)((mask & (DoubleBits)yes) | (~mask & (DoubleBits)no));
}

// exp(x) for x <= 0, within 1e-15 of itself; zero below -700, where doubles are about to underflow.
SOFTINDEX_INLINE Doubles exponential(Doubles x) {
  // ln 2 in two terms: the first has few enough digits that its product with an integer below 2^10 is exact.
  const double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33, log2_e = 0x1.71547652b82fep0;
  const double shift = 0x1.8p52;
  const DoubleBits in_range = x >= -700.0;
  const Doubles clamped = select(in_range, x, Doubles{} - 700.0);
  const Doubles shifted = clamped * log2_e + shift;  // adding 1.5 * 2^52 rounds to the nearest integer
  const Doubles power = shifted - shift;
  const Doubles r = (clamped - power * ln2_high) - power * ln2_low;
  // Taylor to degree thirteen: |r| <= ln(2)/2, so the first omitted term is below 5e-18.
  Doubles value = Doubles{} + 1.0 / 6227020800.0;
  const double inverse_factorials[] = {1.0 / 479001600.0,
                                       1.0 / 39916800.0,
                                       1.0 / 3628800.0,
                                       1.0 / 362880.0,
                                       1.0 / 40320.0,
                                       1.0 / 5040.0,
                                       1.0 / 720.0,
                                       1.0 / 120.0,
                                       1.0 / 24.0,
                                       1.0 / 6.0,
                                       0.5,
                                       1.0,
                                       1.0};
  for (const double term : inverse_factorials) value = value * r + term;
  const DoubleBits exponent = (DoubleBits)shifted - (DoubleBits)(Doubles{} + shift);
  return select(in_range, (Doubles)((DoubleBits)value + (exponent << 52)), Doubles{});
}

}  // namespace

// The sum of exp(logits[i] - peak), count: a multiple of sixteen. No logit is above the peak; -infinity adds nothing.
double sum_exponentials(const double* logits, int64_t count, double peak) {
  DoubleLanes total = {};
  for (int64_t i = 0; i < count; i += lanes)
    for (int p = 0; p < double_parts; ++p)
      total.part[p] += exponential(load_doubles(logits + i + p * double_width) - peak);
  return fold(total);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
