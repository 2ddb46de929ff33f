// A law from which items were taken away: those that a query excludes, or those that it has drawn.
#include "index/remainder.h"

#include <cmath>

#include "index/exclusion.h"
#include "index/masses.h"
#include "index/scan.h"

namespace softindex {
namespace {

// Scoring an item alone takes as long as several in a row: a cluster is scanned for the items that it lost if it has
// fewer than this many for each of them, or is small.
constexpr int64_t scan_per_item = 6;
constexpr int64_t small_cluster = 64;
// Numbers of an index whose law is conditioned in any case: that takes no longer than a call from Python.
constexpr int64_t small_index = 1 << 18;
// A larger share is never subtracted: what a dominating item leaves behind would lose its digits, and an estimated mass
// that so few items explain may be far too small.
constexpr double largest_share = 0.5;
// Rows that are fetched before they are read.
constexpr int64_t ahead = 8;

void fetch(const View& view, int64_t position) {
  const StoredItem item = stored_at(view, position);
  for (int64_t byte = 0; byte < item.bytes; byte += 64) __builtin_prefetch((const char*)item.first + byte);
}

// The cluster of a position that lies in this cluster or a later one.
int64_t cluster_from(const View& view, int64_t cluster, int64_t position) {
  int64_t step = 1;
  while (cluster + step <= view.k && view.offsets[cluster + step] <= position) {
    cluster += step;
    step *= 2;
  }
  const int64_t* begin = view.offsets + cluster;
  return std::upper_bound(begin, view.offsets + std::min(cluster + step, view.k) + 1, position) - view.offsets - 1;
}

}  // namespace

bool scan_is_cheaper(const View& view, const Positions& excluded) {
  if (view.extent * view.d <= small_index) return false;
  const int64_t* const end = excluded.first + excluded.count;
  int64_t cluster = 0, cost = 0;
  for (const int64_t* next = excluded.first; next != end;) {
    cluster = cluster_from(view, cluster, *next);
    const int64_t* first = next;
    next = std::lower_bound(next, std::min(end, next + view.size(cluster)), view.offsets[cluster + 1]);
    const int64_t size = view.size(cluster), alone = (next - first) * scan_per_item;
    cost += size > small_cluster ? std::min(size, alone) : size;
    if (cost * 2 > view.extent) return true;
  }
  return false;
}

Remainder::Remainder(const Query& query)
    : query_(query), excluded_(query.request.excluded_of(query.number)),
      without_excluded_(query.request.law.kind == Kind::exhaustive || query.without_excluded),
      estimates_sums_(without_excluded_ || query.request.probes != 0), left_(query.view.n - excluded_.count),
      masses_(query.log_masses, query.log_masses + query.view.k), place_(query.view.k, -1) {
  if (!without_excluded_) exclude();
}

int64_t Remainder::left(int64_t cluster) const {
  if (place_[cluster] >= 0) return kept_[place_[cluster]].left;
  const View& view = query_.view;
  return view.count(cluster) - excluded_within(excluded_, view.offsets[cluster], view.offsets[cluster + 1]).count;
}

bool Remainder::asks_mass(int64_t cluster, int64_t left) const {
  const int64_t size = query_.view.count(cluster);
  return estimates_sums_ && size > small_cluster && (size - left) * scan_per_item < size;
}

void Remainder::exclude() {
  const View& view = query_.view;
  const int64_t* const end = excluded_.first + excluded_.count;
  int64_t cluster = 0;
  for (const int64_t* next = excluded_.first; next != end;) {
    cluster = cluster_from(view, cluster, *next);
    const int64_t* first = next;
    while (next != end && *next < view.offsets[cluster + 1]) ++next;
    exclude_from(cluster, {first, next - first});
  }
}

void Remainder::exclude_from(int64_t cluster, const Positions& excluded) {
  const int64_t left = query_.view.count(cluster) - excluded.count;
  if (left == 0)
    masses_[cluster] = minus_infinity;
  else if (!asks_mass(cluster, left) || !lower_by_mass(cluster, excluded))
    lower_by_scan(cluster, excluded);
}

// The share of a cluster's mass that one of its items has.
double Remainder::share_of(double log_mass, float dot, int64_t position) const {
  const double bias = query_.view.bias == nullptr ? 0.0 : query_.view.bias[position];
  return std::exp((dot - query_.pivot) * query_.inverse_temperature() + bias - log_mass);
}

bool Remainder::lower_by_mass(int64_t cluster, const Positions& excluded) {
  const View& view = query_.view;
  float* dots = query_.workspace.dots.data();
  for (int64_t i = 0; i < excluded.count; ++i) {
    // Most clusters have one: those of the next clusters are fetched as well.
    const int64_t* later = excluded.first + i + ahead;
    if (later < excluded_.first + excluded_.count) fetch(view, *later);
    scan_items(query_.kernels, view, excluded.first[i], excluded.first[i] + 1, query_.vector, dots + i);
  }
  double lost = 0;
  for (int64_t i = 0; i < excluded.count; ++i) lost += share_of(masses_[cluster], dots[i], excluded.first[i]);
  scored_ += excluded.count;
  if (!(lost <= largest_share)) return false;
  masses_[cluster] += std::log1p(-lost);
  return true;
}

// The dot products are not kept: few of many clusters are drawn from later.
void Remainder::lower_by_scan(int64_t cluster, const Positions& excluded) {
  const View& view = query_.view;
  float* dots = query_.workspace.dots.data();
  scan_items(query_.kernels, view, view.offsets[cluster], view.offsets[cluster + 1], query_.vector, dots);
  scored_ += view.size(cluster);
  const Sum full = weigh(cluster, dots);
  hide(excluded, view.offsets[cluster], dots);
  masses_[cluster] = mass_after(masses_[cluster], full, weigh(cluster, dots));
}

Remainder::Sum Remainder::weigh(int64_t cluster, const float* dots) const {
  const View& view = query_.view;
  const Mass mass = weigh_items(query_, view.offsets[cluster], view.size(cluster), dots);
  return {mass.reference, mass.peak + std::log(mass.total)};
}

// The mass falls as the sum of the items does. The sum is computed again from the items left, never by subtraction:
// what a dominating item leaves behind keeps all its digits.
double Remainder::mass_after(double log_mass, const Sum& full, const Sum& rest) const {
  const double fall = ((double)rest.reference - full.reference) / query_.temperature;
  return log_mass + (fall + (rest.log_sum - full.log_sum));
}

Remainder::Kept& Remainder::keep(int64_t cluster) {
  if (place_[cluster] >= 0) return kept_[place_[cluster]];
  const View& view = query_.view;
  const int64_t begin = (int64_t)dots_.size(), size = view.size(cluster);
  const Positions excluded = excluded_within(excluded_, view.offsets[cluster], view.offsets[cluster + 1]);
  Kept kept = {begin, view.count(cluster) - excluded.count, query_.log_masses[cluster], 0.0, {}};
  dots_.resize(begin + size);
  float* dots = &dots_[begin];
  scan_items(query_.kernels, view, view.offsets[cluster], view.offsets[cluster + 1], query_.vector, dots);
  scored_ += size;
  if (!without_excluded_) {
    kept.full = weigh(cluster, dots);
    for (int64_t i = 0; i < excluded.count; ++i)
      kept.lost += share_of(kept.log_mass, dots[excluded.first[i] - view.offsets[cluster]], excluded.first[i]);
  }
  hide(excluded, view.offsets[cluster], dots);
  if (without_excluded_ && kept.left > 0) kept.full = weigh(cluster, dots);
  place_[cluster] = (int64_t)kept_.size();
  kept_.push_back(kept);
  return kept_.back();
}

void Remainder::take(int64_t position) {
  const int64_t cluster = query_.view.cluster_of(position);
  Kept& kept = keep(cluster);
  float* dots = &dots_[kept.begin];
  float& dot = dots[position - query_.view.offsets[cluster]];
  kept.lost += share_of(kept.log_mass, dot, position);
  dot = gone;
  --left_;
  if (--kept.left == 0)
    masses_[cluster] = minus_infinity;
  else if (asks_mass(cluster, kept.left) && kept.lost <= largest_share)
    masses_[cluster] = kept.log_mass + std::log1p(-kept.lost);
  else
    masses_[cluster] = mass_after(kept.log_mass, kept.full, weigh(cluster, dots));
}

const float* Remainder::dots(int64_t cluster) { return &dots_[keep(cluster).begin]; }

Total Remainder::total() const { return query_.kernels.weigh_masses(masses_.data(), query_.view.k, nullptr, nullptr); }

}  // namespace softindex
