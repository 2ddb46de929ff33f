// Distributions over few items, listed one by one: a nucleus, or the best k.
#include "index/listed.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/interrupt.h"
#include "index/draw.h"
#include "index/scan.h"
#include "index/top_k.h"

namespace softindex {
namespace {

// Sums of probabilities that should meet top_p may miss it by their rounding.
constexpr double almost = 1.0 - 1e-12;
// Below this share of their first sum the weights that are left are computed again: float32 would hardly
// distinguish them.
constexpr double too_small = 1e-3;

struct Candidate {
  double log_prob;
  int64_t position;
};

bool comes_later(const Candidate& a, const Candidate& b) {
  return a.log_prob != b.log_prob ? a.log_prob < b.log_prob : a.position > b.position;
}

// Scans a cluster and adds those of its items that are left to the heap.
void add_candidates(const Query& query, Remainder& rest, int64_t cluster, double share, std::vector<Candidate>& heap) {
  const ScannedCluster scanned = weigh_cluster(query, cluster, rest.dots(cluster));
  for (int64_t i = 0; i < scanned.count; ++i) {
    if (scanned.dots[i] == gone) continue;
    heap.push_back({share + log_within(query, scanned, i), scanned.begin + i});
    std::push_heap(heap.begin(), heap.end(), comes_later);
  }
}

void renormalise(Listed& listed, double reached) {
  const double log_reached = std::log(reached);
  for (double& value : listed.log_prob) value = std::min(0.0, value - log_reached);
}

// Where items are in a list.
class ListedPlaces {
 public:
  explicit ListedPlaces(const Listed& listed) : listed_(listed), order_(listed.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(),
              [&](int64_t a, int64_t b) { return listed_.positions[a] < listed_.positions[b]; });
  }

  // The place of the item at this position, or -1.
  int64_t find(int64_t position) const {
    const auto before = [&](int64_t i, int64_t wanted) { return listed_.positions[i] < wanted; };
    const auto place = std::lower_bound(order_.begin(), order_.end(), position, before);
    return place != order_.end() && listed_.positions[*place] == position ? *place : -1;
  }

 private:
  const Listed& listed_;
  std::vector<int64_t> order_;
};

// The weights of a listed distribution, from which items are taken one by one.
class ListedWeights {
 public:
  ListedWeights(const Kernels& kernels, const std::vector<double>& log_prob)
      : kernels_(kernels), log_prob_(log_prob), weights_(log_prob.size()), sums_(blocks(log_prob.size())),
        prefix_(sums_.size()) {
    weigh();
  }

  int64_t pick(double uniform) const {
    return kernels_.pick(weights_.data(), prefix_.data(), (int64_t)weights_.size(), uniform);
  }
  double log_step(int64_t i) const { return std::min(0.0, (log_prob_[i] - peak_) - std::log(prefix_.back())); }
  bool gone(int64_t i) const { return log_prob_[i] == minus_infinity; }
  void take(int64_t i) {
    log_prob_[i] = minus_infinity;
    weights_[i] = 0.0f;
    add_up(i / block_size, i / block_size + 1);
    if (prefix_.back() < too_small) weigh();
  }

 private:
  void weigh() {
    const int64_t count = (int64_t)weights_.size();
    peak_ = kernels_.weigh_masses(log_prob_.data(), count, weights_.data(), prefix_.data()).peak;
    add_up(0, (int64_t)sums_.size());
  }
  // Sums of the blocks first .. last, and the running totals of all. Nothing is subtracted, so no digits are lost.
  void add_up(int64_t first, int64_t last) {
    const int64_t count = (int64_t)weights_.size();
    for (int64_t block = first; block < last; ++block) {
      sums_[block] = 0;
      for (int64_t i = block * block_size; i < std::min(count, (block + 1) * block_size); ++i)
        sums_[block] += weights_[i];
    }
    for (size_t block = first; block < sums_.size(); ++block)
      prefix_[block] = (block == 0 ? 0.0 : prefix_[block - 1]) + sums_[block];
  }

  const Kernels& kernels_;
  std::vector<double> log_prob_;
  std::vector<float> weights_;
  std::vector<double> sums_, prefix_;
  double peak_ = 0;
};

}  // namespace

