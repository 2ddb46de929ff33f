// What a few sampled clusters say about the tail: the clusters that were not scanned.
#include "index/tail.h"

#include <algorithm>
#include <cmath>
#include <limits>

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
double tail_error(const std::vector<TailSample>& samples, double rho, double share) {
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
  return std::min(share, share * spread / 2 + share * (1 - share) * uncertainty);
}

// Logits of mean m and variance s have one above log Z with a chance of about n exp(-z^2 / 2), z = (log Z - m) /
// sqrt(s). It counts where the Gaussian integral has its weight above log Z, which is where z^2 < s. And clusters have
// outliers that no normal distribution predicts: the farthest item lies a radius away, in whatever direction; the query
// meets it with a standard deviation of |q| R / sqrt(d).
double risk_of_extremes(Query& query, const std::vector<TailSample>& samples, double known) {
  if (known == minus_infinity) return 0.0;
  const View& view = query.view;
  const double temperature = query.request.temperature, log_weight = view.sizes.weight_of(query.request.law);
  const double* estimates = query.workspace.estimates.data();
  const double reach = std::sqrt(query.squared_norm() / (double)view.d) / temperature;
  // Adaptive probing has looked at everything that lies farther.
  const bool listed = view.outliers > 0 && query.request.probes < 0;
  const float unlisted = listed ? view.farthest : std::numeric_limits<float>::max();
  double common = 0, risk = 0;
  for (const TailSample& sample : samples) common += sample.variance / (double)samples.size();
  for (int64_t c = 0; c < view.k && risk < 1; ++c) {
    if (estimates[c] == minus_infinity || view.count(c) < 2) continue;
    const double variance = query.variances == nullptr ? common : query.variances[c];
    const double mean = (query.mean_dots[c] - query.pivot) / temperature + log_weight;
    const double above = std::max(0.0, known - mean), outlier = reach * std::min(view.radii[c], unlisted);
    if (variance > 0 && known - mean < variance)
      risk += std::min(1.0, std::exp(view.log_counts[c] - above * above / variance / 2));
    if (above < probing::farthest * outlier) risk += std::erfc(above / (outlier * std::sqrt(2.0))) / 2;
  }
  return std::min(risk, 1.0);
}

}  // namespace softindex
