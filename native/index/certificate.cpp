// What is proven about the log mass of each cluster of one query, from bounds, codes and scans.
#include "index/certificate.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "index/draw.h"
#include "index/masses.h"
#include "index/scan.h"

namespace softindex {
namespace {

// Bytes of the next cluster that are fetched ahead of time.
constexpr int64_t fetched = 16384;

void fetch(const void* from) {
  for (int64_t byte = 0; byte < fetched; byte += 64) __builtin_prefetch((const char*)from + byte, 0, 2);
}

}  // namespace

Certificate::Certificate(Query& query)
    : query_(query), kernels_(query.kernels), view_(query.view), workspace_(query.workspace),
      length_(measure_query(query)), inverse_(query.inverse_temperature()), lower_(workspace_.lower),
      upper_(workspace_.upper), states_(workspace_.states) {
  lower_.resize(view_.k);
  upper_.resize(view_.k);
  states_.assign(view_.k, (uint8_t)State::bounded);
  log_mass_bounds(query, lower_.data(), upper_.data());
  std::fill(states_.begin() + view_.first_known, states_.end(), (uint8_t)State::scanned);
  scored_ = view_.known_items();
  if (view_.codes != nullptr) coded_ = stage_coded_query(query);
}

double Certificate::weigh(int64_t cluster, const float* dots) {
  const Mass mass = kernels_.weigh(dots, view_.size(cluster), inverse_, view_.bias_at(view_.offsets[cluster]),
                                   workspace_.weights.data(), workspace_.prefix.data());
  if (!(mass.total > 0 && std::isfinite(mass.total))) throw std::runtime_error("a cluster holds no weight");
  return log_mass(mass, query_.temperature, query_.pivot);
}

double Certificate::scan(int64_t cluster) {
  const float* dots = scan_cluster(query_, cluster);
  if (view_.size(next_) > 0) fetch(stored_at(view_, view_.offsets[next_]).first);
  const double result = weigh(cluster, dots);
  if (state(cluster) == State::bounded) scored_ += view_.size(cluster);
  states_[cluster] = (uint8_t)State::scanned;
  // The result is within the bounds; if it were not, by some damage, the draw would be wrong without a word.
  if (!(result >= lower_[cluster] && result <= upper_[cluster]))
    throw std::runtime_error("a cluster's bounds do not hold");
  lower_[cluster] = upper_[cluster] = result;
  return result;
}

void Certificate::code(int64_t cluster) {
  float* scores = workspace_.dots.data();
  const double slack = coded_scores(query_, coded_, cluster, query_.mean_dots[cluster], scores);
  fetch(view_.codes + view_.offsets[next_] * view_.d);
  const double result = weigh(cluster, scores);
  scored_ += view_.size(cluster);
  states_[cluster] = (uint8_t)State::coded;
  // Not tightened by the earlier bounds: the weights of the items must add up to it.
  upper_[cluster] = result + slack * inverse_ + weight_slack;
  lower_[cluster] = std::max(lower_[cluster], result - slack * inverse_ - weight_slack);
}

float Certificate::score(int64_t position) const {
  float result;
  scan_items(kernels_, view_, position, position + 1, query_.vector, &result);
  return result;
}

// The best guess of a cluster's log mass.
double Certificate::between(int64_t cluster) const {
  if (state(cluster) == State::bounded)
    return std::min(std::max(query_.log_masses[cluster], lower_[cluster]), upper_[cluster]);
  return (lower_[cluster] + upper_[cluster]) / 2;
}

// Each sum is taken relative to its own largest term, as the bounds of a cluster may be farther apart than exp can
// represent.
Bracket Certificate::bracket() const {
  double tops[3] = {minus_infinity, minus_infinity, minus_infinity}, sums[3] = {};
  for (int64_t c = 0; c < view_.k; ++c) {
    tops[0] = std::max(tops[0], lower_[c]);
    tops[1] = std::max(tops[1], between(c));
    tops[2] = std::max(tops[2], upper_[c]);
  }
  for (int64_t c = 0; c < view_.k; ++c) {
    if (view_.empty(c)) continue;
    const double slack = error(c);
    sums[0] += std::exp(lower_[c] - slack - tops[0]);
    sums[1] += std::exp(between(c) - tops[1]);
    sums[2] += std::exp(upper_[c] + slack - tops[2]);
  }
  const double low = tops[0] + std::log(sums[0]), high = tops[2] + std::log(sums[2]);
  return {std::min(std::max(tops[1] + std::log(sums[1]), low), high), low, high, scored_};
}

Bracket Certificate::absolute(const Bracket& relative) const {
  const double pivot = query_.pivot * inverse_;
  return {pivot + relative.value, pivot + relative.low, pivot + relative.high, relative.scored};
}

}  // namespace softindex
