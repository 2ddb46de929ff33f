// Probes: the clusters that matter are scanned before a draw, a few others are sampled, and the error is stated.
#include "index/probe.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/hash.h"
#include "base/philox.h"
#include "index/draw.h"
#include "index/masses.h"

namespace softindex {
namespace {

constexpr double nothing = -std::numeric_limits<double>::infinity();

// The sample of the tail is no part of a draw's randomness: it is the same for every seed, so that the law is one law.
constexpr uint64_t tail_key = 0x7461696c73616d70ull;
constexpr int64_t tail_samples = 8;
constexpr int64_t shortest_stretch = 64;
// A stretch is as long as its cluster's weight asks for, up to a relative variance of one in so many: beyond that the
// spread among eight clusters hides the noise of each.
constexpr double most_precise = 25.0;
// A copy of the query lies in the nearest cluster but for means that moved after the assignment: a few clusters, of
// squared distance nearly as small, hold all the copies we met. A score this close to |q|^2 is a copy; once one is
// found, the search goes on only while another like it would still have this share of the mass.
constexpr int nearest_clusters = 8;
constexpr double nearly = 1.15, copied = 0.999, heavy = 0.25;
// A cluster with more than this part of the mass is scanned without asking further.
constexpr double large_share = 1.0 / 32;
// Doubling from here: fewer would sample the tail once more for every query, more would be wasted on the easy ones.
constexpr int64_t first_probes = 4;
// A sampled cluster this many times above the mean ratio makes a good part of rho alone: it is scanned, not averaged.
constexpr double surprising = 3.0;
// What the adaptive law may scan before it gives up and says so: items of this many numbers, or one item in so many.
constexpr int64_t budget_numbers = 1 << 20, budget_part = 20;
// An error that stays above this, whatever the budget may scan, makes probing stop.
constexpr double no_hope = 0.03;
// Standard deviations beyond which a normal number is not expected among millions.
constexpr double farthest = 5.5;
// E|X| of a standard normal: turns a standard deviation into a mean deviation.
constexpr double mean_deviation = 0.7979;
// Where logits vary this much, the largest of them decide, and no variance tells them.
constexpr double largest_variance = 30.0, largest_misfit = 25.0;

// What a stretch of one tail cluster tells of it.
struct TailSample {
  int64_t cluster;
  double ratio;     // the cluster's mass, as the stretch has it, over its estimate
  double noise;     // variance of the ratio, in units of its square, from seeing a stretch only
  double misfit;    // variance of the true ratio among clusters like this one, in units of its square
  double variance;  // of the logits
  double log_sum;   // the cluster's own, if the stretch is all of it, or -infinity
};

class Probe {
 public:
  Probe(const Kernels& kernels, const View& view, const Law& law, int64_t place, double* log_masses,
        Workspace& workspace)
      : kernels_(kernels), view_(view), law_(law), query_(&workspace.queries[place * padded(view.d)]),
        variances_(law.dispersion ? &workspace.variances[place * view.k] : nullptr),
        dots_(&workspace.cluster_dots[place * view.k]), pivot_(workspace.pivots[place]),
        stream_(name_of(query_, view.d)), log_masses_(log_masses), workspace_(workspace) {}

  Probed run() {
    workspace_.estimates.assign(log_masses_, log_masses_ + view_.k);
    const bool adaptive = law_.probes < 0;
    if (adaptive) budget_ = std::max(budget_numbers / view_.d, view_.n / budget_part);
    weigh_tail();
    if (adaptive) {
      scan_nearest_clusters();
      scan_large_clusters();
      scan_clusters_of_outliers();
    }
    for (int64_t wanted = adaptive ? 0 : law_.probes;;) {
      scan_best_clusters(wanted);
      if (!tail_is_empty()) sample_tail();
      if (tail_is_empty()) return finish(0.0);
      const double error = stated_error();
      if (!adaptive || error <= law_.tolerance || scored_ >= budget_) return finish(error);
      if (scan_surprises()) continue;
      if (hopeless(error, budget_ - scored_)) return finish(error);
      wanted = std::max(first_probes, 2 * probed_);
    }
  }

 private:
  double* estimates() const { return workspace_.estimates.data(); }  // -infinity where a cluster is known
  bool tail_is_empty() const { return !(tail_.peak > nothing); }

  void weigh_tail() {
    tail_ = kernels_.weigh_masses(estimates(), view_.k, workspace_.cluster_weights.data(),
                                  workspace_.cluster_prefix.data());
  }

