// The k best items of a query, proven by bounds on the clusters, or from a limited number of clusters.
#include "index/top_k.h"

#include <algorithm>
#include <stdexcept>

#include "index/bounds.h"
#include "index/draw.h"

namespace softindex {
namespace {

// A heap of the best items so far. Its root is the worst of them: the lowest score, and among equals the last position.
struct BestItems {
  int64_t* positions;
  double* scores;
  int64_t k;
  int64_t count = 0;

  static bool better(double score, int64_t position, double other_score, int64_t other_position) {
    return score != other_score ? score > other_score : position < other_position;
  }
  bool better_at(int64_t a, int64_t b) const { return better(scores[a], positions[a], scores[b], positions[b]); }
  void exchange(int64_t a, int64_t b) {
    std::swap(scores[a], scores[b]);
    std::swap(positions[a], positions[b]);
  }
  void sift_down(int64_t at, int64_t size) {
    for (int64_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && better_at(child, child + 1)) ++child;
      if (!better_at(at, child)) return;
      exchange(at, child);
      at = child;
    }
  }
  void sift_up(int64_t at) {
    while (at > 0 && better_at((at - 1) / 2, at)) {
      exchange(at, (at - 1) / 2);
      at = (at - 1) / 2;
    }
  }
  bool full() const { return count == k; }
  double threshold() const { return full() ? scores[0] : minus_infinity; }
  void offer(double score, int64_t position) {
    if (!full()) {
      scores[count] = score;
      positions[count] = position;
      sift_up(count++);
    } else if (better(score, position, scores[0], positions[0])) {
      scores[0] = score;
      positions[0] = position;
      sift_down(0, k);
    }
  }
  void sort() {
    for (int64_t size = count; size > 1; --size) {
      exchange(0, size - 1);
      sift_down(0, size - 1);
    }
  }
};

void offer_cluster(const Query& query, const Positions& excluded, int64_t cluster, BestItems& best) {
  const View& view = query.view;
  const int64_t begin = view.offsets[cluster], count = view.size(cluster);
  const float* dots = scan_cluster(query, cluster);
  const float* bias = view.bias_at(begin);
  const double temperature = query.request.temperature;
  const int64_t *first = excluded.first, *last = excluded.first + excluded.count;
  double threshold = best.threshold();
  // Most clusters hold nothing that is good enough, and one pass at full speed tells so.
  if (bias == nullptr && query.kernels.largest(dots, count) < threshold) return;
  for (int64_t i = 0; i < count; ++i) {
    // In double: a large bias must not swallow the differences between scores.
    double score = dots[i];
    if (bias != nullptr) score += temperature * bias[i];
    if (!(score >= threshold)) continue;  // NaN, in a damaged index, is never offered
    if (excluded.count > 0 && std::binary_search(first, last, begin + i)) continue;
    best.offer(score, begin + i);
    threshold = best.threshold();
  }
}

}  // namespace

Best top_k(Query& query, const Positions& excluded, int64_t k, int64_t* positions) {
  const View& view = query.view;
  Workspace& workspace = query.workspace;
  best_score_bounds(query);
  const std::vector<double>& bounds = workspace.bounds;
  workspace.clusters.clear();
  for (int64_t c = 0; c < view.k; ++c)
    if (view.size(c) > 0) workspace.clusters.push_back(c);
  const auto later = [&](int64_t a, int64_t b) { return bounds[a] != bounds[b] ? bounds[a] < bounds[b] : a > b; };
  // A heap, not a sort: few clusters are looked at.
  auto first = workspace.clusters.begin(), last = workspace.clusters.end();
  std::make_heap(first, last, later);
  workspace.best_scores.resize(k);
  BestItems best = {positions, workspace.best_scores.data(), k};
  const int64_t probes = query.request.probes;
  int64_t scored = 0;
  for (int64_t visited = 0; first != last; ++visited) {
    const int64_t cluster = *first;
    if (best.full() && (probes < 0 ? bounds[cluster] < best.threshold() : visited >= probes)) break;
    offer_cluster(query, excluded, cluster, best);
    scored += view.size(cluster);
    std::pop_heap(first, last--, later);
  }
  // Every score of a sound index is a number, and so there are k of them.
  if (!best.full()) throw std::runtime_error("items are missing from the clusters");
  best.sort();
  return {scored, first == last ? minus_infinity : bounds[*first]};
}

}  // namespace softindex
