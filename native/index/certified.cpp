// Draws that are provably exact, from scanning only the clusters that bounds leave open.
#include "index/certified.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/interrupt.h"
#include "index/changing_weights.h"

namespace softindex {
namespace {

using State = Certificate::State;

// Codes with a larger error than this, over the temperature, would be rejected too often: then floats are scanned.
constexpr double largest_code_error = 0.7;

// Draws by rejection: a cluster in proportion to the bound of its mass, kept with the probability of its mass over the
// bound; a cluster once scanned is never rejected again. With codes the same is done for the item inside the cluster,
// with the coded weights as bounds.
class Sampler {
 public:
  explicit Sampler(Query& query)
      : query_(query), workspace_(query.workspace), certificate_(query),
        weights_(workspace_.upper, workspace_.upper_weights, workspace_.upper_sums) {}

  Bracket run(int64_t n, const ProvenSlots& slots) {
    workspace_.pending.clear();
    for (int64_t j = 0; j < n; ++j) {
      check_interrupt_every(1 << 6, j);
      draw(j, slots);
    }
    pick_pending(slots);
    const Bracket all = certificate_.bracket();
    for (int64_t j = 0; j < n; ++j) {
      const double logit = slots.log_prob[j];
      const double error = certificate_.item_error(query_.view.cluster_of(slots.positions[j]));
      slots.log_prob[j] = std::min(0.0, logit - all.value);
      slots.low[j] = std::min(slots.log_prob[j], logit - all.high - error);
      slots.high[j] = std::min(0.0, logit - all.low + error);
    }
    return certificate_.absolute(all);
  }

 private:
  // Until all draws are made, log_prob holds logits.
  void draw(int64_t j, const Slots& slots) {
    for (uint64_t attempt = 0;; ++attempt) {
      const Uniforms first = query_.stream.attempt(2 * attempt)((uint64_t)j);
      const Uniforms second = query_.stream.attempt(2 * attempt + 1)((uint64_t)j);
      const int64_t cluster = weights_.pick(first.first);
      if (cluster < 0) throw std::runtime_error("no cluster holds any weight");
      if (certificate_.state(cluster) != State::scanned) {
        const Uniforms next = query_.stream.attempt(2 * attempt + 2)((uint64_t)j);
        certificate_.expect(std::max<int64_t>(0, weights_.pick(next.first)));
      }
      if (!keep(cluster, first.second)) continue;
      if (certificate_.state(cluster) == State::scanned) {
        workspace_.pending.push_back({cluster, j, second.first, 0.0});
        return;
      }
      if (keep_item(cluster, second, &slots.positions[j], &slots.log_prob[j])) return;
    }
  }

  // Whether the cluster stays chosen, now that it is known and not only bounded.
  bool keep(int64_t cluster, double uniform) {
    const State before = certificate_.state(cluster);
    if (before == State::scanned) return true;
    const double bound = weights_[cluster], peak = weights_.peak(), upper = certificate_.upper(cluster);
    if (before == State::bounded && certificate_.codes_serve(cluster, largest_code_error)) certificate_.code(cluster);
    // Without codes, or where they are no better than the bounds, or when a cluster is chosen a second time.
    if (certificate_.state(cluster) == before || certificate_.upper(cluster) >= upper) certificate_.scan(cluster);
    const double known = certificate_.upper(cluster);
    weights_.lower(cluster, known);
    return uniform * bound < std::exp(known - peak);
  }

  // An item of a cluster that was just coded: proposed by its coded weight, kept by its true one.
  bool keep_item(int64_t cluster, const Uniforms& uniforms, int64_t* position, double* logit) const {
    const int64_t inside = pick_item(cluster, uniforms.first);
    const double share = workspace_.weights[inside] / certificate_.total(cluster);
    *position = query_.view.offsets[cluster] + inside;
    *logit = certificate_.logit(*position, certificate_.score(*position));
    return uniforms.second * weights_[cluster] * share < std::exp(*logit - weights_.peak());
  }

  int64_t pick_item(int64_t cluster, double uniform) const {
    return query_.kernels.pick(workspace_.weights.data(), workspace_.prefix.data(), query_.view.size(cluster), uniform);
  }

  // Items of draws whose clusters were scanned: each cluster is scanned once more for all draws that chose it.
  void pick_pending(const Slots& slots) {
    std::vector<PendingDraw>& pending = workspace_.pending;
    order_by_cluster(pending.data(), pending.data() + pending.size());
    for (size_t i = 0; i < pending.size(); ++i) {
      const PendingDraw& next = pending[i];
      if (i == 0 || next.cluster != pending[i - 1].cluster) certificate_.scan(next.cluster);
      const int64_t inside = pick_item(next.cluster, next.uniform);
      slots.positions[next.slot] = query_.view.offsets[next.cluster] + inside;
      slots.log_prob[next.slot] = certificate_.logit(slots.positions[next.slot], workspace_.dots[inside]);
    }
  }

  Query& query_;
  Workspace& workspace_;
  Certificate certificate_;
  ChangingWeights weights_;
};

}  // namespace

bool worth_bounding(const View& view) {
  // In rows of floats: the mean, its forms, and the arithmetic of a bound. Small indexes are read quickly anyway.
  const double forms = view.dispersion.kind == Forms::full ? (double)view.d / 4 : (double)view.dispersion.rank / 4;
  return view.n < 10000 || (double)view.k * (1.5 + forms) < (double)view.n / 8;
}

Bracket sample_certified(Query& query, int64_t n, const ProvenSlots& slots) { return Sampler(query).run(n, slots); }

}  // namespace softindex
