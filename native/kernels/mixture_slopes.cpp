// How the scores of a tile of items change with their logits.
#include "kernels/mixture_gate.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

// The derivative of silu.
SOFTINDEX_INLINE Vector silu_slope(Vector x) {
  const Vector clamped = greater(lesser(x, broadcast(float_limit)), broadcast(-float_limit));
  const Vector sigmoid = 1.0f / (exponential(clamped, -1.0f) + 1.0f);
  return multiply_add(sigmoid * (1.0f - sigmoid), clamped, sigmoid);
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

// weights (pairs, tile): the softmax of the gate's outputs. change (pairs, tile): the derivatives of the score with
// respect to these outputs, which may overwrite them.
SOFTINDEX_INLINE void weigh_outputs(int64_t pairs, const float* logits, const float* gate, float* weights,
                                    float* change) {
  for (int i = 0; i < registers; ++i) {
    Vector top = read(gate + i * width), total = {}, weighted = {};
    for (int64_t p = 1; p < pairs; ++p) top = greater(top, read(gate + p * tile<float> + i * width));
    for (int64_t p = 0; p < pairs; ++p) {
      const int64_t at = p * tile<float> + i * width;
      const Vector weight = exponential(greater(read(gate + at) - top, broadcast(-float_limit)), 1.0f);
      total += weight;
      weighted = multiply_add(weight, read(logits + at), weighted);
      write(weights + at, weight);
    }
    for (int64_t p = 0; p < pairs; ++p) {
      const int64_t at = p * tile<float> + i * width;
      const Vector weight = read(weights + at) / total;
      write(weights + at, weight);
      write(change + at, weight * (read(logits + at) - weighted / total));
    }
  }
}

// The part of the slopes that the gate adds, back through its two layers.
SOFTINDEX_INLINE void add_gate(const Mixture<float>& mixture, const float* query_gates, const float* item_gates,
                               const float* logits, float* middle, float* change, float* slopes) {
  const int64_t pairs = mixture.query_parts * mixture.item_parts, hidden = mixture.hidden;
  for (int64_t p = 0; p < pairs; p += block_rows) {
    const Block<float> sums = product(mixture.second + p * hidden, mixture.second_bias + p, middle, hidden);
    for (int r = 0; r < block_rows && p + r < pairs; ++r)
      for (int i = 0; i < registers; ++i) {
        const int64_t at = (p + r) * tile<float> + i * width;
        Vector z = sums.sum[r][i];
        if (query_gates != nullptr) z = multiply_add(broadcast(query_gates[p + r]), read(item_gates + at), z);
        write(change + at, read(change + at) * silu_slope(z));
      }
  }
  for (int64_t h = 0; h < hidden; h += block_rows) {
    const Block<float> before = product(mixture.first + h * pairs, mixture.first_bias + h, logits, pairs);
    const Block<float> back = product<float>(mixture.second_back + h * pairs, nullptr, change, pairs);
    for (int r = 0; r < block_rows; ++r)
      for (int i = 0; i < registers; ++i)
        write(middle + (h + r) * tile<float> + i * width, back.sum[r][i] * silu_slope(before.sum[r][i]));
  }
  for (int64_t p = 0; p < pairs; p += block_rows) {
    const Block<float> back = product<float>(mixture.first_back + p * hidden, nullptr, middle, hidden);
    for (int r = 0; r < block_rows && p + r < pairs; ++r)
      for (int i = 0; i < registers; ++i) {
        float* to = slopes + (p + r) * tile<float> + i * width;
        write(to, read(to) + back.sum[r][i]);
      }
  }
}

}  // namespace

// slopes (pairs, tile): the derivatives of the scores with respect to the logits. `work` is what mixture_scores left of
// the same query and items; it is overwritten. Without a gate, the slopes of the first of equal logits.
void mixture_slopes(const Mixture<float>& mixture, const float* query_gates, const float* item_gates, float* work,
                    float* slopes) {
  const int64_t pairs = mixture.query_parts * mixture.item_parts;
  float *middle = work + pairs * tile<float>, *gate = middle + mixture.hidden * tile<float>;
  if (!mixture.gated) return weigh_largest(mixture, work, slopes);
  weigh_outputs(pairs, work, gate, slopes, gate);
  add_gate(mixture, query_gates, item_gates, work, middle, gate, slopes);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