// Clusters are scanned by decreasing share: no item of a cluster is more probable than the cluster, so a candidate
// above the next cluster's share is the next item of all.
Listed nucleus(const Query& query, Remainder& rest, double top_p) {
  const double* masses = rest.log_masses();
  const Total total = weigh_clusters(query, masses);
  std::vector<int64_t>& clusters = query.workspace.clusters;
  clusters.clear();
  for (int64_t c = 0; c < query.view.k; ++c)
    if (rest.left(c) > 0) clusters.push_back(c);
  const auto later = [&](int64_t a, int64_t b) { return masses[a] != masses[b] ? masses[a] < masses[b] : a > b; };
  std::make_heap(clusters.begin(), clusters.end(), later);
  Listed listed;
  std::vector<Candidate> heap;
  double reached = 0;
  while (reached < top_p * almost && !(clusters.empty() && heap.empty())) {
    const double share = clusters.empty() ? minus_infinity : log_share(masses[clusters.front()], total);
    if (!heap.empty() && heap.front().log_prob > share) {
      listed.positions.push_back(heap.front().position);
      listed.log_prob.push_back(heap.front().log_prob);
      reached += std::exp(heap.front().log_prob);
      std::pop_heap(heap.begin(), heap.end(), comes_later);
      heap.pop_back();
    } else if (!clusters.empty()) {
      add_candidates(query, rest, clusters.front(), share, heap);
      std::pop_heap(clusters.begin(), clusters.end(), later);
      clusters.pop_back();
    } else {
      break;  // items so improbable that their logarithm is -infinity
    }
  }
  renormalise(listed, reached);
  return listed;
}

BestListed best_items(Query& query, const Positions& excluded, int64_t k) {
  const double temperature = query.temperature;
  BestListed best = {};
  Listed& items = best.items;
  const int64_t count = std::min(k, query.view.n - excluded.count);
  items.positions.resize(count);
  std::vector<double>& scores = query.workspace.best_scores;
  scores.resize(count);
  Best found = {items.positions.data(), scores.data()};
  top_k(&query, 1, {count, query.request.probes}, &found);
  best.scored = found.scored;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    items.log_prob.push_back((scores[i] - scores[0]) / temperature);
    sum += std::exp(items.log_prob.back());
  }
  const double log_total = std::log(sum);
  for (double& value : items.log_prob) value -= log_total;
  best.log_sum = (scores[0] - query.pivot) / temperature + log_total;
  return best;
}

void cut(Listed& listed, double top_p) {
  if (top_p >= 1) return;
  int64_t count = 0;
  double reached = 0;
  while (count < listed.size() && reached < top_p * almost) reached += std::exp(listed.log_prob[count++]);
  listed.positions.resize(count);
  listed.log_prob.resize(count);
  renormalise(listed, reached);
}

void draw_listed(const Query& query, const Listed& listed, int64_t n, int64_t* positions, double* log_prob) {
  const bool replace = query.request.restriction->replace;
  ListedWeights weights(query.kernels, listed.log_prob);
  for (int64_t j = 0; j < n; ++j) {
    check_interrupt_every(1 << 8, j);
    const int64_t i = weights.pick(query.stream((uint64_t)j).first);
    positions[j] = listed.positions[i];
    log_prob[j] = replace ? listed.log_prob[i] : weights.log_step(i);
    if (!replace && j + 1 < n) weights.take(i);
  }
}

void listed_log_prob(const Listed& listed, const int64_t* positions, int64_t m, double* log_prob) {
  const ListedPlaces places(listed);
  for (int64_t j = 0; j < m; ++j) {
    const int64_t i = places.find(positions[j]);
    log_prob[j] = i < 0 ? minus_infinity : listed.log_prob[i];
  }
}

void listed_steps_log_prob(const Kernels& kernels, const Listed& listed, const int64_t* positions, int64_t m,
                           double* log_prob) {
  const ListedPlaces places(listed);
  ListedWeights weights(kernels, listed.log_prob);
  int64_t left = listed.size();
  for (int64_t j = 0; j < m; ++j) {
    check_interrupt_every(1 << 8, j);
    const int64_t i = places.find(positions[j]);
    const bool possible = i >= 0 && left > 0 && !weights.gone(i);
    log_prob[j] = possible ? weights.log_step(i) : minus_infinity;
    if (!possible) continue;
    if (--left > 0 && j + 1 < m) weights.take(i);
  }
}

}  // namespace softindex
