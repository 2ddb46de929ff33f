// Draws that are provably exact, and log Z between proven bounds, from scanning only the clusters that bounds leave
// over.
#include "index/certified.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "base/philox.h"
#include "index/bounds.h"
#include "index/codes.h"
#include "index/draw.h"
#include "index/masses.h"

namespace softindex {
namespace {

constexpr double nothing = -std::numeric_limits<double>::infinity();
// Codes that are off by more than this, over the temperature, would be rejected too often: then floats are scanned.
constexpr double largest_code_error = 0.7;
// Bytes of the next cluster that are asked for ahead of time.
constexpr int64_t fetched = 16384;
// The coded weights are float32 exponentials: see scan_slack in bounds.cpp.
constexpr double weight_slack = 1e-4;
// An estimate with confidence scans this many items, or one in so many of all, before it draws; and twice as many then.
constexpr int64_t budget_items = 8192, budget_part = 20;

// Weights that change one at a time, and draws in proportion to them: sums of blocks are kept.
class Weights {
 public:
  Weights(std::vector<double>& logs, std::vector<double>& weights, std::vector<double>& sums)
      : logs_(logs), weights_(weights), sums_(sums) {
    weights_.resize(logs.size());
    sums_.resize(blocks((int64_t)logs.size()));
    reset();
  }

  double operator[](int64_t i) const { return weights_[i]; }
  double peak() const { return peak_; }

  void lower(int64_t i, double log_weight) {
    logs_[i] = log_weight;
    weights_[i] = std::exp(log_weight - peak_);
    sum_block(i / block_size);
    // Bounds may fall by hundreds of powers of e when a cluster is scanned: keep what is left away from underflow.
    if (total() < 1e-200) reset();
  }

  int64_t pick(double uniform) const {
    double rest = uniform * total();
    for (int64_t block = 0; block < (int64_t)sums_.size(); ++block) {
      if (rest >= sums_[block]) {
        rest -= sums_[block];
        continue;
      }
      const int64_t begin = block * block_size, end = std::min(begin + block_size, (int64_t)weights_.size());
      for (int64_t i = begin; i < end; ++i) {
        rest -= weights_[i];
        if (rest < 0) return i;
      }
    }
    // Rounding may leave a rest behind the last weight.
    int64_t last = (int64_t)weights_.size() - 1;
    while (last >= 0 && !(weights_[last] > 0)) --last;
    return last;
  }

 private:
  double total() const { return std::accumulate(sums_.begin(), sums_.end(), 0.0); }
  void sum_block(int64_t block) {
    const auto begin = weights_.begin() + block * block_size;
    const auto end = std::min(begin + block_size, weights_.end());
    sums_[block] = std::accumulate(begin, end, 0.0);
  }
  void reset() {
    peak_ = *std::max_element(logs_.begin(), logs_.end());
    if (!std::isfinite(peak_)) throw std::runtime_error("no cluster holds any weight");
    for (size_t i = 0; i < logs_.size(); ++i) weights_[i] = std::exp(logs_[i] - peak_);
    for (size_t block = 0; block < sums_.size(); ++block) sum_block((int64_t)block);
  }

  std::vector<double>&logs_, &weights_, &sums_;
  double peak_ = 0.0;
};

enum class State : uint8_t { bounded, coded, scanned };

// What is proven about each cluster of one query. All log masses are relative to pivot / temperature.
class Certificate {
 public:
  explicit Certificate(const CertifiedQuery& asked)
      : kernels_(asked.kernels), view_(asked.view), law_(asked.law), workspace_(asked.workspace),
        estimates_(asked.log_masses), query_(&workspace_.queries[asked.place * padded(view_.d)]),
        dots_(&workspace_.cluster_dots[asked.place * view_.k]), length_(measure_query(view_, query_)),
        pivot_(workspace_.pivots[asked.place]), inverse_(1.0 / law_.temperature), lower_(workspace_.lower),
        upper_(workspace_.upper), states_(workspace_.states) {
    lower_.resize(view_.k);
    upper_.resize(view_.k);
    states_.assign(view_.k, (uint8_t)State::bounded);
    log_mass_bounds(view_, law_, asked.place, lower_.data(), upper_.data(), workspace_);
    if (view_.codes != nullptr) {
      workspace_.coded_query.assign(padded(view_.d), 0);
      coded_ = stage_coded_query(view_, query_, workspace_.coded_query.data());
    }
  }

