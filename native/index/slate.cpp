// Draws from a part of a law: without some items, without those already drawn, or from its most probable ones only.
#include "index/slate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/philox.h"
#include "index/top_k.h"

namespace softindex {

constexpr double nothing = -std::numeric_limits<double>::infinity();
constexpr float gone = -std::numeric_limits<float>::infinity();

Remainder::Remainder(const Kernels& kernels, const View& view, double temperature, const float* query,
                     const double* log_masses)
    : kernels_(kernels), view_(view), temperature_(temperature), query_(query), left_(view.n),
      masses_(log_masses, log_masses + view.k), place_(view.k, -1) {}

Mass Remainder::weigh(int64_t cluster, const Kept& kept) const {
  const float* bias = view_.bias == nullptr ? nullptr : view_.bias + view_.offsets[cluster];
  return kernels_.weigh(&dots_[kept.begin], view_.size(cluster), 1.0 / temperature_, bias, nullptr, nullptr);
}

Remainder::Kept& Remainder::keep(int64_t cluster) {
  if (place_[cluster] >= 0) return kept_[place_[cluster]];
  const int64_t begin = (int64_t)dots_.size(), count = view_.size(cluster);
  dots_.resize(begin + count);
  kernels_.scan(view_.items(view_.offsets[cluster], view_.offsets[cluster + 1]), query_, &dots_[begin]);
  Kept kept = {begin, count, masses_[cluster], 0.0f, 0.0};
  const Mass whole = weigh(cluster, kept);
  kept.reference = whole.reference;
  kept.log_sum = whole.peak + std::log(whole.total);
  place_[cluster] = (int64_t)kept_.size();
  kept_.push_back(kept);
  return kept_.back();
}

// The mass falls as the sum of the items does. The sum is found anew from what is left, never by subtraction: what a
// dominating item leaves behind keeps all its digits.
void Remainder::lower(int64_t cluster, const Kept& kept) {
  if (kept.left == 0) {
    masses_[cluster] = nothing;
    return;
  }
  const Mass rest = weigh(cluster, kept);
  const double fall = ((double)rest.reference - kept.reference) / temperature_;
  masses_[cluster] = kept.log_mass + (fall + (rest.peak + std::log(rest.total) - kept.log_sum));
}

void Remainder::take(const int64_t* positions, int64_t count) {
  for (int64_t i = 0; i < count;) {
    const int64_t cluster = cluster_of(view_, positions[i]), begin = view_.offsets[cluster],
                  end = view_.offsets[cluster + 1];
    Kept& kept = keep(cluster);
    for (; i < count && positions[i] < end; ++i) {
      dots_[kept.begin + positions[i] - begin] = gone;
      --kept.left;
      --left_;
    }
    lower(cluster, kept);
  }
}

const float* Remainder::dots(int64_t cluster) { return &dots_[keep(cluster).begin]; }

namespace {

// A law over few items, by name: the most probable first.
struct Listed {
  std::vector<int64_t> positions;
  std::vector<double> log_prob;

