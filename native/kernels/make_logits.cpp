// Turns dot products into logits.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

SOFTINDEX_INLINE Doubles select(DoubleBits mask, Doubles yes, Doubles no) {
  return (Doubles)((mask & (DoubleBits)yes) | (~mask & (DoubleBits)no));
}

}  // namespace

// dots[i] = inverse (dots[i] + bias[i]) + log_bias[i]. Returns the largest, or NaN where one is not finite.
double make_logits(double* dots, int64_t count, const LogitTerms& terms) {
  Doubles top = Doubles{} - __builtin_inf();
  DoubleBits finite = DoubleBits{} - 1;
  int64_t i = 0;
  for (; i + double_width <= count; i += double_width) {
    Doubles value = load_doubles(dots + i);
    if (terms.bias != nullptr) value += load_doubles(terms.bias + i);
    value *= terms.inverse;
    if (terms.log_bias != nullptr) value += load_doubles(terms.log_bias + i);
    store_doubles(dots + i, value);
    finite &= (value < __builtin_inf()) & (value > -__builtin_inf());
    top = select(value > top, value, top);
  }
  double largest = top[0];
  bool all = true;
  for (int l = 0; l < double_width; ++l) {
    largest = top[l] > largest ? top[l] : largest;
    all &= finite[l] != 0;
  }
  for (; i < count; ++i) {
    const double biased = terms.bias == nullptr ? dots[i] : dots[i] + (double)terms.bias[i];
    dots[i] = terms.log_bias == nullptr ? terms.inverse * biased : terms.inverse * biased + (double)terms.log_bias[i];
    all &= dots[i] < __builtin_inf() && dots[i] > -__builtin_inf();
    largest = dots[i] > largest ? dots[i] : largest;
  }
  return all ? largest : __builtin_nan("");
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