  State state(int64_t cluster) const { return (State)states_[cluster]; }
  double lower(int64_t cluster) const { return lower_[cluster]; }
  double upper(int64_t cluster) const { return upper_[cluster]; }
  int64_t scored() const { return scored_; }
  const float* query() const { return query_; }

  // The cluster's log mass from its float32 scores, which stay in the workspace with their weights and prefix sums.
  double scan(int64_t cluster) {
    const int64_t begin = view_.offsets[cluster], count = view_.size(cluster);
    kernels_.scan(view_.items(begin, begin + count), query_, workspace_.dots.data());
    fetch(view_.vectors + view_.offsets[next_] * view_.d);
    const double found = weigh(cluster, workspace_.dots.data());
    if (state(cluster) == State::bounded) scored_ += count;
    states_[cluster] = (uint8_t)State::scanned;
    // What was found is within the bounds; were it not, by some damage, the draw would be wrong without a word.
    if (!(found >= lower_[cluster] && found <= upper_[cluster]))
      throw std::runtime_error("a cluster's bounds do not hold");
    lower_[cluster] = upper_[cluster] = found;
    return found;
  }

  // The cluster that will probably be wanted next: memory brings it while the weights of this one are computed.
  void expect(int64_t cluster) { next_ = cluster; }

  // Whether the codes of a cluster are precise enough to be of use within this error.
  bool codes_serve(int64_t cluster, double error) const {
    return view_.codes != nullptr && coded_.norm * view_.code_errors[cluster] * inverse_ <= error;
  }

  // Bounds of the cluster's log mass from its codes: the coded scores, weights and prefix sums stay in the workspace.
  void code(int64_t cluster) {
    const double slack = coded_scores(kernels_, view_, cluster, coded_, workspace_.coded_query.data(), dots_[cluster],
                                      workspace_.code_dots.data(), workspace_.dots.data());
    fetch(view_.codes + view_.offsets[next_] * view_.d);
    const double found = weigh(cluster, workspace_.dots.data());
    scored_ += view_.size(cluster);
    states_[cluster] = (uint8_t)State::coded;
    // Not tightened by the bounds from before: the weights of the items must add up to it.
    upper_[cluster] = found + slack * inverse_ + weight_slack;
    lower_[cluster] = std::max(lower_[cluster], found - slack * inverse_ - weight_slack);
  }

  double total(int64_t cluster) const { return workspace_.prefix[blocks(view_.size(cluster)) - 1]; }
  double logit(int64_t position, float score) const {
    return ((double)score - pivot_) * inverse_ + (view_.bias == nullptr ? 0.0 : (double)view_.bias[position]);
  }
  float score(int64_t position) const {
    float result;
    kernels_.scan(view_.items(position, position + 1), query_, &result);
    return result;
  }

  // log Z between bounds that allow for the rounding of what was scanned. Each sum is taken relative to its own largest
  // term, as the bounds of a cluster may be farther apart than exp can tell.
  Bracket bracket() const {
    double tops[3] = {nothing, nothing, nothing}, sums[3] = {};
    for (int64_t c = 0; c < view_.k; ++c) {
      tops[0] = std::max(tops[0], lower_[c]);
      tops[1] = std::max(tops[1], between(c));
      tops[2] = std::max(tops[2], upper_[c]);
    }
    for (int64_t c = 0; c < view_.k; ++c) {
      if (view_.size(c) == 0) continue;
      const double slack = error(c);
      sums[0] += std::exp(lower_[c] - slack - tops[0]);
      sums[1] += std::exp(between(c) - tops[1]);
      sums[2] += std::exp(upper_[c] + slack - tops[2]);
    }
    const double low = tops[0] + std::log(sums[0]), high = tops[2] + std::log(sums[2]);
    return {std::min(std::max(tops[1] + std::log(sums[1]), low), high), low, high, scored_};
  }

