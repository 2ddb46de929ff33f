// The search of one query for its k best items: what is found, which clusters to visit, and what the others may hold.
#include "index/best_search.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "index/scan.h"

namespace softindex {
namespace {

constexpr int64_t most_noted = 32;
// Where more than one in so many items is to be scored, all of them are: memory in sequence is read four times faster.
constexpr int64_t sparse = 4;
// An error of the sketch is a sum of d random terms: it exceeds four of its standard deviations once in 30,000 items.
constexpr double usual_errors = 4.0;
// Clusters are visited in the order of the score that a few of a thousand normal items exceed.
constexpr double promised_deviations = 2.5;

// How many items to expect beyond z standard deviations, but for a factor. Of real clusters a few items lie far out:
// this tail falls like that of Student's law with seven degrees of freedom, and is quick to compute.
double heavy_tail(double z) {
  const double root = 1 / (1 + z * z / 8), square = root * root;
  return z > 0 ? square * square : 1.0;
}

}  // namespace

BestSearch::BestSearch(Query& query, const Wanted& wanted, Best& result, const SearchMemory& memory)
    : query_(query), view_(query.view), wanted_(wanted), result_(result), length_(measure_query(query)),
      excluded_(query.request.excluded_of(query.number)), states_(memory.states), promises_(memory.promises),
      best_{result.positions, result.scores, wanted.k} {
  result.scored = 0;
  result.beyond = minus_infinity;
  if (view_.sketch != nullptr) sketched_ = sketch_query(query, memory.integers);
  if (wanted.missed > 0) trust_ = std::min(1.0, usual_errors / std::sqrt((double)view_.d));
  for (int64_t c = 0; c < view_.k; ++c) {
    // An empty cluster needs no visit.
    states_[c] = !view_.empty(c) ? skipped : visited;
    promises_[c] = query.mean_dots[c] + promised_deviations * spread(c);
    if (view_.bias_max != nullptr) promises_[c] += query.temperature * view_.bias_max[c];
  }
}

// The standard deviation of the scores in a cluster. Without its dispersion: as if all items were as far from the mean
// as the farthest, in random directions.
double BestSearch::spread(int64_t cluster) const {
  if (query_.variances != nullptr) return std::sqrt(query_.variances[cluster]) * query_.temperature;
  return length_.norm * (double)view_.radii[cluster] / std::sqrt((double)view_.d);
}

int64_t BestSearch::most_promising() const {
  int64_t best = -1;
  for (int64_t c = 0; c < view_.k; ++c)
    if (states_[c] != visited && (best < 0 || promises_[c] > promises_[best])) best = c;
  return best;
}

void BestSearch::choose(int64_t probes) {
  std::vector<int64_t>& order = query_.workspace.clusters;
  order.clear();
  for (int64_t c = 0; c < view_.k; ++c) {
    if (states_[c] == visited)
      probes -= !view_.empty(c) ? 1 : 0;
    else
      order.push_back(c);
  }
  const int64_t left = wanted_.probes < 0 ? (int64_t)order.size() : std::max<int64_t>(0, probes);
  if (left < (int64_t)order.size()) {
    const auto sooner = [&](int64_t a, int64_t b) {
      return promises_[a] != promises_[b] ? promises_[a] > promises_[b] : a < b;
    };
    std::nth_element(order.begin(), order.begin() + left, order.end(), sooner);
    order.resize(left);
  }
  for (int64_t c : order) states_[c] = chosen;
}

// Items of a cluster that are expected to score more, but for a factor that all clusters share.
double BestSearch::expected(int64_t cluster, double score) const {
  const double above = score - query_.mean_dots[cluster], deviation = spread(cluster);
  if (!(deviation > 0)) return above <= 0 ? (double)view_.count(cluster) : 0.0;
  return (double)view_.count(cluster) * heavy_tail(above / deviation);
}

void BestSearch::choose_by_share(double missed) {
  const double score = best_.threshold();
  std::vector<double>& shares = query_.workspace.estimates;
  shares.resize(view_.k);
  // By powers of two: sorting the clusters would cost more than scanning some of them in vain.
  constexpr int bins = 64;
  double total = 0, sums[bins] = {};
  const auto bin_of = [](double share) { return std::min(bins - 1, std::max(0, std::ilogb(share) + bins - 24)); };
  for (int64_t c = 0; c < view_.k; ++c) {
    shares[c] = !view_.empty(c) ? expected(c, score) : 0.0;
    total += shares[c];
    if (states_[c] != visited) sums[bin_of(shares[c])] += shares[c];
  }
  double allowed = missed * total;
  int bin = 0;
  for (; bin < bins && sums[bin] <= allowed; ++bin) allowed -= sums[bin];
  for (int64_t c = 0; c < view_.k; ++c) {
    if (states_[c] == visited) continue;
    const int own = bin_of(shares[c]);
    const bool skip = own < bin || (own == bin && shares[c] <= allowed);
    if (skip && own == bin) allowed -= shares[c];
    states_[c] = skip ? skipped : chosen;
  }
}

void BestSearch::offer_one(double dot, int64_t position) {
  // In double: a large bias must not swallow the differences between scores.
  double score = dot;
  if (view_.bias != nullptr) score += query_.temperature * view_.bias[position];
  // NaN, in a damaged index, is never offered, nor is an item that was removed.
  if (!(score >= reach()) || score == minus_infinity) return;
  if (excluded_.count > 0 && std::binary_search(excluded_.first, excluded_.first + excluded_.count, position)) return;
  // One of the two is left out.
  if (full()) next_ = std::max(next_, std::min(score, best_.threshold()));
  best_.offer(score, position);
}

void BestSearch::offer(const float* dots, int64_t from, int64_t to) {
  result_.scored += to - from;
  // Most clusters hold nothing that is good enough, and one pass at full speed tells so.
  if (view_.bias == nullptr && query_.kernels.largest(dots, to - from) < reach()) return;
  for (int64_t i = from; i < to; ++i) offer_one(dots[i - from], i);
}

SketchQuery BestSearch::aim_at(int64_t cluster) {
  const double score = reach();
  if (trust_ < 1) {
    // An item that is left out may have an error larger than the usual one.
    const double slack = sketch_slack(view_, sketched_, length_, cluster) * sketched_.unit;
    const double scale = view_.radii[cluster] / 7.5 * (1 + 1e-6) + 0x1.0p-90;  // none is larger: see sketch.py
    result_.beyond = std::max(result_.beyond, score + (1 - trust_) * slack * scale);
  }
  return aim(query_, sketched_, length_, cluster, score, trust_);
}

void BestSearch::note(int64_t position) {
  const StoredItem item = stored_at(view_, position);
  for (int64_t byte = 0; byte < item.bytes; byte += 64) __builtin_prefetch((const char*)item.first + byte, 0, 3);
  if (noted_count_ == most_noted) settle();
  noted_[noted_count_++] = position;
}

void BestSearch::collect(const uint16_t* masks, int64_t origin, int64_t from, int64_t to) {
  const MaskedItems named = {masks, origin, from, to};
  const int64_t count = named.count();
  if (count * sparse > to - from) {
    float* dots = query_.workspace.dots.data();
    scan_items(query_.kernels, view_, from, to, query_.vector, dots);
    return offer(dots, from, to);
  }
  for (int64_t block = 0; count > 0 && block < named.blocks(); ++block)
    for (uint32_t mask = named.mask_of(block); mask != 0; mask &= mask - 1)
      note(named.first_of(block) + __builtin_ctz(mask));
}

void BestSearch::settle() {
  for (int64_t i = 0; i < noted_count_; ++i) {
    float dot;
    scan_items(query_.kernels, view_, noted_[i], noted_[i] + 1, query_.vector, &dot);
    offer_one(dot, noted_[i]);
  }
  result_.scored += noted_count_;
  noted_count_ = 0;
}

double BestSearch::predict_missed(double beyond) const {
  const double score = best_.threshold();
  if (beyond <= score) return 0.0;
  double total = 0, left = 0;
  for (int64_t c = 0; c < view_.k; ++c) {
    if (view_.empty(c)) continue;
    const double share = expected(c, score);
    total += share;
    if (states_[c] != visited && best_score_bound(query_, length_, c) >= score) left += share;
  }
  return total > 0 ? view_.recall.missed(left / total) : 1.0;
}

void BestSearch::finish() {
  // Every score of a sound index is a number, and so there are k of them.
  if (!best_.full()) throw std::runtime_error("items are missing from the clusters");
  for (int64_t c = 0; c < view_.k; ++c)
    if (states_[c] != visited) result_.beyond = std::max(result_.beyond, best_score_bound(query_, length_, c));
  const bool proven = wanted_.probes < 0 && wanted_.missed == 0 && !gives_up();
  result_.missed = proven ? 0.0 : predict_missed(result_.beyond);
  if (wanted_.margin > 0) result_.beyond = std::max({result_.beyond, next_, reach()});
  best_.sort();
}

}  // namespace softindex
