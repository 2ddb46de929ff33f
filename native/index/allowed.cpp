// Items that a query lists as the only ones that it may draw: scored one by one, and no others.
#include "index/allowed.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/interrupt.h"
#include "index/best_items.h"
#include "index/scan.h"

namespace softindex {
namespace {

// Rows that are fetched before they are read, and how many are scored between two looks at signals.
constexpr int64_t ahead = 8, at_once = 1 << 12;

// Scores (count) of the listed items, their log biases times the temperature included.
std::vector<double> score(const Query& query, const Positions& listed) {
  const View& view = query.view;
  std::vector<double> scores(listed.count);
  std::vector<float> dots(std::min(listed.count, at_once));
  for (int64_t next = 0; next < listed.count;) {
    check_interrupt_every(1 << 4, next / at_once);
    // Items side by side are scanned together.
    int64_t end = next + 1;
    while (end < listed.count && end - next < at_once && listed.first[end] == listed.first[end - 1] + 1) ++end;
    if (end - next == 1 && next + ahead < listed.count) {
      const StoredItem item = stored_at(view, listed.first[next + ahead]);
      for (int64_t byte = 0; byte < item.bytes; byte += 64) __builtin_prefetch((const char*)item.first + byte);
    }
    scan_items(query.kernels, view, listed.first[next], listed.first[end - 1] + 1, query.vector, dots.data());
    for (int64_t i = next; i < end; ++i) {
      scores[i] = dots[i - next];
      if (view.bias != nullptr) scores[i] += query.temperature * view.bias[listed.first[i]];
    }
    next = end;
  }
  return scores;
}

void order_by_probability(Listed& items) {
  std::vector<int64_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  // Positions increase, so equals stay in the order in which they are stored.
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return items.log_prob[a] > items.log_prob[b]; });
  Listed sorted;
  for (int64_t i : order) {
    sorted.positions.push_back(items.positions[i]);
    sorted.log_prob.push_back(items.log_prob[i]);
  }
  items = std::move(sorted);
}

// Keeps the first k, renormalised; returns the probability of the others.
double keep_first(Listed& items, int64_t k) {
  if (items.size() <= k) return 0.0;
  double kept = 0, others = 0;
  for (int64_t i = 0; i < items.size(); ++i) (i < k ? kept : others) += std::exp(items.log_prob[i]);
  items.positions.resize(k);
  items.log_prob.resize(k);
  for (double& value : items.log_prob) value = std::min(0.0, value - std::log(kept));
  // Zero would be a proof that nothing was left out.
  return std::min(1.0, others + 1e-16);
}

}  // namespace

Allowed allowed_items(const Query& query) {
  const Restriction& restriction = *query.request.restriction;
  const Positions listed = restriction.listed_of(query.number);
  std::vector<double> scores = score(query, listed);
  const double best = *std::max_element(scores.begin(), scores.end()), inverse = query.inverse_temperature();
  double sum = 0;
  for (double& value : scores) {
    value = (value - best) * inverse;
    sum += std::exp(value);
  }
  const double log_sum = std::log(sum);
  for (double& value : scores) value = std::min(0.0, value - log_sum);
  Allowed allowed = {
      {{listed.first, listed.first + listed.count}, std::move(scores)}, best * inverse + log_sum, 0.0, listed.count};
  if (restriction.k == 0 && restriction.top_p >= 1) return allowed;
  order_by_probability(allowed.items);
  if (restriction.k > 0) allowed.left_out = keep_first(allowed.items, restriction.k);
  cut(allowed.items, restriction.top_p);
  return allowed;
}

void best_allowed(const Query& query, const BestResults& results) {
  const Positions listed = query.request.restriction->listed_of(query.number);
  const std::vector<double> scores = score(query, listed);
  const int64_t k = results.k, q = query.number;
  std::vector<double> kept(k);
  BestItems best = {results.positions + q * k, kept.data(), k};
  for (int64_t i = 0; i < listed.count; ++i)
    if (scores[i] >= best.threshold()) best.offer(scores[i], listed.first[i]);
  if (!best.full()) throw std::runtime_error("items are missing from the clusters");
  best.sort();
  for (int64_t j = 0; j < k; ++j) {
    results.scores[q * k + j] = (float)kept[j];
    results.proven[q * k + j] = true;
  }
  results.gap[q] = results.missed[q] = 0.0;
  results.scored[q] = listed.count;
}

}  // namespace softindex