  // The best guess of a cluster's log mass.
  double between(int64_t cluster) const {
    if (state(cluster) == State::bounded)
      return std::min(std::max(estimates_[cluster], lower_[cluster]), upper_[cluster]);
    return (lower_[cluster] + upper_[cluster]) / 2;
  }

  double error(int64_t cluster) const {
    return state(cluster) == State::bounded ? 0.0 : scan_error(view_, law_, length_.norm, view_.norm_max[cluster]);
  }
  double width(int64_t cluster) const { return upper_[cluster] - lower_[cluster] + 2 * error(cluster); }
  // What the logit of one item may be off by.
  double item_error(int64_t cluster) const {
    return inverse_ * (length_.rounding * length_.norm * view_.norm_max[cluster] + vanishing(view_.d));
  }
  double in_log_partition(double relative) const { return pivot_ * inverse_ + relative; }

 private:
  template <class Element>
  static void fetch(const Element* from) {
    for (int64_t byte = 0; byte < fetched; byte += 64) __builtin_prefetch((const char*)from + byte, 0, 2);
  }

  double weigh(int64_t cluster, const float* dots) {
    const float* bias = view_.bias == nullptr ? nullptr : view_.bias + view_.offsets[cluster];
    const Mass mass =
        kernels_.weigh(dots, view_.size(cluster), inverse_, bias, workspace_.weights.data(), workspace_.prefix.data());
    if (!(mass.total > 0 && std::isfinite(mass.total))) throw std::runtime_error("a cluster holds no weight");
    return log_mass(mass, law_.temperature, pivot_);
  }

  const Kernels& kernels_;
  const View& view_;
  const Law& law_;
  Workspace& workspace_;
  const double* estimates_;
  const float* query_;
  const float* dots_;
  const QueryLength length_;
  const double pivot_, inverse_;
  std::vector<double>&lower_, &upper_;
  std::vector<uint8_t>& states_;
  CodedQuery coded_ = {};
  int64_t scored_ = 0, next_ = 0;
};

// Draws by rejection: a cluster in proportion to the bound of its mass, kept with the probability that its mass has of
// the bound; a cluster once scanned is never rejected again. With codes the same is done for the item inside the
// cluster, with the coded weights as bounds.
class Sampler {
 public:
  explicit Sampler(const CertifiedQuery& asked)
      : asked_(asked), certificate_(asked),
        weights_(asked.workspace.upper, asked.workspace.upper_weights, asked.workspace.upper_sums) {}

  int64_t run(uint64_t key, uint64_t stream, int64_t n, int64_t* positions, double* log_prob, double* low,
              double* high) {
    std::vector<PendingDraw>& pending = asked_.workspace.pending;
    pending.clear();
    for (int64_t j = 0; j < n; ++j) draw(key, stream, j, positions, log_prob, pending);
    order_by_cluster(pending.data(), pending.data() + pending.size());
    for (size_t i = 0; i < pending.size(); ++i) {
      const PendingDraw& next = pending[i];
      if (i == 0 || next.cluster != pending[i - 1].cluster) certificate_.scan(next.cluster);
      const int64_t inside = pick_item(next.cluster, next.uniform);
      positions[next.slot] = asked_.view.offsets[next.cluster] + inside;
      log_prob[next.slot] = certificate_.logit(positions[next.slot], asked_.workspace.dots[inside]);
    }
    const Bracket all = certificate_.bracket();
    for (int64_t j = 0; j < n; ++j) {
      const double logit = log_prob[j], error = certificate_.item_error(cluster_of(asked_.view, positions[j]));
      log_prob[j] = std::min(0.0, logit - all.value);
      low[j] = std::min(log_prob[j], logit - all.high - error);
      high[j] = std::min(0.0, logit - all.low + error);
    }
    return std::min(asked_.view.n, certificate_.scored());
  }

