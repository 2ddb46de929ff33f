// A law from which items were taken away: those that a query excludes, or those that it has drawn.
#include "index/remainder.h"

#include <cmath>

namespace softindex {

Remainder::Remainder(const Query& query)
    : query_(query), left_(query.view.n), masses_(query.log_masses, query.log_masses + query.view.k),
      place_(query.view.k, -1) {}

Mass Remainder::weigh(int64_t cluster, const Kept& kept) const {
  const View& view = query_.view;
  return query_.kernels.weigh(&dots_[kept.begin], view.size(cluster), query_.inverse_temperature(),
                              view.bias_at(view.offsets[cluster]), nullptr, nullptr);
}

Remainder::Kept& Remainder::keep(int64_t cluster) {
  if (place_[cluster] >= 0) return kept_[place_[cluster]];
  const int64_t begin = (int64_t)dots_.size(), count = query_.view.size(cluster);
  dots_.resize(begin + count);
  query_.kernels.scan(query_.view.cluster_items(cluster), query_.vector, &dots_[begin]);
  Kept kept = {begin, count, masses_[cluster], 0.0f, 0.0};
  const Mass full = weigh(cluster, kept);
  kept.reference = full.reference;
  kept.log_sum = full.peak + std::log(full.total);
  place_[cluster] = (int64_t)kept_.size();
  kept_.push_back(kept);
  return kept_.back();
}

// The mass falls as the sum of the items does. The sum is computed again from the items left, never by subtraction:
// what a dominating item leaves behind keeps all its digits.
void Remainder::lower(int64_t cluster, const Kept& kept) {
  if (kept.left == 0) {
    masses_[cluster] = minus_infinity;
    return;
  }
  const Mass rest = weigh(cluster, kept);
  const double fall = ((double)rest.reference - kept.reference) / query_.request.temperature;
  masses_[cluster] = kept.log_mass + (fall + (rest.peak + std::log(rest.total) - kept.log_sum));
}

void Remainder::take(const Positions& positions) {
  const View& view = query_.view;
  for (int64_t i = 0; i < positions.count;) {
    const int64_t cluster = view.cluster_of(positions.first[i]);
    const int64_t begin = view.offsets[cluster], end = view.offsets[cluster + 1];
    Kept& kept = keep(cluster);
    for (; i < positions.count && positions.first[i] < end; ++i) {
      dots_[kept.begin + positions.first[i] - begin] = gone;
      --kept.left;
      --left_;
    }
    lower(cluster, kept);
  }
}

const float* Remainder::dots(int64_t cluster) { return &dots_[keep(cluster).begin]; }

Total Remainder::total() const { return query_.kernels.weigh_masses(masses_.data(), query_.view.k, nullptr, nullptr); }

}  // namespace softindex
