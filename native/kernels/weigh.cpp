// Turns dot products into softmax weights, their sum and its prefix sums.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

constexpr float padding = -3.0e38f;  // fills the last block: its exponential is zero

// exp(x) for x <= 0, to three units in the last place; zero below -87, where float32 underflows.
SOFTINDEX_INLINE Vector exponential(Vector x) {
  // ln 2 in two terms: the first has few enough digits that its product with an integer below 2^9 is exact.
  const float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f, log2_e = 1.44269504f, shift = 12582912.0f;
  const IntVector in_range = x >= -87.0f;
  const Vector clamped = larger(x, splat(-87.0f));
  const Vector shifted = clamped * log2_e + shift;  // adding 1.5 * 2^23 rounds to the nearest integer
  const Vector power = shifted - shift;
  const Vector r = (clamped - power * ln2_high) - power * ln2_low;
  // Taylor to degree seven: |r| <= ln(2)/2, so the first omitted term is below 6e-9.
  Vector value = splat(1.0f / 5040.0f);
  value = value * r + 1.0f / 720.0f;
  value = value * r + 1.0f / 120.0f;
  value = value * r + 1.0f / 24.0f;
  value = value * r + 1.0f / 6.0f;
  value = value * r + 0.5f;
  value = value * r + 1.0f;
  value = value * r + 1.0f;
  const IntVector exponent = (IntVector)shifted - (IntVector)splat(shift);
  return (Vector)(((IntVector)value + (exponent << 23)) & in_range);
}

// Eight running maxima: a single one would have to wait for each comparison.
SOFTINDEX_INLINE double largest_of(const double* values, int64_t count) {
  double top[8];
  for (double& value : top) value = values[0];
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int l = 0; l < 8; ++l) top[l] = values[i + l] > top[l] ? values[i + l] : top[l];
  for (; i < count; ++i) top[0] = values[i] > top[0] ? values[i] : top[0];
  double best = top[0];
  for (double value : top) best = value > best ? value : best;
  return best;
}

// Exponentiates one block of 64, into `weights` unless that is null, and returns its sum.
SOFTINDEX_INLINE float exponentiate_block(Lanes (&part)[4], float* weights) {
#pragma GCC unroll 4
  for (int s = 0; s < 4; ++s)
    for (int p = 0; p < parts; ++p) part[s].part[p] = exponential(part[s].part[p]);
  if (weights != nullptr)
    for (int s = 0; s < 4; ++s) store(weights + s * lanes, part[s]);
  return sum(add(add(part[0], part[1]), add(part[2], part[3])));
}

// A logit relative to the largest, as float32. Below -1e4 the exact value does not matter; -infinity becomes -1e4.
SOFTINDEX_INLINE float narrow(double relative) { return relative > -1e4 ? (float)relative : -1e4f; }

// The logits of up to 64 items, relative to the largest: (dot - reference) * inverse_temperature.
struct Relative {
  const float* dots;
  float reference, inverse_temperature;

  SOFTINDEX_INLINE void operator()(int64_t from, int64_t count, float* to) const {
    // Subtract the reference first: near the top the difference of two dot products is exact, at any temperature.
    for (int64_t i = 0; i < count; ++i) to[i] = (dots[from + i] - reference) * inverse_temperature;
  }
  SOFTINDEX_INLINE Lanes lanes_from(int64_t from) const {
    Lanes result = load(dots + from);
    for (int p = 0; p < parts; ++p) result.part[p] = (result.part[p] - reference) * inverse_temperature;
    return result;
  }
};

// The logits of sixteen items, where they are computed one by one.
template <class Logits>
SOFTINDEX_INLINE Lanes gather_lanes(const Logits& logits, int64_t from) {
  float values[lanes];
  logits(from, lanes, values);
  return load(values);
}

// The same with biases, in double: a large bias may cancel a large negative logit, and float32 would lose the digits of
// their sum.
struct RelativeBiased {
  const float* dots;
  const float* bias;
  double reference, inverse_temperature, peak;

  SOFTINDEX_INLINE double logit(int64_t i) const { return (dots[i] - reference) * inverse_temperature + bias[i]; }
  SOFTINDEX_INLINE void operator()(int64_t from, int64_t count, float* to) const {
    for (int64_t i = 0; i < count; ++i) to[i] = narrow(logit(from + i) - peak);
  }
  SOFTINDEX_INLINE Lanes lanes_from(int64_t from) const { return gather_lanes(*this, from); }
};

struct FromLogMasses {
  const double* log_masses;
  double peak;

  SOFTINDEX_INLINE void operator()(int64_t from, int64_t count, float* to) const {
    for (int64_t i = 0; i < count; ++i) to[i] = narrow(log_masses[from + i] - peak);
  }
  SOFTINDEX_INLINE Lanes lanes_from(int64_t from) const { return gather_lanes(*this, from); }
};

// The logits of the last items, fewer than 64, and padding.
template <class Logits>
SOFTINDEX_INLINE void fill_block(const Logits& logits, int64_t from, int64_t count, float* block) {
  Lanes nothing;
  for (int p = 0; p < parts; ++p) nothing.part[p] = splat(padding);
  for (int s = 0; s < 4; ++s) store(block + s * lanes, nothing);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(block + i, logits.lanes_from(from + i));
  logits(from + i, count - i, block + i);
}

// Weights and prefix sums (either may be null), block by block; the total is kept in double.
template <class Logits>
SOFTINDEX_INLINE double accumulate(const Logits& logits, int64_t count, float* weights, double* prefix) {
  double total = 0;
  int64_t from = 0;
  for (; from + block_size <= count; from += block_size) {
    Lanes part[4];
    for (int s = 0; s < 4; ++s) part[s] = logits.lanes_from(from + s * lanes);
    total += exponentiate_block(part, weights == nullptr ? nullptr : weights + from);
    if (prefix != nullptr) prefix[from / block_size] = total;
  }
  if (from == count) return total;
  float block[block_size];
  Lanes part[4];
  fill_block(logits, from, count - from, block);
  for (int s = 0; s < 4; ++s) part[s] = load(block + s * lanes);
  total += exponentiate_block(part, block);
  if (weights != nullptr) std::memcpy(weights + from, block, (count - from) * sizeof(float));
  if (prefix != nullptr) prefix[from / block_size] = total;
  return total;
}

}  // namespace

// count >= 1. Fills weights (count) and prefix (blocks(count)), the running total after each block; either may be null.
Mass weigh(const float* dots, int64_t count, double inverse_temperature, const float* bias, float* weights,
           double* prefix) {
  Mass mass;
  mass.reference = largest(dots, count);
  mass.peak = 0.0;
  if (bias == nullptr) {
    mass.total = accumulate(Relative{dots, mass.reference, (float)inverse_temperature}, count, weights, prefix);
    return mass;
  }
  RelativeBiased logits = {dots, bias, mass.reference, inverse_temperature, 0.0};
  mass.peak = logits.logit(0);
  for (int64_t i = 1; i < count; ++i) mass.peak = logits.logit(i) > mass.peak ? logits.logit(i) : mass.peak;
  logits.peak = mass.peak;
  mass.total = accumulate(logits, count, weights, prefix);
  return mass;
}

// The same for clusters, from log masses in double. An empty cluster has -infinity.
Total weigh_masses(const double* log_masses, int64_t count, float* weights, double* prefix) {
  const double peak = largest_of(log_masses, count);
  const double total = accumulate(FromLogMasses{log_masses, peak}, count, weights, prefix);
  return {peak, __builtin_log(total)};
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