 private:
  int64_t pick_item(int64_t cluster, double uniform) const {
    const Workspace& workspace = asked_.workspace;
    return asked_.kernels.pick(workspace.weights.data(), workspace.prefix.data(), asked_.view.size(cluster), uniform);
  }

  void draw(uint64_t key, uint64_t stream, int64_t j, int64_t* positions, double* logits,
            std::vector<PendingDraw>& pending) {
    // Every attempt has random numbers of its own: keys far apart.
    for (uint64_t attempt = 0;; ++attempt) {
      const Uniforms first = uniforms(key + 2 * attempt * step, stream, (uint64_t)j);
      const Uniforms second = uniforms(key + (2 * attempt + 1) * step, stream, (uint64_t)j);
      const int64_t cluster = weights_.pick(first.first);
      if (cluster < 0) throw std::runtime_error("no cluster holds any weight");
      if (certificate_.state(cluster) != State::scanned)
        certificate_.expect(
            std::max<int64_t>(0, weights_.pick(uniforms(key + 2 * (attempt + 1) * step, stream, (uint64_t)j).first)));
      if (!keep(cluster, first.second)) continue;
      if (certificate_.state(cluster) == State::scanned) {
        pending.push_back({cluster, j, second.first, 0.0});
        return;
      }
      if (keep_item(cluster, second, &positions[j], &logits[j])) return;
    }
  }

  // Whether the cluster stays chosen, once what was only bounded of it is known.
  bool keep(int64_t cluster, double uniform) {
    const State before = certificate_.state(cluster);
    if (before == State::scanned) return true;
    const double bound = weights_[cluster], peak = weights_.peak(), upper = certificate_.upper(cluster);
    if (before == State::bounded && certificate_.codes_serve(cluster, largest_code_error)) certificate_.code(cluster);
    // Without codes, or where these tell less than the bounds do, or when a cluster is chosen a second time.
    if (certificate_.state(cluster) == before || certificate_.upper(cluster) >= upper) certificate_.scan(cluster);
    const double found = certificate_.upper(cluster);
    weights_.lower(cluster, found);
    return uniform * bound < std::exp(found - peak);
  }

  // An item of a cluster that was just coded: proposed by its coded weight, kept by its true one.
  bool keep_item(int64_t cluster, const Uniforms& uniforms, int64_t* position, double* logit) const {
    const int64_t inside = pick_item(cluster, uniforms.first);
    const double share = asked_.workspace.weights[inside] / certificate_.total(cluster);
    *position = asked_.view.offsets[cluster] + inside;
    *logit = certificate_.logit(*position, certificate_.score(*position));
    return uniforms.second * weights_[cluster] * share < std::exp(*logit - weights_.peak());
  }

