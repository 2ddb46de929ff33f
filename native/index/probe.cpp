// Probing: the clusters that matter are scanned before a draw, a few others are sampled, and the error is stated.
#include "index/probe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "index/drawable.h"
#include "index/extremes.h"
#include "index/masses.h"
#include "index/probe_constants.h"
#include "index/scan.h"
#include "index/tail.h"

namespace softindex {
namespace {

// The sample of the tail is no part of a draw's randomness: it is the same for every seed, so that all draws of a query
// come from the same distribution.
constexpr uint64_t tail_seed = 0x7461696c73616d70ull;

class Probe {
 public:
  explicit Probe(Query& query)
      : query_(query), kernels_(query.kernels), view_(query.view), request_(query.request), workspace_(query.workspace),
        drawable_(query), tail_stream_{tail_seed, name_direction(query)},
        log_weight_(view_.sizes.weight_of(request_.law)), extremes_(query) {}

  void run() {
    workspace_.estimates.assign(query_.log_masses, query_.log_masses + view_.k);
    workspace_.searches.assign(view_.k, untouched);
    const bool adaptive = request_.probes < 0;
    if (adaptive) budget_ = std::max(probing::budget_numbers / view_.d, view_.n / probing::budget_part);
    remember_known_clusters();
    weigh_tail();
    if (scored_ > 0 && tail_is_empty()) return finish(0.0);
    // Numbers that were finite when the index was built give a sum; NaN must not be sorted.
    if (!std::isfinite(log_tail())) throw std::runtime_error("no cluster holds any weight");
    if (adaptive) {
      scan_nearest_clusters();
      scan_large_clusters();
      scan_clusters_of_outliers();
    }
    for (int64_t wanted = adaptive ? 0 : request_.probes;;) {
      scan_best_clusters(wanted);
      if (!tail_is_empty()) sample_tail();
      if (tail_is_empty()) return finish(0.0);
      if (adaptive && search_extremes()) continue;
      if (!adaptive) chance_ = chance_of_others();
      // More probes lower the error of the masses; the chance of extremes is as small as the search made it.
      const TailError unknown = tail_error(samples_, rho_, tail_share());
      const double error = unknown.variation;
      log_error_ = unknown.log_total;
      const bool enough = error <= request_.tolerance || scored_ >= budget_;
      if (!adaptive || enough) return finish(stated(error));
      if (scan_surprises()) continue;
      if (hopeless(query_, error, budget_ - scored_)) return finish(stated(error));
      wanted = std::max(probing::first_probes, 2 * probed_);
    }
  }

 private:
  // What is known of the single items of a cluster that was not scanned. An item in the direction of the query may be
  // in a suspected one; in a searched one nothing matters.
  enum Search : uint8_t { untouched, suspected, searched };

  double* estimates() const { return workspace_.estimates.data(); }  // -infinity where a cluster is known
  bool tail_is_empty() const { return !(tail_.peak > minus_infinity); }
  double log_tail() const { return tail_.peak + tail_.log_total; }
  double log_everything() const { return log_add(drawable_.log_sum(), std::log(rho_) + log_tail()); }

  void weigh_tail() {
    tail_ = kernels_.weigh_masses(estimates(), view_.k, workspace_.cluster_weights.data(),
                                  workspace_.cluster_prefix.data());
  }

  // log of the sum over items from .. from + count of a cluster, relative to the pivot; their dots stay in the
  // workspace.
  double scan(int64_t from, int64_t count) {
    scan_items(kernels_, view_, from, from + count, query_.vector, workspace_.dots.data());
    scored_ += count;
    const Mass mass = weigh_items(query_, from, count, workspace_.dots.data());
    best_score_ = mass.reference;
    return log_mass(mass, query_.temperature, query_.pivot);
  }

  // The cluster keeps the mass of all its items; what can be drawn of it is what others are compared with.
  void remember(int64_t cluster, double log_sum) {
    query_.log_masses[cluster] = log_sum;
    estimates()[cluster] = minus_infinity;
    if (drawable_.holds_all(cluster)) return drawable_.add(log_sum);
    drawable_.add_scanned(cluster, log_sum);
    best_score_ = drawable_.best_score();
  }

