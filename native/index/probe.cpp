// Probing: the clusters that matter are scanned before a draw, a few others are sampled, and the error is stated.
#include "index/probe.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>

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
        tail_stream_{tail_seed, query.content}, log_weight_(view_.sizes.weight_of(request_.law)) {}

  void run() {
    workspace_.estimates.assign(query_.log_masses, query_.log_masses + view_.k);
    const bool adaptive = request_.probes < 0;
    if (adaptive) budget_ = std::max(probing::budget_numbers / view_.d, view_.n / probing::budget_part);
    remember_known_clusters();
    weigh_tail();
    if (known_ > minus_infinity && tail_.peak == minus_infinity) return finish(0.0);
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
      const double error = stated_error();
      if (!adaptive || error <= request_.tolerance || scored_ >= budget_) return finish(error);
      if (scan_surprises()) continue;
      if (hopeless(error, budget_ - scored_)) return finish(error);
      wanted = std::max(probing::first_probes, 2 * probed_);
    }
  }

 private:
  double* estimates() const { return workspace_.estimates.data(); }  // -infinity where a cluster is known
  bool tail_is_empty() const { return !(tail_.peak > minus_infinity); }
  double log_tail() const { return tail_.peak + tail_.log_total; }

  void weigh_tail() {
    tail_ = kernels_.weigh_masses(estimates(), view_.k, workspace_.cluster_weights.data(),
                                  workspace_.cluster_prefix.data());
  }

  // log of the sum over items from .. from + count of a cluster, relative to the pivot; their dots stay in the
  // workspace.
  double scan(int64_t from, int64_t count) {
    scan_items(kernels_, view_, from, from + count, query_.vector, workspace_.dots.data());
    scored_ += count;
    const Mass mass = kernels_.weigh(workspace_.dots.data(), count, query_.inverse_temperature(), view_.bias_at(from),
                                     nullptr, nullptr);
    best_score_ = mass.reference;
    return log_mass(mass, request_.temperature, query_.pivot);
  }

  void remember(int64_t cluster, double log_sum) {
    query_.log_masses[cluster] = log_sum;
    estimates()[cluster] = minus_infinity;
    known_ = log_add(known_, log_sum);
  }

  // Clusters that every law scans cost the budget nothing.
  void remember_known_clusters() {
    for (int64_t c = view_.first_known; c < view_.k; ++c)
      if (!view_.empty(c)) remember(c, query_.log_masses[c]);
    scored_ = view_.known_items();
    if (request_.probes < 0) budget_ += scored_;
  }

  void probe_cluster(int64_t cluster) {
    remember(cluster, scan(view_.offsets[cluster], view_.size(cluster)));
    ++probed_;
  }

  // An item that is the query itself, or nearly so, may outweigh everything at low temperature, and its cluster need
  // not be among the massive ones. k-means put it into the cluster of the nearest mean.
  void scan_nearest_clusters() {
    const double squared = query_.squared_norm();
    const double copy = (squared - query_.pivot) / request_.temperature + log_weight_ - log_tail();
    if (!(copy > std::log(request_.tolerance / 4))) return;
    // Others that are nearly as near come next: the means have moved a little since the items were assigned.
    double nearest_distance = 0;
    for (int i = 0; i < probing::nearest_clusters; ++i) {
      int64_t nearest = -1;
      double best = minus_infinity;
      for (int64_t c = 0; c < view_.k; ++c) {
        const double closeness = query_.mean_dots[c] - view_.half_squares[c];
        if (closeness > best && estimates()[c] > minus_infinity) {
          best = closeness;
          nearest = c;
        }
      }
      const double distance = squared - 2 * best;
      if (i == 0) nearest_distance = distance;
      if (nearest < 0 || distance > probing::nearly * nearest_distance) break;
      probe_cluster(nearest);
      // The copy is found. If it carries much of the mass, items near it matter too, and more clusters are scanned.
      if (best_score_ >= probing::copied * squared && copy < std::log(probing::heavy)) break;
    }
    weigh_tail();
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
    const double beside = std::exp(std::min(known_ - log_tail(), 600.0));
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
    const double everything = log_add(known_, log_tail());
    const double least = everything + std::log(request_.tolerance / 8) - log_weight_;
    const double highest = std::sqrt(query_.squared_norm()) * view_.longest;
    if ((highest - query_.pivot) / request_.temperature < least && view_.bias == nullptr) return;
    workspace_.outlier_dots.resize(view_.outliers);
    kernels_.scan(view_.outlier_rows(), query_.vector, workspace_.outlier_dots.data());
    scored_ += view_.outliers;
    std::vector<int64_t>& clusters = workspace_.clusters;
    clusters.clear();
    for (int64_t i = 0; i < view_.outliers; ++i) {
      const int64_t position = view_.outlier_positions[i];
      const double bias = view_.bias == nullptr ? 0.0 : view_.bias[position] - log_weight_;
      if ((workspace_.outlier_dots[i] - query_.pivot) / request_.temperature + bias < least) continue;
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
      remember(sample.cluster, sample.log_sum);
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

  double stated_error() const {
    const double inside = tail_error(samples_, rho_, tail_share());
    // Zero is reserved for a law whose every cluster was scanned.
    return std::min(1.0, inside + risk_of_extremes(query_, samples_, known_) + 1e-16);
  }

  // Where the mass is spread over many clusters, scanning as many as the budget allows would not lower the error.
  bool hopeless(double error, int64_t budget) {
    std::vector<float>& shares = workspace_.shares;
    const int64_t affordable = std::min(view_.k - 1, budget * view_.k / view_.n + 1);
    shares.assign(workspace_.cluster_weights.begin(), workspace_.cluster_weights.begin() + view_.k);
    std::nth_element(shares.begin(), shares.begin() + affordable, shares.end(), std::greater<float>());
    const double best = std::accumulate(shares.begin(), shares.begin() + affordable, 0.0);
    const double left = 1.0 - best / workspace_.cluster_prefix[blocks(view_.k) - 1];
    return error * left > std::max(request_.tolerance, probing::no_hope);
  }

  double tail_share() const {
    const double log_tail = std::log(rho_) + tail_.peak + tail_.log_total;
    return 1.0 / (1.0 + std::exp(known_ - log_tail));
  }

  void finish(double error) {
    const double shift = std::log(rho_);
    for (int64_t c = 0; c < view_.k; ++c)
      if (estimates()[c] > minus_infinity) query_.log_masses[c] = estimates()[c] + shift;
    query_.error = error;
    query_.scored = scored_;
  }

  Query& query_;
  const Kernels& kernels_;
  const View& view_;
  const Request& request_;
  Workspace& workspace_;
  const Stream tail_stream_;
  const double log_weight_;  // of an average item
  std::vector<TailSample> samples_;
  uint64_t drawn_ = 0;
  int64_t scored_ = 0, probed_ = 0, budget_ = std::numeric_limits<int64_t>::max();
  double best_score_ = minus_infinity;  // of the items scanned last
  double known_ = minus_infinity;       // log of the sum over the clusters that were scanned
  Total tail_ = {minus_infinity, 0.0};  // the same of the estimates of all others
  double rho_ = 1.0;                    // what the estimates of the tail are multiplied by
};

}  // namespace

void probe(Query& query) { Probe(query).run(); }

std::map<std::string, double> probing_constants() {
  using namespace probing;
  return {{"tail_samples", (double)tail_samples},
          {"shortest_stretch", (double)shortest_stretch},
          {"most_precise", most_precise},
          {"nearest_clusters", (double)nearest_clusters},
          {"large_share", large_share},
          {"first_probes", (double)first_probes},
          {"surprising", surprising},
          {"budget_numbers", (double)budget_numbers},
          {"budget_part", (double)budget_part},
          {"mean_deviation", mean_deviation},
          {"largest_variance", largest_variance},
          {"largest_misfit", largest_misfit},
          {"nearly", nearly},
          {"copied", copied},
          {"heavy", heavy},
          {"no_hope", no_hope},
          {"farthest", farthest}};
}

}  // namespace softindex