  int64_t size() const { return (int64_t)positions.size(); }
};

// Sums of probabilities that should meet top_p may miss it by their rounding.
constexpr double almost = 1.0 - 1e-12;

struct Candidate {
  double log_prob;
  int64_t position;
};

bool comes_later(const Candidate& a, const Candidate& b) {
  return a.log_prob != b.log_prob ? a.log_prob < b.log_prob : a.position > b.position;
}

// Scans a cluster and adds those of its items that are left to the heap.
void add_candidates(const Asked& asked, Remainder& rest, int64_t cluster, double share, std::vector<Candidate>& heap) {
  const double temperature = asked.law.temperature;
  const ScannedCluster scanned =
      weigh_cluster(asked.kernels, asked.view, temperature, cluster, rest.dots(cluster), asked.workspace);
  for (int64_t i = 0; i < scanned.count; ++i) {
    if (scanned.dots[i] == gone) continue;
    heap.push_back({share + log_within(asked.view, temperature, scanned, i), scanned.begin + i});
    std::push_heap(heap.begin(), heap.end(), comes_later);
  }
}

// The most probable items, in order, until they reach top_p. Clusters are scanned by decreasing share: no item of a
// cluster is more probable than the cluster, so a candidate above the next cluster's share is the next item of all.
Listed nucleus(const Asked& asked, Remainder& rest, double top_p) {
  const double* masses = rest.log_masses();
  const Total total = weigh_clusters(asked.kernels, asked.view, masses, asked.workspace);
  std::vector<int64_t>& clusters = asked.workspace.clusters;
  clusters.clear();
  for (int64_t c = 0; c < asked.view.k; ++c)
    if (rest.left(c) > 0) clusters.push_back(c);
  const auto later = [&](int64_t a, int64_t b) { return masses[a] != masses[b] ? masses[a] < masses[b] : a > b; };
  std::make_heap(clusters.begin(), clusters.end(), later);
  Listed listed;
  std::vector<Candidate> heap;
  double reached = 0;
  while (reached < top_p * almost && !(clusters.empty() && heap.empty())) {
    const double share = clusters.empty() ? nothing : log_share(masses[clusters.front()], total);
    if (!heap.empty() && heap.front().log_prob > share) {
      listed.positions.push_back(heap.front().position);
      listed.log_prob.push_back(heap.front().log_prob);
      reached += std::exp(heap.front().log_prob);
      std::pop_heap(heap.begin(), heap.end(), comes_later);
      heap.pop_back();
    } else if (!clusters.empty()) {
      add_candidates(asked, rest, clusters.front(), share, heap);
      std::pop_heap(clusters.begin(), clusters.end(), later);
      clusters.pop_back();
    } else {
      break;  // items so improbable that their logarithm is -infinity
    }
  }
  const double log_reached = std::log(reached);
  for (double& value : listed.log_prob) value = std::min(0.0, value - log_reached);
  return listed;
}

// The softmax of the k best items that are not excluded; log_sum: log of its Z, relative to pivot / temperature.
Listed best_items(const Asked& asked, const Restriction& restriction, double& log_sum, int64_t& scored) {
  const double temperature = asked.law.temperature;
  const int64_t* excluded = restriction.excluded;
  // As many more as there are excluded ones: what is left of them holds the k best of the rest.
  const int64_t wanted = std::min(asked.view.n, restriction.k + restriction.count);
  std::vector<int64_t> positions(wanted);
  std::vector<float> scores(wanted);
  scored = top_k(asked.kernels, asked.view, asked.query, temperature, wanted, restriction.probes, positions.data(),
                 scores.data(), asked.workspace);
  const std::vector<double>& exact = asked.workspace.best_scores;
  Listed listed;
  double best = 0, sum = 0;
  for (int64_t i = 0; i < wanted && listed.size() < restriction.k; ++i) {
    if (std::binary_search(excluded, excluded + restriction.count, positions[i])) continue;
    if (listed.size() == 0) best = exact[i];
    listed.positions.push_back(positions[i]);
    listed.log_prob.push_back((exact[i] - best) / temperature);
    sum += std::exp(listed.log_prob.back());
  }
  const double log_total = std::log(sum);
  for (double& value : listed.log_prob) value -= log_total;
  log_sum = (best - asked.pivot) / temperature + log_total;
  return listed;
}

// The first items that reach top_p together.
void cut(Listed& listed, double top_p) {
  if (top_p >= 1) return;
  int64_t held = 0;
  double reached = 0;
  while (held < listed.size() && reached < top_p * almost) reached += std::exp(listed.log_prob[held++]);
  listed.positions.resize(held);
  listed.log_prob.resize(held);
  const double log_reached = std::log(reached);
  for (double& value : listed.log_prob) value = std::min(0.0, value - log_reached);
}

// The weights of a listed law, from which items are taken one by one.
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
  void take(int64_t i) {
    log_prob_[i] = nothing;
    weights_[i] = 0.0f;
    add_up(i / block_size, i / block_size + 1);
    // What is left may be so small that float32 tells its items apart badly or not at all: measure it by itself.
    if (prefix_.back() < 1e-3) weigh();
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

void draw_listed(const Kernels& kernels, const Listed& listed, bool replace, uint64_t key, uint64_t stream, int64_t n,
                 int64_t* positions, double* log_prob) {
  ListedWeights weights(kernels, listed.log_prob);
  for (int64_t j = 0; j < n; ++j) {
    const int64_t i = weights.pick(uniforms(key, stream, (uint64_t)j).first);
    positions[j] = listed.positions[i];
    log_prob[j] = replace ? listed.log_prob[i] : weights.log_step(i);
    if (!replace && j + 1 < n) weights.take(i);
  }
}

// Independent draws: those that chose the same cluster share its weighing.
void draw_with_replacement(const Asked& asked, Remainder& rest, uint64_t key, uint64_t stream, int64_t n,
                           int64_t* positions, double* log_prob) {
  std::vector<PendingDraw>& pending = asked.workspace.pending;
  pending.resize(n);
  choose_clusters(asked.kernels, asked.view, rest.log_masses(), key, stream, n, 0, pending.data(), asked.workspace);
  for (int64_t from = 0, to = 0; from < n; from = to) {
    const int64_t cluster = pending[from].cluster;
    while (to < n && pending[to].cluster == cluster) ++to;
    const ScannedCluster scanned =
        weigh_cluster(asked.kernels, asked.view, asked.law.temperature, cluster, rest.dots(cluster), asked.workspace);
    pick_items(asked.kernels, asked.view, asked.law.temperature, scanned, &pending[from], pending.data() + to,
               positions, log_prob, asked.workspace);
  }
}

// Each draw from what the earlier ones left.
void draw_in_sequence(const Asked& asked, Remainder& rest, uint64_t key, uint64_t stream, int64_t n, int64_t* positions,
                      double* log_prob) {
  Workspace& workspace = asked.workspace;
  for (int64_t j = 0; j < n; ++j) {
    const Uniforms u = uniforms(key, stream, (uint64_t)j);
    const Total total = weigh_clusters(asked.kernels, asked.view, rest.log_masses(), workspace);
    const int64_t cluster =
        asked.kernels.pick(workspace.cluster_weights.data(), workspace.cluster_prefix.data(), asked.view.k, u.first);
    const PendingDraw draw = {cluster, j, u.second, log_share(rest.log_masses()[cluster], total)};
    const ScannedCluster scanned =
        weigh_cluster(asked.kernels, asked.view, asked.law.temperature, cluster, rest.dots(cluster), workspace);
    pick_items(asked.kernels, asked.view, asked.law.temperature, scanned, &draw, &draw + 1, positions, log_prob,
               workspace);
    if (j + 1 < n) rest.take(positions[j]);
  }
}

double log_total(const Kernels& kernels, const View& view, const double* log_masses) {
  const Total total = kernels.weigh_masses(log_masses, view.k, nullptr, nullptr);
  return total.peak + total.log_total;
}

// What an error becomes where the law is looked at through a part of it only. A law that states none (NaN) still does
// not, and an exact one stays so.
double magnify(double error, double part) {
  if (error == 0 || std::isnan(error)) return error;
  return part > 0 ? std::min(1.0, error / part) : 1.0;
}

// law_error: what the law states of itself, whose total the k best are compared with.
Drawn sample_best(const Asked& asked, const Restriction& restriction, const Remainder& rest, double law_error,
                  uint64_t key, uint64_t stream, int64_t n, int64_t* positions, double* log_prob) {
  double log_sum;
  int64_t scored;
  Listed listed = best_items(asked, restriction, log_sum, scored);
  const bool complete = listed.size() == rest.left();
  const double share = std::exp(log_sum - log_total(asked.kernels, asked.view, rest.log_masses()));
  cut(listed, restriction.top_p);
  // An estimated total may be below that of the k best: what it is in doubt by still counts, as zero would be a proof.
  const double left_out = std::max(0.0, 1.0 - share) + (law_error > 0 ? law_error : 0.0) + 1e-16;
  const double error = complete ? 0.0 : magnify(std::min(1.0, left_out), restriction.top_p);
  const Drawn drawn = {listed.size(), std::min(asked.view.n, scored + rest.scored()), error};
  if (restriction.replace || n <= drawn.left)
    draw_listed(asked.kernels, listed, restriction.replace, key, stream, n, positions, log_prob);
  return drawn;
}

void log_prob_listed(const Listed& listed, const int64_t* positions, int64_t m, double* log_prob) {
  std::vector<int64_t> order(listed.size());
  for (int64_t i = 0; i < listed.size(); ++i) order[i] = i;
  const auto before = [&](int64_t i, int64_t position) { return listed.positions[i] < position; };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return before(a, listed.positions[b]); });
  for (int64_t j = 0; j < m; ++j) {
    const auto found = std::lower_bound(order.begin(), order.end(), positions[j], before);
    const bool there = found != order.end() && listed.positions[*found] == positions[j];
    log_prob[j] = there ? listed.log_prob[*found] : nothing;
  }
}

void log_prob_remaining(const Asked& asked, Remainder& rest, const int64_t* positions, int64_t m, double* log_prob) {
  const double* masses = rest.log_masses();
  const Total total = weigh_clusters(asked.kernels, asked.view, masses, asked.workspace);
  std::vector<PendingDraw>& pending = asked.workspace.pending;
  pending.resize(m);
  for (int64_t j = 0; j < m; ++j) {
    const int64_t cluster = cluster_of(asked.view, positions[j]);
    pending[j] = {cluster, j, 0.0, log_share(masses[cluster], total)};
  }
  order_by_cluster(pending.data(), pending.data() + m);
  ScannedCluster scanned = {};
  for (int64_t j = 0; j < m; ++j) {
    const PendingDraw& next = pending[j];
    log_prob[next.slot] = nothing;
    if (rest.left(next.cluster) == 0) continue;
    if (j == 0 || next.cluster != pending[j - 1].cluster)
      scanned = weigh_cluster(asked.kernels, asked.view, asked.law.temperature, next.cluster, rest.dots(next.cluster),
                              asked.workspace);
    log_prob[next.slot] =
        next.log_share + log_within(asked.view, asked.law.temperature, scanned, positions[next.slot] - scanned.begin);
  }
}

}  // namespace