  void scan_cluster(int64_t cluster) { remember(cluster, scan(view_.offsets[cluster], view_.size(cluster))); }

  // The same where it was scanned before: its scores are needed again unless all of it counts.
  void remember_sum(int64_t cluster, double log_sum) {
    if (drawable_.holds_all(cluster)) return remember(cluster, log_sum);
    scan_cluster(cluster);
    scored_ -= view_.size(cluster);
  }

  // Clusters that every law scans cost the budget nothing.
  void remember_known_clusters() {
    for (int64_t c = view_.first_known; c < view_.k; ++c)
      if (!view_.empty(c)) remember_sum(c, query_.log_masses[c]);
    scored_ = view_.known_items();
    if (request_.probes < 0) budget_ += scored_;
  }

  void probe_cluster(int64_t cluster) {
    scan_cluster(cluster);
    ++probed_;
  }

  // An item in the direction of the query may outweigh everything at low temperature, and its cluster need not be
  // among the massive ones. k-means put it into the cluster of the nearest mean; which one depends on its length.
  void scan_nearest_clusters() {
    const double norm = std::sqrt(query_.squared_norm());
    double length = view_.longest;
    for (int i = 0; i < probing::copy_lengths && norm > 0; ++i, length /= probing::length_step) {
      if (i > 0 && length < view_.shortest) break;
      const double copy = (norm * length - query_.pivot) / query_.temperature + log_weight_;
      if (!(copy - log_add(drawable_.log_sum(), log_tail()) > std::log(request_.tolerance / 4))) break;
      list_nearest_clusters(query_, length, length / norm);
      for (size_t place = 0; place < workspace_.ranked.size(); ++place) {
        const int64_t cluster = workspace_.ranked[place].second;
        if (estimates()[cluster] == minus_infinity) continue;
        // The nearest one is scanned. Others are nearly as near, as the means have moved since items were assigned:
        // they are searched later, if the copy is not found here.
        if (place > 0)
          workspace_.searches[cluster] = suspected;
        else if (probe_cluster(cluster); best_score_ >= probing::copied * norm * length)
          break;
      }
    }
    if (probed_ > 0) weigh_tail();
  }

  // Looks for single items with a relevant share in clusters that may hold one, the likeliest first, until the chance
  // that there is another is small; and scans the clusters that hold one. Returns whether there was any.
  bool search_extremes() {
    aim();
    auto& ranked = workspace_.ranked;
    ranked.clear();
    double total = 0;
    bool suspicious = false;
    for (int64_t c = 0; c < view_.k; ++c) {
      if (estimates()[c] == minus_infinity || workspace_.searches[c] == searched || view_.count(c) < 2) continue;
      const double chance = extremes_.chance(c);
      const bool suspect = workspace_.searches[c] == suspected;
      total += chance;
      suspicious = suspicious || suspect;
      if (chance > 0 || suspect) ranked.push_back({-chance - (suspect ? 1 : 0), c});
    }
    const double allowed = probing::allowed_chance * request_.tolerance;
    chance_ = total;
    if (total <= allowed && !suspicious) return false;
    std::sort(ranked.begin(), ranked.end());
    for (double left = 0; !ranked.empty() && (left -= ranked.back().first) <= allowed;) ranked.pop_back();
    const bool any = search_ranked();
    if (!any) chance_ = chance_of_others();
    return any;
  }

  bool search_ranked() {
    const double least = extremes_.least(), floor = probing::allowed_chance * request_.tolerance / (double)view_.k;
    bool any = false;
    for (const auto& [rank, cluster] : workspace_.ranked) {
      // What was found since may have made others too small to matter.
      const bool suspect = workspace_.searches[cluster] == suspected;
      if (!suspect && extremes_.least() > least && extremes_.chance(cluster) < floor) continue;
      if (!extremes_.searchable() && scored_ >= budget_) break;
      workspace_.searches[cluster] = searched;
      if (extremes_.searchable()) {
        if (!extremes_.search(cluster)) continue;
        budget_ += view_.size(cluster);
      }
      scan_cluster(cluster);
      aim();
      any = true;
    }
    if (any) weigh_tail();
    return any;
  }

  void aim() {
    double variance = 0;
    for (const TailSample& sample : samples_) variance += sample.variance / (double)samples_.size();
    extremes_.aim_at(log_everything() + std::log(probing::relevant * request_.tolerance), variance);
  }