  static constexpr uint64_t step = 0x9E3779B97F4A7C15ull;
  const CertifiedQuery& asked_;
  Certificate certificate_;
  Weights weights_;
};

// The clusters that hold anything, the largest bound first.
std::vector<int64_t>& by_upper_bound(const CertifiedQuery& asked, const Certificate& certificate) {
  std::vector<int64_t>& clusters = asked.workspace.clusters;
  clusters.clear();
  for (int64_t c = 0; c < asked.view.k; ++c)
    if (asked.view.size(c) > 0) clusters.push_back(c);
  std::sort(clusters.begin(), clusters.end(), [&](int64_t a, int64_t b) {
    return certificate.upper(a) != certificate.upper(b) ? certificate.upper(a) > certificate.upper(b) : a < b;
  });
  return clusters;
}

// Scans in that order, while the bounds are farther apart than the tolerance and the budget lasts. Returns how many
// clusters.
size_t scan_until(const CertifiedQuery& asked, Certificate& certificate, const std::vector<int64_t>& clusters,
                  int64_t budget) {
  // Looking at the sum of all bounds costs about as much as scanning a cluster: look after 1, 2, 4, ... of them.
  size_t done = 0, look = 0;
  for (; done < clusters.size() && certificate.scored() < budget; ++done) {
    if (done == look) {
      const Bracket now = certificate.bracket();
      if (now.high - now.low <= asked.law.tolerance) return done;
      look += std::max<size_t>(1, std::min<size_t>(look, 32));
    }
    const int64_t cluster = clusters[done];
    if (certificate.codes_serve(cluster, asked.law.tolerance / 4)) certificate.code(cluster);
    // Rounding may leave codes less precise than they promise; if no cluster is wider than the tolerance, no sum is.
    if (certificate.state(cluster) == State::bounded || certificate.width(cluster) > asked.law.tolerance)
      certificate.scan(cluster);
  }
  return done;
}

Bracket absolute(const Certificate& certificate, Bracket bracket) {
  bracket.value = certificate.in_log_partition(bracket.value);
  bracket.low = certificate.in_log_partition(bracket.low);
  bracket.high = certificate.in_log_partition(bracket.high);
  return bracket;
}

// A running interval for the mean of numbers in [0, 1] that holds at all times together with probability 1 - delta:
// the predictable plug-in empirical Bernstein bound of Waudby-Smith and Ramdas (2024).
class MeanInterval {
 public:
  explicit MeanInterval(double delta) : budget_(std::log(2.0 / delta)) {}

  void add(double x) {
    const double i = ++count_;
    const double bet = std::min(0.8, std::sqrt(2 * budget_ / (variance_ * i * std::log(1 + i))));
    const double away = x - mean_;
    bets_ += bet;
    weighted_ += bet * x;
    cost_ += away * away * (-std::log1p(-bet) - bet);
    sum_ += x;
    mean_ = (0.5 + sum_) / (i + 1);
    squares_ += (x - mean_) * (x - mean_);
    variance_ = (0.25 + squares_) / (i + 1);
  }

  double centre() const { return weighted_ / bets_; }
  double radius() const { return (budget_ + cost_) / bets_; }

 private:
  double budget_, count_ = 0, mean_ = 0.5, variance_ = 0.25, sum_ = 0, squares_ = 0;
  double bets_ = 0, weighted_ = 0, cost_ = 0;
};

// The part of Z in the clusters left over, of which each lies between two bounds: clusters are drawn in proportion to
// the distance of their bounds, and where a cluster's mass lies between them is a number in [0, 1].
class Tail {
 public:
  Tail(Certificate& certificate, const int64_t* begin, const int64_t* end)
      : certificate_(certificate), clusters_(begin, end), peak_(nothing) {
    for (int64_t cluster : clusters_) peak_ = std::max(peak_, certificate.upper(cluster));
    for (int64_t cluster : clusters_) {
      low_ += std::exp(certificate.lower(cluster) - peak_);
      running_.push_back(gap_ +=
                         std::exp(certificate.upper(cluster) - peak_) - std::exp(certificate.lower(cluster) - peak_));
      lower_.push_back(certificate.lower(cluster));
      upper_.push_back(certificate.upper(cluster));
    }
  }

  double draw(double uniform) {
    const auto found = std::upper_bound(running_.begin(), running_.end(), uniform * gap_);
    const size_t i = std::min<size_t>(found - running_.begin(), clusters_.size() - 1);
    const int64_t cluster = clusters_[i];
    const double mass =
        certificate_.state(cluster) == State::scanned ? certificate_.upper(cluster) : certificate_.scan(cluster);
    const double width = std::exp(upper_[i] - peak_) - std::exp(lower_[i] - peak_);
    return width > 0 ? std::min(1.0, std::max(0.0, (std::exp(mass - peak_) - std::exp(lower_[i] - peak_)) / width)) : 0;
  }

