// What a few sampled clusters say about the tail: the clusters that were not scanned.
#include "index/tail.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/streams.h"
#include "index/probe_constants.h"
#include "index/scan.h"

namespace softindex {
namespace {

struct Stretch {
  int64_t items = 0;  // that were not removed
  double variance = 0;
};

// The logits of the stretch whose dots are in the workspace, without biases.
Stretch measure_stretch(const Query& query, int64_t count) {
  const float* dots = query.workspace.dots.data();
  const double inverse = query.inverse_temperature();
  Stretch stretch;
  double sum = 0, squares = 0, reference = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (dots[i] == gone) continue;
    if (stretch.items++ == 0) reference = dots[i];
    const double logit = (dots[i] - reference) * inverse;
    sum += logit;
    squares += logit * logit;
  }
  const double items = (double)std::max<int64_t>(stretch.items, 1), mean = sum / items;
  stretch.variance = std::max(0.0, squares / items - mean * mean);
  return stretch;
}

}  // namespace

// Names the sample. Rounded to eight bits of its largest coordinate, a query is the same at any length: twice the query
// at twice the temperature is the same softmax, and gets the same law.
uint64_t name_direction(const Query& query) {
  const int64_t d = query.view.d;
  float peak = 0;
  for (int64_t j = 0; j < d; ++j) peak = std::max(peak, std::fabs(query.vector[j]));
  const double inverse = peak > 0 ? 127.0 / (double)peak : 0.0;
  std::vector<int8_t>& integers = query.workspace.rounded_query;
  integers.resize(d);
  for (int64_t j = 0; j < d; ++j) integers[j] = (int8_t)std::nearbyint(query.vector[j] * inverse);
  return hash_bytes(integers.data(), d);
}

// As long as its noise requires: a few items give the mean of exp(logit) where logits hardly vary.
int64_t stretch_length(const Query& query, int64_t cluster, double share) {
  const int64_t size = query.view.size(cluster);
  // Where biases weigh items, a few may carry their cluster, and a stretch would mostly miss them.
  if (query.view.bias != nullptr) return size;
  const double variance = query.variances == nullptr ? 1.0 : std::min(query.variances[cluster], 6.0);
  // The share of the tail decides how much its total matters.
  const double weight = share * (1 - share) / query.request.tolerance;
  const double enough = std::min(2 * weight * weight, probing::most_precise) * std::expm1(variance);
  // Also where damaged vectors made it NaN, which no integer holds.
  if (!(enough < (double)size)) return size;
  return std::min(size, std::max(probing::shortest_stretch, (int64_t)enough));
}

TailSample judge_stretch(const Query& query, int64_t cluster, int64_t count, double log_sum) {
  const Stretch stretch = measure_stretch(query, count);
  const bool complete = count == query.view.size(cluster);
  TailSample sample = {cluster, 0, 0, 0, stretch.variance, complete ? log_sum : minus_infinity};
  // A stretch of removed items alone says that the cluster may hold nothing: its sum is zero.
  const double size = (double)query.view.count(cluster), items = (double)std::max<int64_t>(stretch.items, 1);
  const double log_ratio = log_sum + std::log(size / items) - query.workspace.estimates[cluster];
  sample.ratio = std::exp(std::min(log_ratio, 50.0));
  const double excess = std::expm1(std::min(sample.variance, probing::largest_variance));
  sample.noise = excess / items * (1.0 - items / size);
  sample.misfit = std::min(excess / size, probing::largest_misfit);
  return sample;
}

// Both unknowns are judged from the sample and, as a small sample is often tame by chance, from what the variance of
// the logits leads to expect; the larger counts.
TailError tail_error(const std::vector<TailSample>& samples, double rho, double share) {
  const double count = (double)samples.size();
  double deviation = 0, squares = 0, noise = 0, misfit = 0, expected = 0;
  for (const TailSample& sample : samples) {
    const double relative = sample.ratio / rho - 1.0;
    deviation += std::fabs(relative);
    squares += relative * relative;
    noise += sample.noise;
    misfit += sample.misfit;
    expected += std::min(probing::mean_deviation * std::sqrt(sample.misfit), 2.0);
  }
  deviation *= 1.0 / (count - 1.0);
  noise /= count;
  const double from_noise = probing::mean_deviation * probing::mean_deviation * noise;
  const double seen = std::sqrt(std::max(0.0, deviation * deviation - from_noise));
  const double spread = std::max(seen, expected / count);
  const double uncertainty =
      std::sqrt(std::max(squares / (count - 1.0), noise + misfit / count) / count) * probing::mean_deviation;
  return {std::min(share, share * spread / 2 + share * (1 - share) * uncertainty), share * std::min(uncertainty, 1.0)};
}

bool hopeless(const Query& query, double error, int64_t budget) {
  const View& view = query.view;
  Workspace& workspace = query.workspace;
  std::vector<float>& shares = workspace.shares;
  const int64_t affordable = std::min(view.k - 1, budget * view.k / view.n + 1);
  shares.assign(workspace.cluster_weights.begin(), workspace.cluster_weights.begin() + view.k);
  std::nth_element(shares.begin(), shares.begin() + affordable, shares.end(), std::greater<float>());
  const double best = std::accumulate(shares.begin(), shares.begin() + affordable, 0.0);
  const double left = 1.0 - best / workspace.cluster_prefix[blocks(view.k) - 1];
  return error * left > std::max(query.request.tolerance, probing::no_hope);
}

}  // namespace softindex