  auto before() const {
    return [this](int64_t a, int64_t b) {
      return estimates()[a] != estimates()[b] ? estimates()[a] > estimates()[b] : a < b;
    };
  }

  // The most massive first, as far as the budget goes.
  void probe_clusters(std::vector<int64_t>& clusters) {
    std::sort(clusters.begin(), clusters.end(), before());
    for (size_t i = 0; i < clusters.size() && scored_ < budget_; ++i) probe_cluster(clusters[i]);
    if (!clusters.empty()) weigh_tail();
  }

  // Clusters with a large share of all mass; the more an estimate depends on its variance, the smaller a share counts.
  void scan_large_clusters() {
    if (tail_is_empty()) return;
    const float* weights = workspace_.cluster_weights.data();
    const double beside = std::exp(std::min(drawable_.log_sum() - log_tail(), 600.0));
    const double least = probing::large_share * workspace_.cluster_prefix[blocks(view_.k) - 1] * (1.0 + beside);
    std::vector<int64_t>& clusters = workspace_.clusters;
    clusters.clear();
    for (int64_t c = 0; c < view_.k; ++c)
      if (weights[c] > least ||
          (query_.variances != nullptr && weights[c] * query_.variances[c] > least && weights[c] > 0))
        clusters.push_back(c);
    probe_clusters(clusters);
  }

  // Items far from the mean of their cluster, which the moments do not show: clusters are scanned if such an item would
  // have a relevant share of all that is known and estimated.
  void scan_clusters_of_outliers() {
    if (view_.outliers == 0 || tail_is_empty()) return;
    const double everything = log_add(drawable_.log_sum(), log_tail());
    const double least = everything + std::log(request_.tolerance / 8) - log_weight_;
    const double highest = std::sqrt(query_.squared_norm()) * view_.longest;
    if ((highest - query_.pivot) / query_.temperature < least && view_.bias == nullptr) return;
    workspace_.outlier_dots.resize(view_.outliers);
    kernels_.scan(view_.outlier_rows(), query_.vector, workspace_.outlier_dots.data());
    scored_ += view_.outliers;
    std::vector<int64_t>& clusters = workspace_.clusters;
    clusters.clear();
    for (int64_t i = 0; i < view_.outliers; ++i) {
      const int64_t position = view_.outlier_positions[i];
      const double bias = view_.bias == nullptr ? 0.0 : view_.bias[position] - log_weight_;
      if ((workspace_.outlier_dots[i] - query_.pivot) / query_.temperature + bias < least) continue;
      if (drawable_.excludes(position)) continue;
      // Positions increase, so the items of a cluster come one after the other.
      const int64_t cluster = view_.cluster_of(position);
      if (estimates()[cluster] > minus_infinity && (clusters.empty() || clusters.back() != cluster))
        clusters.push_back(cluster);
    }
    // The budget spent on estimated masses must not keep these from being scanned.
    const int64_t most = scored_ + budget_;
    for (size_t i = 0; i < clusters.size() && scored_ < most; ++i) probe_cluster(clusters[i]);
    if (!clusters.empty()) weigh_tail();
  }

  // The most massive clusters by estimate, until `wanted` are probed.
  void scan_best_clusters(int64_t wanted) {
    if (probed_ >= wanted || tail_is_empty()) return;
    std::vector<int64_t>& clusters = workspace_.clusters;
    clusters.clear();
    for (int64_t c = 0; c < view_.k; ++c)
      if (estimates()[c] > minus_infinity) clusters.push_back(c);
    const int64_t count = std::min<int64_t>(wanted - probed_, (int64_t)clusters.size());
    std::nth_element(clusters.begin(), clusters.begin() + (count - 1), clusters.end(), before());
    clusters.resize(count);
    probe_clusters(clusters);
  }

