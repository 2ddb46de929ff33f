// The k best items of a query, proven by bounds on the clusters, or from a number of clusters.
#include "index/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "index/bounds.h"

namespace softindex {
namespace {

struct Best {
  int64_t* positions;
  double* scores;
  int64_t k;
  int64_t held = 0;

  // The root of the heap is the worst of the best: the lowest score, and among equals the last position.
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
  bool full() const { return held == k; }
  double threshold() const { return full() ? scores[0] : -std::numeric_limits<double>::infinity(); }
  void offer(double score, int64_t position) {
    if (!full()) {
      scores[held] = score;
      positions[held] = position;
      sift_up(held++);
    } else if (better(score, position, scores[0], positions[0])) {
      scores[0] = score;
      positions[0] = position;
      sift_down(0, k);
    }
  }
  void sort() {
    for (int64_t size = held; size > 1; --size) {
      exchange(0, size - 1);
      sift_down(0, size - 1);
    }
  }
};

int64_t offer_cluster(const Kernels& kernels, const View& view, const float* query, double temperature, int64_t cluster,
                      Best& best, Workspace& workspace) {
  const int64_t begin = view.offsets[cluster], count = view.size(cluster);
  kernels.scan(view.items(begin, begin + count), query, workspace.dots.data());
  for (int64_t i = 0; i < count; ++i) {
    // In double: a large bias must not swallow the differences between scores.
    double score = workspace.dots[i];
    if (view.bias != nullptr) score += temperature * view.bias[begin + i];
    if (score >= best.threshold()) best.offer(score, begin + i);
  }
  return count;
}

}  // namespace

int64_t top_k(const Kernels& kernels, const View& view, const float* query, double temperature, int64_t k,
              int64_t probes, int64_t* positions, float* scores, Workspace& workspace) {
  workspace.clusters.clear();
  workspace.bounds.resize(view.k);
  kernels.scan(view.mean_rows(), query, workspace.cluster_dots.data());
  best_score_bounds(view, query, temperature, workspace);
  for (int64_t c = 0; c < view.k; ++c)
    if (view.size(c) > 0) workspace.clusters.push_back(c);
  const auto later = [&](int64_t a, int64_t b) {
    const double x = workspace.bounds[a], y = workspace.bounds[b];
    return x != y ? x < y : a > b;
  };
  // A heap, not a sort: few clusters are looked at.
  auto first = workspace.clusters.begin(), last = workspace.clusters.end();
  std::make_heap(first, last, later);
  workspace.best_scores.resize(k);
  Best best = {positions, workspace.best_scores.data(), k};
  int64_t scored = 0;
  for (int64_t visited = 0; first != last; ++visited) {
    const int64_t cluster = *first;
    if (best.full() && (probes < 0 ? workspace.bounds[cluster] < best.threshold() : visited >= probes)) break;
    scored += offer_cluster(kernels, view, query, temperature, cluster, best, workspace);
    std::pop_heap(first, last--, later);
  }
  // Every score of a sound index is a number, and so there are k of them.
  if (!best.full()) throw std::runtime_error("items are missing from the clusters");
  best.sort();
  for (int64_t i = 0; i < k; ++i) scores[i] = (float)best.scores[i];
  return scored;
}

}  // namespace softindex