  // log of the sum over items from .. from + count of a cluster, relative to the pivot; their dots stay in the
  // workspace.
  double scan(int64_t from, int64_t count) {
    kernels_.scan(view_.items(from, from + count), query_, workspace_.dots.data());
    const float* bias = view_.bias == nullptr ? nullptr : view_.bias + from;
    scored_ += count;
    const Mass mass = kernels_.weigh(workspace_.dots.data(), count, 1.0 / law_.temperature, bias, nullptr, nullptr);
    best_score_ = mass.reference;
    return log_mass(mass, law_.temperature, pivot_);
  }

  void remember(int64_t cluster, double log_sum) {
    log_masses_[cluster] = log_sum;
    estimates()[cluster] = nothing;
    known_ = log_add(known_, log_sum);
  }

  void probe_cluster(int64_t cluster) {
    remember(cluster, scan(view_.offsets[cluster], view_.size(cluster)));
    ++probed_;
  }

  // An item that is the query itself, or nearly so, may outweigh everything at low temperature, and its cluster need
  // not be among the massive ones. k-means put it into the cluster of the nearest mean.
  void scan_nearest_clusters() {
    const double squared = squared_norm(query_, view_.d);
    const double log_all = tail_.peak + tail_.log_total;
    const double copy = (squared - pivot_) / law_.temperature + law_.log_weight - log_all;
    if (!(copy > std::log(law_.tolerance / 4))) return;
    // Others that are nearly as near come next, as the means have moved a little since the items were assigned.
    double nearest_distance = 0;
    for (int i = 0; i < nearest_clusters; ++i) {
      int64_t nearest = -1;
      double best = nothing;
      for (int64_t c = 0; c < view_.k; ++c) {
        const double closeness = dots_[c] - view_.half_squares[c];
        if (closeness > best && estimates()[c] > nothing) {
          best = closeness;
          nearest = c;
        }
      }
      const double distance = squared - 2 * best;
      if (i == 0) nearest_distance = distance;
      if (nearest < 0 || distance > nearly * nearest_distance) break;
      probe_cluster(nearest);
      // There it is. If it carries much of the mass, items near it matter too, and lie near it.
      if (best_score_ >= copied * squared && copy < std::log(heavy)) break;
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

  // Clusters with a large part of all mass; the more of an estimate hangs on its variance, the smaller a part is large.
  void scan_large_clusters() {
    if (tail_is_empty()) return;
    const float* weights = workspace_.cluster_weights.data();
    const double beside = std::exp(std::min(known_ - (tail_.peak + tail_.log_total), 600.0));
    const double least = large_share * workspace_.cluster_prefix[blocks(view_.k) - 1] * (1.0 + beside);
    std::vector<int64_t>& clusters = workspace_.clusters;
    clusters.clear();
    for (int64_t c = 0; c < view_.k; ++c)
      if (weights[c] > least || (variances_ != nullptr && weights[c] * variances_[c] > least && weights[c] > 0))
        clusters.push_back(c);
    probe_clusters(clusters);
  }

  // Items far from the mean of their cluster, which no moment tells of: those that would have a share worth the name,
  // were there not more than is known and estimated, have their clusters scanned.
  void scan_clusters_of_outliers() {
    if (view_.outliers == 0 || tail_is_empty()) return;
    const double everything = log_add(known_, tail_.peak + tail_.log_total);
    const double least = everything + std::log(law_.tolerance / 8) - law_.log_weight;
    const double highest = std::sqrt(squared_norm(query_, view_.d)) * view_.longest;
    if ((highest - pivot_) / law_.temperature < least && view_.bias == nullptr) return;
    workspace_.outlier_dots.resize(view_.outliers);
    kernels_.scan(view_.outlier_rows(), query_, workspace_.outlier_dots.data());
    scored_ += view_.outliers;
    std::vector<int64_t>& clusters = workspace_.clusters;
    clusters.clear();
    for (int64_t i = 0; i < view_.outliers; ++i) {
      const int64_t position = view_.outlier_positions[i];
      const double bias = view_.bias == nullptr ? 0.0 : view_.bias[position] - law_.log_weight;
      if ((workspace_.outlier_dots[i] - pivot_) / law_.temperature + bias < least) continue;
      // Positions increase, so the items of a cluster come one after the other.
      const int64_t cluster = cluster_of(view_, position);
      if (estimates()[cluster] > nothing && (clusters.empty() || clusters.back() != cluster))
        clusters.push_back(cluster);
    }
    // What was spent on estimated masses must not keep these from being looked at.
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
      if (estimates()[c] > nothing) clusters.push_back(c);
    const int64_t count = std::min<int64_t>(wanted - probed_, (int64_t)clusters.size());
    std::nth_element(clusters.begin(), clusters.begin() + (count - 1), clusters.end(), before());
    clusters.resize(count);
    probe_clusters(clusters);
  }

  // Keeps the sample at its size: clusters that were probed since leave it, others are drawn in proportion to their
  // estimates.
  void sample_tail() {
    std::vector<TailSample>& samples = samples_;
    const auto probed = [this](const TailSample& sample) { return estimates()[sample.cluster] == nothing; };
    samples.erase(std::remove_if(samples.begin(), samples.end(), probed), samples.end());
    while ((int64_t)samples.size() < tail_samples) {
      const Uniforms u = uniforms(tail_key, stream_, drawn_++);
      const int64_t cluster =
          kernels_.pick(workspace_.cluster_weights.data(), workspace_.cluster_prefix.data(), view_.k, u.first);
      samples.push_back(sample_cluster(cluster, u.second));
    }
    remember_whole_clusters();
    double total = 0;
    for (const TailSample& sample : samples) total += sample.ratio;
    rho_ = std::max(total / (double)samples.size(), 1e-3);
  }

  // What was scanned to its end counts as probed.
  void remember_whole_clusters() {
    bool any = false;
    for (const TailSample& sample : samples_) {
      if (sample.log_sum == nothing || estimates()[sample.cluster] == nothing) continue;
      remember(sample.cluster, sample.log_sum);
      any = true;
    }
    if (any) weigh_tail();
  }

  // A sampled cluster that alone makes most of rho is no example for the others: it is scanned, and another one drawn.
  bool scan_surprises() {
    bool any = false;
    for (const TailSample& sample : samples_) {
      if (!(sample.ratio > surprising * rho_) || estimates()[sample.cluster] == nothing) continue;
      probe_cluster(sample.cluster);
      any = true;
    }
    if (any) weigh_tail();
    return any;
  }

  // A stretch is as long as its noise asks for: few items tell the mean of exp(logit) where logits hardly vary.
  TailSample sample_cluster(int64_t cluster, double uniform) {
    const int64_t size = view_.size(cluster);
    const double variance = variances_ == nullptr ? 1.0 : std::min(variances_[cluster], 6.0);
    // The share of the tail decides how much its total matters.
    const double share = tail_share(), weight = share * (1 - share) / law_.tolerance;
    const double enough = std::min(2 * weight * weight, most_precise) * std::expm1(variance);
    // Where biases weigh items, a few may carry their cluster, and a stretch would mostly miss them: then all is
    // scanned.
    const int64_t count = view_.bias != nullptr ? size : std::min(size, std::max(shortest_stretch, (int64_t)enough));
    const int64_t from = view_.offsets[cluster] + (int64_t)(uniform * (double)(size - count + 1));
    const double log_sum = scan(from, count);
    TailSample sample = {cluster, 0, 0, 0, logit_variance(count), count == size ? log_sum : nothing};
    const double log_ratio = log_sum + std::log((double)size / (double)count) - estimates()[cluster];
    sample.ratio = std::exp(std::min(log_ratio, 50.0));
    const double excess = std::expm1(std::min(sample.variance, largest_variance));
    sample.noise = excess / (double)count * (1.0 - (double)count / (double)size);
    sample.misfit = std::min(excess / (double)size, largest_misfit);
    return sample;
  }

  // Of the stretch whose dots are in the workspace, biases apart.
  double logit_variance(int64_t count) const {
    const double inverse = 1.0 / law_.temperature, reference = workspace_.dots[0];
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double logit = (workspace_.dots[i] - reference) * inverse;
      sum += logit;
      squares += logit * logit;
    }
    const double mean = sum / (double)count;
    return std::max(0.0, squares / (double)count - mean * mean);
  }

  // The estimated total variation. Two things are unknown of the tail: how its clusters differ from their estimates
  // times rho, and rho itself. Both are judged from the sample and, as a small sample is often tame by chance, from
  // what the variance of the logits leads to expect; the larger counts.
  double stated_error() const {
    const double count = (double)samples_.size();
    double deviation = 0, squares = 0, noise = 0, misfit = 0, expected = 0;
    for (const TailSample& sample : samples_) {
      const double relative = sample.ratio / rho_ - 1.0;
      deviation += std::fabs(relative);
      squares += relative * relative;
      noise += sample.noise;
      misfit += sample.misfit;
      expected += std::min(mean_deviation * std::sqrt(sample.misfit), 2.0);
    }
    deviation *= 1.0 / (count - 1.0);
    noise /= count;
    const double from_noise = mean_deviation * mean_deviation * noise;
    const double seen = std::sqrt(std::max(0.0, deviation * deviation - from_noise));
    const double spread = std::max(seen, expected / count);
    const double uncertainty =
        std::sqrt(std::max(squares / (count - 1.0), noise + misfit / count) / count) * mean_deviation;
    const double share = tail_share();
    const double inside = std::min(share, share * spread / 2 + share * (1 - share) * uncertainty);
    // Zero is left for a law whose every cluster was scanned.
    return std::min(1.0, inside + risk_of_extremes() + 1e-16);
  }

  // Where the mass is spread over many clusters, all that the budget could scan would not bring the error down.
  bool hopeless(double error, int64_t budget) {
    std::vector<float>& shares = workspace_.shares;
    const int64_t affordable = std::min(view_.k - 1, budget * view_.k / view_.n + 1);
    shares.assign(workspace_.cluster_weights.begin(), workspace_.cluster_weights.begin() + view_.k);
    std::nth_element(shares.begin(), shares.begin() + affordable, shares.end(), std::greater<float>());
    const double best = std::accumulate(shares.begin(), shares.begin() + affordable, 0.0);
    const double left = 1.0 - best / workspace_.cluster_prefix[blocks(view_.k) - 1];
    return error * left > std::max(law_.tolerance, no_hope);
  }

  double tail_share() const {
    const double log_tail = std::log(rho_) + tail_.peak + tail_.log_total;
    return 1.0 / (1.0 + std::exp(known_ - log_tail));
  }

  // At low temperature one item of the tail may outweigh all that is known, and no sample would have met it.
  // Logits of mean m and variance s have one above log Z with a chance of about n exp(-z^2 / 2), z = (log Z - m) /
  // sqrt(s). It counts where the Gaussian integral has its weight above log Z, which is where z^2 < s. And clusters
  // have outliers that no normal law foresees: the farthest item lies a radius away, in whatever direction; the query
  // meets it with a standard deviation of |q| R / sqrt(d).
  double risk_of_extremes() const {
    if (known_ == nothing) return 0.0;
    const double reach = std::sqrt(squared_norm(query_, view_.d) / (double)view_.d) / law_.temperature;
    // What lies farther was looked at, if probing is adaptive.
    const float unlisted = view_.outliers > 0 && law_.probes < 0 ? view_.farthest : std::numeric_limits<float>::max();
    double common = 0, risk = 0;
    for (const TailSample& sample : samples_) common += sample.variance / (double)samples_.size();
    for (int64_t c = 0; c < view_.k && risk < 1; ++c) {
      if (estimates()[c] == nothing || view_.size(c) < 2) continue;
      const double variance = variances_ == nullptr ? common : variances_[c];
      const double mean = (dots_[c] - pivot_) / law_.temperature + law_.log_weight;
      const double above = std::max(0.0, known_ - mean), outlier = reach * std::min(view_.radii[c], unlisted);
      if (variance > 0 && known_ - mean < variance)
        risk += std::min(1.0, std::exp(view_.log_counts[c] - above * above / variance / 2));
      if (above < farthest * outlier) risk += std::erfc(above / (outlier * std::sqrt(2.0))) / 2;
    }
    return std::min(risk, 1.0);
  }

  Probed finish(double error) {
    const double shift = std::log(rho_);
    for (int64_t c = 0; c < view_.k; ++c)
      if (estimates()[c] > nothing) log_masses_[c] = estimates()[c] + shift;
    return {error, scored_};
  }

  const Kernels& kernels_;
  const View& view_;
  const Law& law_;
  const float* query_;
  const double* variances_;  // (k) of the logits, as the dispersion has them, or null
  const float* dots_;        // (k) with the means
  const double pivot_;
  const uint64_t stream_;
  double* log_masses_;
  Workspace& workspace_;
  std::vector<TailSample> samples_;
  uint64_t drawn_ = 0;
  int64_t scored_ = 0, probed_ = 0, budget_ = std::numeric_limits<int64_t>::max();
  double best_score_ = nothing;  // of the items scanned last
  double known_ = nothing;       // log of the sum over the clusters that were scanned
  Total tail_ = {nothing, 0.0};  // the same of the estimates of all others
  double rho_ = 1.0;             // what the estimates of the tail are multiplied by
};

}  // namespace

Probed probe(const Kernels& kernels, const View& view, const Law& law, int64_t place, double* log_masses,
             Workspace& workspace) {
  return Probe(kernels, view, law, place, log_masses, workspace).run();
}

std::map<std::string, double> probing_constants() {
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