  // log of the tail's sum if it lies this far between its bounds.
  double log_at(double part) const { return peak_ + std::log(low_ + gap_ * std::min(1.0, std::max(0.0, part))); }
  bool is_certain() const { return !(gap_ > 0); }

 private:
  Certificate& certificate_;
  std::vector<int64_t> clusters_;
  double peak_, low_ = 0, gap_ = 0;
  std::vector<double> running_, lower_, upper_;
};

}  // namespace

double scan_error(const View& view, const Law& law, double query_norm, double longest) {
  return (dot_error(view.d) * query_norm * longest + vanishing(view.d)) / law.temperature + weight_slack;
}

bool worth_bounding(const View& view) {
  // In rows of floats: the mean, its forms, and the arithmetic of a bound. Small indexes are read in no time anyway.
  const double forms = view.forms_kind == Forms::full ? (double)view.d / 4 : (double)view.rank / 4;
  return view.n < 10000 || (double)view.k * (1.5 + forms) < (double)view.n / 8;
}

int64_t sample_certified(const CertifiedQuery& query, uint64_t key, uint64_t stream, int64_t n, int64_t* positions,
                         double* log_prob, double* low, double* high) {
  return Sampler(query).run(key, stream, n, positions, log_prob, low, high);
}

Bracket prove_log_partition(const CertifiedQuery& query) {
  Certificate certificate(query);
  scan_until(query, certificate, by_upper_bound(query, certificate), std::numeric_limits<int64_t>::max());
  return absolute(certificate, certificate.bracket());
}

Bracket estimate_log_partition(const CertifiedQuery& query, double confidence, uint64_t key, uint64_t stream) {
  Certificate certificate(query);
  const int64_t budget = std::max(budget_items, query.view.n / budget_part);
  const std::vector<int64_t> clusters = by_upper_bound(query, certificate);
  const size_t done = scan_until(query, certificate, clusters, budget);
  Bracket proven = certificate.bracket();
  if (proven.high - proven.low <= query.law.tolerance || done == clusters.size()) return absolute(certificate, proven);
  double known_low = nothing, known_high = nothing;
  for (size_t i = 0; i < done; ++i) {
    known_low = log_add(known_low, certificate.lower(clusters[i]) - certificate.error(clusters[i]));
    known_high = log_add(known_high, certificate.upper(clusters[i]) + certificate.error(clusters[i]));
  }
  Tail tail(certificate, clusters.data() + done, clusters.data() + clusters.size());
  MeanInterval mean(1.0 - confidence);
  // Every draw scans a cluster; small clusters must not make this endless.
  const int64_t most = certificate.scored() + 2 * budget, draws = std::max<int64_t>(64, query.view.k);
  double low = proven.low, high = proven.high, value = proven.value;
  const double rounded =
      scan_error(query.view, query.law, measure_query(query.view, certificate.query()).norm, query.view.longest);
  for (int64_t j = 0; j < draws && certificate.scored() < most && !tail.is_certain(); ++j) {
    mean.add(tail.draw(uniforms(key, stream, (uint64_t)j).first));
    low = std::max(low, log_add(known_low, tail.log_at(mean.centre() - mean.radius())) - rounded);
    high = std::min(high, log_add(known_high, tail.log_at(mean.centre() + mean.radius())) + rounded);
    value = log_add((known_low + known_high) / 2, tail.log_at(mean.centre()));
    if (high - low <= query.law.tolerance) break;
  }
  // What was drawn is scanned, and tells the certain bounds something too.
  proven = certificate.bracket();
  if (proven.low >= low && proven.high <= high) return absolute(certificate, proven);
  low = std::max(low, proven.low);
  high = std::max(low, std::min(high, proven.high));
  return absolute(certificate, {std::min(std::max(value, low), high), low, high, certificate.scored()});
}

}  // namespace softindex
