// Single items of clusters that were not scanned: how likely one is to matter, and a search for it.
#include "index/extremes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "index/exclusion.h"
#include "index/scan.h"

namespace softindex {
namespace {

constexpr int64_t blocks_at_once = 64;
// Where more than one in so many items is to be scored, all of them are.
constexpr int64_t sparse = 4;
// An error of the sketch is a sum of d random terms: it exceeds four of its standard deviations once in 30,000 items.
constexpr double usual_errors = 4.0;

}  // namespace

void list_nearest_clusters(Query& query, double length, double scale) {
  const View& view = query.view;
  auto& ranked = query.workspace.ranked;
  ranked.clear();
  double nearest = std::numeric_limits<double>::infinity();
  for (int64_t c = 0; c < view.k; ++c) {
    if (view.empty(c) || view.norm_max[c] * probing::length_step < length || view.norm_min[c] > length) continue;
    const double distance = length * length - 2 * (scale * query.mean_dots[c] - view.half_squares[c]);
    if (!(distance <= probing::nearly * nearest)) continue;
    nearest = std::min(nearest, distance);
    ranked.push_back({distance, c});
  }
  std::sort(ranked.begin(), ranked.end());
  const double most = probing::nearly * nearest;
  while (!ranked.empty() && (ranked.size() > probing::nearest_clusters || ranked.back().first > most))
    ranked.pop_back();
}

Extremes::Extremes(Query& query)
    : query_(query), log_weight_(query.view.sizes.weight_of(query.request.law)), length_(measure_query(query)) {
  const View& view = query.view;
  end_ = view.tails.end(probing::nil / (double)view.n);
  // Adaptive probing has looked at everything that lies farther.
  const bool listed = view.outliers > 0 && query.request.probes < 0;
  unlisted_ = listed ? view.farthest : std::numeric_limits<float>::max();
}

void Extremes::aim_at(double log_mass, double variance) {
  least_ = log_mass;
  const bool measured = query_.variances != nullptr;
  if (means_ != nullptr && (measured || variance == variance_)) return;
  const View& view = query_.view;
  std::vector<double>&means = query_.workspace.logit_means, &inverse = query_.workspace.inverse_deviations;
  means.resize(view.k);
  inverse.resize(view.k);
  const double rate = query_.inverse_temperature();
  for (int64_t c = 0; c < view.k; ++c) {
    means[c] = (query_.mean_dots[c] - query_.pivot) * rate + log_weight_;
    // Without any variance nothing lies above the mean.
    inverse[c] = 1.0 / std::sqrt(std::max(measured ? query_.variances[c] : variance, 1e-300));
  }
  variance_ = variance, means_ = means.data(), inverse_ = inverse.data();
}

double Extremes::likely(int64_t cluster) const {
  const View& view = query_.view;
  const double above = least_ - means_[cluster];
  if (!(above > 0)) return 1.0;
  // No item is farther from the mean than this.
  const double radius = std::min(view.radii[cluster], unlisted_);
  if (above > length_.norm * radius * query_.inverse_temperature()) return 0.0;
  return std::min(1.0, (double)view.count(cluster) * view.tails.beyond(above * inverse_[cluster]));
}

bool Extremes::search(int64_t cluster) {
  const View& view = query_.view;
  if (sketched_.integers == nullptr) {
    query_.workspace.sketched_queries.resize(8 * view.sketch_groups);
    sketched_ = sketch_query(query_, query_.workspace.sketched_queries.data());
  }
  const double score = (least_ + std::log(probing::searched_part)) * query_.temperature + query_.pivot;
  const double trust = std::min(1.0, usual_errors / std::sqrt((double)view.d));
  const SketchQuery aimed = aim(query_, sketched_, length_, cluster, score, trust);
  const int64_t begin = view.offsets[cluster], end = view.offsets[cluster + 1];
  const int64_t last = (end + sketch_items - 1) / sketch_items;
  uint16_t masks[blocks_at_once];
  for (int64_t from = begin / sketch_items; from < last; from += blocks_at_once) {
    const int64_t to = std::min(last, from + blocks_at_once);
    query_.kernels.sketch_masks(view.sketch_blocks(from, to), &aimed, 1, masks, blocks_at_once);
    if (confirm(masks, from * sketch_items, std::max(begin, from * sketch_items), std::min(end, to * sketch_items)))
      return true;
  }
  return false;
}

// Whether one of the items from .. to that the masks name matters; the first bit is that of item `origin`.
bool Extremes::confirm(const uint16_t* masks, int64_t origin, int64_t from, int64_t to) const {
  const MaskedItems named = {masks, origin, from, to};
  const int64_t count = named.count();
  if (count * sparse > to - from) return confirm_any(from, to);
  for (int64_t block = 0; count > 0 && block < named.blocks(); ++block)
    for (uint32_t mask = named.mask_of(block); mask != 0; mask &= mask - 1) {
      const int64_t position = named.first_of(block) + __builtin_ctz(mask);
      if (confirm_any(position, position + 1)) return true;
    }
  return false;
}

bool Extremes::confirm_any(int64_t from, int64_t to) const {
  float* dots = query_.workspace.dots.data();
  scan_items(query_.kernels, query_.view, from, to, query_.vector, dots);
  hide(excluded_within(query_.excluded_while_probing(), from, to), from, dots);
  const double inverse = query_.inverse_temperature(), least = least_ + std::log(probing::searched_part);
  for (int64_t i = from; i < to; ++i) {
    const double bias = query_.view.bias == nullptr ? 0.0 : query_.view.bias[i];
    if ((dots[i - from] - query_.pivot) * inverse + bias >= least) return true;
  }
  return false;
}

}  // namespace softindex