  // Keeps the sample at its size: clusters that were probed since leave it, others are drawn in proportion to their
  // estimates.
  void sample_tail() {
    std::vector<TailSample>& samples = samples_;
    const auto probed = [this](const TailSample& sample) { return estimates()[sample.cluster] == minus_infinity; };
    samples.erase(std::remove_if(samples.begin(), samples.end(), probed), samples.end());
    while ((int64_t)samples.size() < probing::tail_samples) {
      const Uniforms u = tail_stream_(drawn_++);
      const int64_t cluster =
          kernels_.pick(workspace_.cluster_weights.data(), workspace_.cluster_prefix.data(), view_.k, u.first);
      samples.push_back(sample_cluster(cluster, u.second));
    }
    remember_full_clusters();
    double total = 0;
    for (const TailSample& sample : samples) total += sample.ratio;
    rho_ = std::max(total / (double)samples.size(), 1e-3);
  }

  // A cluster that was scanned to its end counts as probed.
  void remember_full_clusters() {
    bool any = false;
    for (const TailSample& sample : samples_) {
      if (sample.log_sum == minus_infinity || estimates()[sample.cluster] == minus_infinity) continue;
      remember_sum(sample.cluster, sample.log_sum);
      any = true;
    }
    if (any) weigh_tail();
  }

  // A sampled cluster that alone makes most of rho is no example for the others: it is scanned, and another one drawn.
  bool scan_surprises() {
    bool any = false;
    for (const TailSample& sample : samples_) {
      if (!(sample.ratio > probing::surprising * rho_) || estimates()[sample.cluster] == minus_infinity) continue;
      probe_cluster(sample.cluster);
      any = true;
    }
    if (any) weigh_tail();
    return any;
  }

  TailSample sample_cluster(int64_t cluster, double uniform) {
    const int64_t size = view_.size(cluster), count = stretch_length(query_, cluster, tail_share());
    const int64_t from = view_.offsets[cluster] + (int64_t)(uniform * (double)(size - count + 1));
    return judge_stretch(query_, cluster, count, scan(from, count));
  }

  // That a cluster neither scanned nor searched holds an item that matters.
  double chance_of_others() {
    aim();
    double chance = 0;
    for (int64_t c = 0; c < view_.k && chance < 1; ++c)
      if (estimates()[c] > minus_infinity && workspace_.searches[c] != searched && view_.count(c) > 1)
        chance += extremes_.chance(c);
    return chance;
  }

  // Zero is reserved for a law whose every cluster was scanned.
  double stated(double error) { return std::min(1.0, error + chance_ + probing::expected_part * unseen() + 1e-16); }

  // The share of all mass by which the tail falls short of what its clusters are expected to hold: a few sampled
  // stretches rarely meet the items that carry a heavy tail.
  double unseen() {
    aim();
    const double everything = log_everything();
    double expected = 0;
    for (int64_t c = 0; c < view_.k; ++c)
      if (estimates()[c] > minus_infinity && view_.count(c) > 1 && !extremes_.tame(c))
        expected += extremes_.expected(c, everything);
    return std::max(0.0, expected - tail_share());
  }

  double tail_share() const {
    const double log_tail = std::log(rho_) + tail_.peak + tail_.log_total;
    return 1.0 / (1.0 + std::exp(drawable_.log_sum() - log_tail));
  }

  void finish(double error) {
    const double shift = std::log(rho_);
    for (int64_t c = 0; c < view_.k; ++c)
      if (estimates()[c] > minus_infinity) query_.log_masses[c] = estimates()[c] + shift;
    query_.error = error;
    query_.log_error = error > 0 ? log_error_ + chance_ : 0.0;
    query_.scored = scored_;
  }

  Query& query_;
  const Kernels& kernels_;
  const View& view_;
  const Request& request_;
  Workspace& workspace_;
  Drawable drawable_;  // of the clusters that were scanned
  const Stream tail_stream_;
  const double log_weight_;  // of an average item
  Extremes extremes_;
  std::vector<TailSample> samples_;
  uint64_t drawn_ = 0;
  int64_t scored_ = 0, probed_ = 0, budget_ = std::numeric_limits<int64_t>::max();
  double best_score_ = minus_infinity;  // of the items scanned last that can be drawn
  Total tail_ = {minus_infinity, 0.0};  // the estimates of all others, together
  double chance_ = 0;                   // that an item that matters was not found
  double log_error_ = 0;                // of log Z, from the masses of the tail
  double rho_ = 1.0;                    // what the estimates of the tail are multiplied by
};

}  // namespace

void probe(Query& query) { Probe(query).run(); }

}  // namespace softindex
