// What the moments of a cluster prove about its items: bounds on its best score and on its log mass.
#include "index/bounds.h"

#include <algorithm>
#include <cmath>

namespace softindex {
namespace {

constexpr double unit = 0x1.0p-24;  // relative rounding error of float32
// The sum of a scan is off by its exponentials (three units), the rounding of their arguments (down to -87, two
// roundings each) and float32 sums over blocks of 64.
constexpr double scan_slack = (4 * 87 + 128) * unit;

// Bennett's bound: a distribution with mean zero, variance <= v and no value above b has log E exp(l X) at most this.
// In terms of x = l b and a = v / b^2 it is log((exp(-a x) + a exp(x)) / (1 + a)).
double bennett(double inverse_temperature, double v, double b) {
  if (!(b > 0)) return 0.0;
  const double x = inverse_temperature * b, a = std::min(v / (b * b), 1e300), span = x * (1 + a);
  if (span < 700) return x + std::log((a + std::exp(-span)) / (1 + a));
  // Here exp would underflow, which must not make the bound too small.
  const double first = -a * x, second = x + std::log(a);
  return std::max(first, second) + std::log1p(std::exp(-std::fabs(first - second))) - std::log1p(a);
}

// An upper bound of the variance of the true scores of a cluster, q' S q, from the estimate that was evaluated.
double variance_bound(const View& view, int64_t cluster, double estimate, double norm, double lost) {
  const double radius = view.radii[cluster], all = norm * norm * radius * radius;
  if (view.dispersion.kind == Forms::none) return all;
  const double extended = norm + lost;
  // Forms of rank r were evaluated at the rounded query: sqrt(q' S q) is a norm of q, and in no direction larger than
  // R. Full forms were summed in float32 over d(d+1)/2 products, of rows no longer than sqrt(2) R^2.
  double bound = estimate + (double)view.excess[cluster] * extended * extended;
  if (view.dispersion.kind == Forms::rank) {
    bound += (double)view.dispersion.spread[cluster] * (extended * extended - norm * norm);
    const double root = std::sqrt(bound) + radius * lost;
    bound = root * root;
  } else {
    bound += (dot_error(view.triangle()) + 4 * unit) * 1.5 * all;
  }
  return std::min(all, bound * (1 + 1e-9)) + 1e-300;
}

// No true score of the cluster lies farther above the mean's than this.
double largest_deviation(const View& view, int64_t cluster, double mean_dot, double norm, double rounded_cosine,
                         double vanished) {
  const double radius = norm * (double)view.radii[cluster];
  double highest = norm * (double)view.norm_max[cluster];
  if (view.min_cosine != nullptr && view.half_squares[cluster] > 0 && norm > 0) {
    // The cone: no item is farther from the direction of the mean than its angle. Between the query and the cone's edge
    // lies the difference of two angles, if the query is outside.
    const double length = std::sqrt(2 * view.half_squares[cluster]);
    const double query = std::max(-1.0, (mean_dot + vanished) / (norm * length) + rounded_cosine);
    const double edge = view.min_cosine[cluster];
    // The cosine of the difference grows with the first and falls with the second, so both may err to this side.
    if (query < edge) {
      const double cosine = query * edge + std::sqrt((1 - query * query) * (1 - edge * edge)) + 1e-9;
      highest = norm * (double)(cosine >= 0 ? view.norm_max[cluster] : view.norm_min[cluster]) * std::min(cosine, 1.0);
    }
  }
  return std::min(radius, highest - mean_dot);
}

}  // namespace

QueryLength measure_query(Query& query) {
  const double norm = std::sqrt(query.squared_norm()) * (1 + 1e-12);
  return {norm, query.view.rounding(), query.view.vanished(norm)};
}

double scan_error(const Query& query, const QueryLength& length, double longest) {
  const double dots = length.rounding * length.norm * longest + length.vanished;
  return dots / query.temperature + weight_slack;
}

double exhaustive_error(Query& query, double log_partition, double largest_bias) {
  const double norm = std::sqrt(query.squared_norm());
  const View& view = query.view;
  const double dots = (view.rounding() * norm * view.longest_sum + view.vanished(norm)) / query.temperature;
  double terms = std::fabs(log_partition);
  // Taking items away from masses relative to the pivot may leave a sum far below it.
  if (query.request.restriction != nullptr) terms += std::fabs(query.pivot / query.temperature);
  return dots + 1e-14 * largest_bias + (4 * 87 + 32) * unit + 1e-15 * terms;
}

double best_score_bound(const Query& query, const QueryLength& length, int64_t c) {
  const View& view = query.view;
  const double norm = length.norm;
  // |q|R around the mean, and the rounding of both dot products.
  double bound = query.mean_dots[c] + norm * ((double)view.radii[c] + 2.02 * length.rounding * view.summed_lengths[c]);
  if (view.bias_max != nullptr) {
    const double bias = query.temperature * view.bias_max[c];
    bound += bias + 0x1.0p-50 * (std::fabs(bias) + norm * view.norm_max[c]);
  }
  return bound + 2 * length.vanished;
}

void log_mass_bounds(Query& query, double* lower, double* upper) {
  const View& view = query.view;
  const double* log_sizes = view.sizes.of(query.request.law);
  const float* dots = query.mean_dots;
  const double* variances = query.variances;
  const double temperature = query.temperature, lost = query.rounding_loss;
  const QueryLength length = measure_query(query);
  const double norm = length.norm, inverse = 1.0 / temperature, pivot = query.pivot;
  const double rounded_cosine = length.rounding + 1e-9, vanished = length.vanished;
  // A coordinate of a stored mean is off by `unit` of itself, or by half the smallest float32 there is.
  const double smallest = norm * std::sqrt((double)view.d) * 0x1.0p-149;
  const double squared_temperature = temperature * temperature;
  for (int64_t c = 0; c < view.k; ++c) {
    if (view.empty(c)) {
      lower[c] = upper[c] = minus_infinity;
      continue;
    }
    if (c >= view.first_known) {
      lower[c] = upper[c] = query.log_masses[c];
      continue;
    }
    const double mean_dot = dots[c], longest = norm * (double)view.norm_max[c];
    // The dot with the mean rounds, the stored mean is a rounded one, and every score of a scan rounds again.
    const double rounded = length.rounding * norm * view.summed_lengths[c] + vanished,
                 centre = rounded + 2 * unit * longest + smallest;
    const double score_slack = centre + rounded;
    const double slack = inverse * score_slack + scan_slack + 1e-14 * std::fabs(log_sizes[c]) +
                         1e-15 * inverse * (std::fabs(mean_dot) + std::fabs(pivot));
    const double base = (mean_dot - pivot) * inverse + log_sizes[c];
    lower[c] = base - slack;  // Jensen
    const double farthest = largest_deviation(view, c, mean_dot, norm, rounded_cosine, vanished);
    const double deviation = std::max(0.0, farthest + 2 * centre);
    const double estimate =
        variances == nullptr ? norm * norm * view.radii[c] * view.radii[c] : variances[c] * squared_temperature;
    const double variance = variances == nullptr ? estimate : variance_bound(view, c, estimate, norm, lost);
    upper[c] = base + slack + bennett(inverse, variance, deviation) * (1 + 1e-12);
  }
}

double largest_bias(const View& view, const Request& request) {
  if (view.bias == nullptr || request.law.kind != Kind::exhaustive) return 0.0;
  float largest = 0;
  for (int64_t i = 0; i < view.extent; ++i) largest = std::max(largest, std::fabs(view.bias[i]));
  return largest;
}

}  // namespace softindex
