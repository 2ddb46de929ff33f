// The scores of a tile of items under a mixture of logits: dot products of all pairs, the gate, the weighted sum.
#include "kernels/mixture_gate.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

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
  weighted_mean(pairs, logits, gate, limit, scores);
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

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
