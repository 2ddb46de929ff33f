// The scores of a tile of items under a mixture of logits: dot products of all pairs, the gate, the weighted sum.
#include "kernels/mixture_tile.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

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

// The score without a gate: the mean over the query's parts of the largest logit.
template <class Real>
SOFTINDEX_INLINE void mean_of_largest(const Mixture<Real>& mixture, const Real* logits, Real* scores) {
  for (int i = 0; i < registers; ++i) {
    Reals<Real> total = {};
    for (int64_t q = 0; q < mixture.query_parts; ++q) {
      const Real* row = logits + q * mixture.item_parts * tile<Real> + i * reals<Real>;
      Reals<Real> top = read(row);
      for (int64_t x = 1; x < mixture.item_parts; ++x) top = greater(top, read(row + x * tile<Real>));
      total += top;
    }
    write(scores + i * reals<Real>, total / (Real)mixture.query_parts);
  }
}

// weights (pairs, tile) without a gate: 1 / query_parts for the first largest logit of each of the query's parts.
SOFTINDEX_INLINE void weigh_largest(const Mixture<float>& mixture, const float* logits, float* weights) {
  const int64_t item_parts = mixture.item_parts;
  const Vector share = broadcast(1.0f / (float)mixture.query_parts);
  for (int i = 0; i < registers; ++i)
    for (int64_t q = 0; q < mixture.query_parts; ++q) {
      const int64_t at = q * item_parts * tile<float> + i * width;
      Vector top = read(logits + at), left = share;
      for (int64_t x = 1; x < item_parts; ++x) top = greater(top, read(logits + at + x * tile<float>));
      for (int64_t x = 0; x < item_parts; ++x) {
        const Vector weight = select(read(logits + at + x * tile<float>) == top, left, Vector{});
        write(weights + at + x * tile<float>, weight);
        left -= weight;
      }
    }
}

// scores (tile): the logits (pairs, tile), weighted by the softmax of the gate's outputs (pairs, tile).
template <class Real>
SOFTINDEX_INLINE void combine(int64_t pairs, const Real* logits, const Real* gate, Real limit, Real* scores) {
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

template <class Real>
SOFTINDEX_INLINE void all_scores(const Mixture<Real>& mixture, const Real* query, const Real* query_gates,
                                 const Real* columns, const Real* item_gates, Real limit, Real* work, Real* scores) {
  const int64_t pairs = mixture.query_parts * mixture.item_parts, hidden = mixture.hidden;
  Real *logits = work, *middle = work + pairs * tile<Real>, *gate = middle + hidden * tile<Real>;
  all_logits(mixture, query, columns, logits);
  if (!mixture.gated) return mean_of_largest(mixture, logits, scores);
  for (int64_t h = 0; h < hidden; h += block_rows) {
    const Block<Real> sums = product(mixture.first + h * pairs, mixture.first_bias + h, logits, pairs);
    for (int r = 0; r < block_rows; ++r)
      for (int i = 0; i < registers; ++i)
        write(middle + (h + r) * tile<Real> + i * reals<Real>, silu(sums.sum[r][i], limit));
  }
  for (int64_t p = 0; p < pairs; p += block_rows) {
    const Block<Real> sums = product(mixture.second + p * hidden, mixture.second_bias + p, middle, hidden);
    for (int r = 0; r < block_rows && p + r < pairs; ++r)
      for (int i = 0; i < registers; ++i) {
        const int64_t at = (p + r) * tile<Real> + i * reals<Real>;
        Reals<Real> z = sums.sum[r][i];
        if (query_gates != nullptr) z = multiply_add(broadcast(query_gates[p + r]), read(item_gates + at), z);
        write(gate + at, silu(z, limit));
      }
  }
  combine(pairs, logits, gate, limit, scores);
}

}  // namespace

// scores (tile) of a packed query with columns (item_parts * d, tile). query_gates (pairs) and item_gates (pairs, tile)
// may be null. work: (pairs + hidden + pairs, tile).
void mixture_scores(const Mixture<float>& mixture, const float* query, const float* query_gates, const float* columns,
                    const float* item_gates, float* work, float* scores) {
  all_scores(mixture, query, query_gates, columns, item_gates, float_limit, work, scores);
}
void mixture_scores_double(const Mixture<double>& mixture, const double* query, const double* query_gates,
                           const double* columns, const double* item_gates, double* work, double* scores) {
  all_scores(mixture, query, query_gates, columns, item_gates, double_limit, work, scores);
}

// weights (pairs, tile): those that mixture_scores, which left its `work`, gave to the logits. They sum to one.
void mixture_weights(const Mixture<float>& mixture, const float* work, float* weights) {
  if (!mixture.gated) return weigh_largest(mixture, work, weights);
  const int64_t pairs = mixture.query_parts * mixture.item_parts;
  const float* gate = work + (pairs + mixture.hidden) * tile<float>;
  for (int i = 0; i < registers; ++i) {
    Vector top = read(gate + i * width), total = {};
    for (int64_t p = 1; p < pairs; ++p) top = greater(top, read(gate + p * tile<float> + i * width));
    for (int64_t p = 0; p < pairs; ++p) {
      const int64_t at = p * tile<float> + i * width;
      const Vector weight = exponential(greater(read(gate + at) - top, broadcast(-float_limit)), 1.0f);
      total += weight;
      write(weights + at, weight);
    }
    for (int64_t p = 0; p < pairs; ++p) {
      const int64_t at = p * tile<float> + i * width;
      write(weights + at, read(weights + at) / total);
    }
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