Drawn sample_part(const Asked& asked, const Restriction& restriction, double error, uint64_t key, uint64_t stream,
                  int64_t n, int64_t* positions, double* log_prob) {
  Remainder rest(asked.kernels, asked.view, asked.law.temperature, asked.query, asked.log_masses);
  rest.take(restriction.excluded, restriction.count);
  if (rest.left() == 0) return {};
  if (restriction.k > 0) return sample_best(asked, restriction, rest, error, key, stream, n, positions, log_prob);
  const double part = std::exp(log_total(asked.kernels, asked.view, rest.log_masses()) -
                               log_total(asked.kernels, asked.view, asked.log_masses));
  Drawn drawn = {rest.left(), 0, magnify(error, part * restriction.top_p)};
  if (restriction.top_p < 1) {
    const Listed listed = nucleus(asked, rest, restriction.top_p);
    drawn.left = listed.size();
    if (restriction.replace || n <= drawn.left)
      draw_listed(asked.kernels, listed, restriction.replace, key, stream, n, positions, log_prob);
  } else if (restriction.replace) {
    draw_with_replacement(asked, rest, key, stream, n, positions, log_prob);
  } else if (n <= drawn.left) {
    draw_in_sequence(asked, rest, key, stream, n, positions, log_prob);
  }
  drawn.scored = asked.law.exhaustive() ? asked.view.n : rest.scored();
  return drawn;
}

void log_prob_part(const Asked& asked, const Restriction& restriction, const int64_t* positions, int64_t m,
                   double* log_prob) {
  if (restriction.count == asked.view.n) return;
  if (restriction.k > 0) {
    double log_sum;
    int64_t scored;
    Listed listed = best_items(asked, restriction, log_sum, scored);
    cut(listed, restriction.top_p);
    return log_prob_listed(listed, positions, m, log_prob);
  }
  Remainder rest(asked.kernels, asked.view, asked.law.temperature, asked.query, asked.log_masses);
  rest.take(restriction.excluded, restriction.count);
  if (restriction.top_p < 1) {
    const Listed listed = nucleus(asked, rest, restriction.top_p);
    return log_prob_listed(listed, positions, m, log_prob);
  }
  log_prob_remaining(asked, rest, positions, m, log_prob);
}

}  // namespace softindex
