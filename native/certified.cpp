// Draws that are provably exact, and log Z between proven bounds, from scanning only the cells that bounds leave over.
#include "certified.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "bounds.h"
#include "codes.h"
#include "draw.h"
#include "masses.h"
#include "philox.h"

namespace softindex {
namespace {

constexpr double nothing = -std::numeric_limits<double>::infinity();
// Codes that are off by more than this, over the temperature, would be rejected too often: then floats are scanned.
constexpr double largest_code_error = 0.7;
// Bytes of the next cell that are asked for ahead of time.
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
    // Bounds may fall by hundreds of powers of e when a cell is scanned: keep what is left away from underflow.
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

// What is proven about each cell of one query. All log masses are relative to pivot / temperature.
class Certificate {
 public:
  explicit Certificate(const CertifiedQuery& asked)
      : kernels_(asked.kernels), view_(asked.view), law_(asked.law), workspace_(asked.workspace),
        estimates_(asked.log_masses), query_(&workspace_.queries[asked.place * padded(view_.d)]),
        dots_(&workspace_.cell_dots[asked.place * view_.k]), length_(measure_query(view_, query_)),
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

  State state(int64_t cell) const { return (State)states_[cell]; }
  double lower(int64_t cell) const { return lower_[cell]; }
  double upper(int64_t cell) const { return upper_[cell]; }
  int64_t scored() const { return scored_; }
  const float* query() const { return query_; }

  // The cell's log mass from its float32 scores, which stay in the workspace with their weights and prefix sums.
  double scan(int64_t cell) {
    const int64_t begin = view_.offsets[cell], count = view_.size(cell);
    kernels_.scan(view_.items(begin, begin + count), query_, workspace_.dots.data());
    fetch(view_.vectors + view_.offsets[next_] * view_.d);
    const double found = weigh(cell, workspace_.dots.data());
    if (state(cell) == State::bounded) scored_ += count;
    states_[cell] = (uint8_t)State::scanned;
    // What was found is within the bounds; were it not, by some damage, the draw would be wrong without a word.
    if (!(found >= lower_[cell] && found <= upper_[cell])) throw std::runtime_error("a cluster's bounds do not hold");
    lower_[cell] = upper_[cell] = found;
    return found;
  }

  // The cell that will probably be wanted next: memory brings it while the weights of this one are computed.
  void expect(int64_t cell) { next_ = cell; }

  // Whether the codes of a cell are precise enough to be of use within this error.
  bool codes_serve(int64_t cell, double error) const {
    return view_.codes != nullptr && coded_.norm * view_.code_errors[cell] * inverse_ <= error;
  }

  // Bounds of the cell's log mass from its codes: the coded scores, weights and prefix sums stay in the workspace.
  void code(int64_t cell) {
    const double slack = coded_scores(kernels_, view_, cell, coded_, workspace_.coded_query.data(), dots_[cell],
                                      workspace_.code_dots.data(), workspace_.dots.data());
    fetch(view_.codes + view_.offsets[next_] * view_.d);
    const double found = weigh(cell, workspace_.dots.data());
    scored_ += view_.size(cell);
    states_[cell] = (uint8_t)State::coded;
    // Not tightened by the bounds from before: the weights of the items must add up to it.
    upper_[cell] = found + slack * inverse_ + weight_slack;
    lower_[cell] = std::max(lower_[cell], found - slack * inverse_ - weight_slack);
  }

  double total(int64_t cell) const { return workspace_.prefix[blocks(view_.size(cell)) - 1]; }
  double logit(int64_t position, float score) const {
    return ((double)score - pivot_) * inverse_ + (view_.bias == nullptr ? 0.0 : (double)view_.bias[position]);
  }
  float score(int64_t position) const {
    float result;
    kernels_.scan(view_.items(position, position + 1), query_, &result);
    return result;
  }

  // log Z between bounds that allow for the rounding of what was scanned. Each sum is taken relative to its own largest
  // term, as the bounds of a cell may be farther apart than exp can tell.
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

  // The best guess of a cell's log mass.
  double between(int64_t cell) const {
    if (state(cell) == State::bounded) return std::min(std::max(estimates_[cell], lower_[cell]), upper_[cell]);
    return (lower_[cell] + upper_[cell]) / 2;
  }

  double error(int64_t cell) const {
    return state(cell) == State::bounded ? 0.0 : scan_error(view_, law_, length_.norm, view_.norm_max[cell]);
  }
  double width(int64_t cell) const { return upper_[cell] - lower_[cell] + 2 * error(cell); }
  // What the logit of one item may be off by.
  double item_error(int64_t cell) const {
    return inverse_ * (length_.rounding * length_.norm * view_.norm_max[cell] + vanishing(view_.d));
  }
  double in_log_partition(double relative) const { return pivot_ * inverse_ + relative; }

 private:
  template <class Element>
  static void fetch(const Element* from) {
    for (int64_t byte = 0; byte < fetched; byte += 64) __builtin_prefetch((const char*)from + byte, 0, 2);
  }

  double weigh(int64_t cell, const float* dots) {
    const float* bias = view_.bias == nullptr ? nullptr : view_.bias + view_.offsets[cell];
    const Mass mass = kernels_.weigh(dots, view_.size(cell), inverse_, bias, workspace_.weights.data(),
                                     workspace_.prefix.data());
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

// Draws by rejection: a cell in proportion to the bound of its mass, kept with the probability that its mass has of the
// bound; a cell once scanned is never rejected again. With codes the same is done for the item inside the cell, with
// the coded weights as bounds.
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
    order_by_cell(pending.data(), pending.data() + pending.size());
    for (size_t i = 0; i < pending.size(); ++i) {
      const PendingDraw& next = pending[i];
      if (i == 0 || next.cell != pending[i - 1].cell) certificate_.scan(next.cell);
      const int64_t inside = pick_item(next.cell, next.uniform);
      positions[next.slot] = asked_.view.offsets[next.cell] + inside;
      log_prob[next.slot] = certificate_.logit(positions[next.slot], asked_.workspace.dots[inside]);
    }
    const Bracket all = certificate_.bracket();
    for (int64_t j = 0; j < n; ++j) {
      const double logit = log_prob[j], error = certificate_.item_error(cell_of(asked_.view, positions[j]));
      log_prob[j] = std::min(0.0, logit - all.value);
      low[j] = std::min(log_prob[j], logit - all.high - error);
      high[j] = std::min(0.0, logit - all.low + error);
    }
    return std::min(asked_.view.n, certificate_.scored());
  }

 private:
  int64_t pick_item(int64_t cell, double uniform) const {
    const Workspace& workspace = asked_.workspace;
    return asked_.kernels.pick(workspace.weights.data(), workspace.prefix.data(), asked_.view.size(cell), uniform);
  }

  void draw(uint64_t key, uint64_t stream, int64_t j, int64_t* positions, double* logits,
            std::vector<PendingDraw>& pending) {
    // Every attempt has random numbers of its own: keys far apart.
    for (uint64_t attempt = 0;; ++attempt) {
      const Uniforms first = uniforms(key + 2 * attempt * step, stream, (uint64_t)j);
      const Uniforms second = uniforms(key + (2 * attempt + 1) * step, stream, (uint64_t)j);
      const int64_t cell = weights_.pick(first.first);
      if (cell < 0) throw std::runtime_error("no cluster holds any weight");
      if (certificate_.state(cell) != State::scanned)
        certificate_.expect(std::max<int64_t>(
            0, weights_.pick(uniforms(key + 2 * (attempt + 1) * step, stream, (uint64_t)j).first)));
      if (!keep(cell, first.second)) continue;
      if (certificate_.state(cell) == State::scanned) {
        pending.push_back({cell, j, second.first, 0.0});
        return;
      }
      if (keep_item(cell, second, &positions[j], &logits[j])) return;
    }
  }

  // Whether the cell stays chosen, once what was only bounded of it is known.
  bool keep(int64_t cell, double uniform) {
    const State before = certificate_.state(cell);
    if (before == State::scanned) return true;
    const double bound = weights_[cell], peak = weights_.peak(), upper = certificate_.upper(cell);
    if (before == State::bounded && certificate_.codes_serve(cell, largest_code_error)) certificate_.code(cell);
    // Without codes, or where these tell less than the bounds do, or when a cell is chosen a second time.
    if (certificate_.state(cell) == before || certificate_.upper(cell) >= upper) certificate_.scan(cell);
    const double found = certificate_.upper(cell);
    weights_.lower(cell, found);
    return uniform * bound < std::exp(found - peak);
  }

  // An item of a cell that was just coded: proposed by its coded weight, kept by its true one.
  bool keep_item(int64_t cell, const Uniforms& uniforms, int64_t* position, double* logit) const {
    const int64_t inside = pick_item(cell, uniforms.first);
    const double share = asked_.workspace.weights[inside] / certificate_.total(cell);
    *position = asked_.view.offsets[cell] + inside;
    *logit = certificate_.logit(*position, certificate_.score(*position));
    return uniforms.second * weights_[cell] * share < std::exp(*logit - weights_.peak());
  }

  static constexpr uint64_t step = 0x9E3779B97F4A7C15ull;
  const CertifiedQuery& asked_;
  Certificate certificate_;
  Weights weights_;
};

// The cells that hold anything, the largest bound first.
std::vector<int64_t>& by_upper_bound(const CertifiedQuery& asked, const Certificate& certificate) {
  std::vector<int64_t>& cells = asked.workspace.cells;
  cells.clear();
  for (int64_t c = 0; c < asked.view.k; ++c)
    if (asked.view.size(c) > 0) cells.push_back(c);
  std::sort(cells.begin(), cells.end(), [&](int64_t a, int64_t b) {
    return certificate.upper(a) != certificate.upper(b) ? certificate.upper(a) > certificate.upper(b) : a < b;
  });
  return cells;
}

// Scans in that order, while the bounds are farther apart than the tolerance and the budget lasts. Returns how many
// cells.
size_t scan_until(const CertifiedQuery& asked, Certificate& certificate, const std::vector<int64_t>& cells,
                  int64_t budget) {
  // Looking at the sum of all bounds costs about as much as scanning a cell: look after 1, 2, 4, ... of them.
  size_t done = 0, look = 0;
  for (; done < cells.size() && certificate.scored() < budget; ++done) {
    if (done == look) {
      const Bracket now = certificate.bracket();
      if (now.high - now.low <= asked.law.tolerance) return done;
      look += std::max<size_t>(1, std::min<size_t>(look, 32));
    }
    const int64_t cell = cells[done];
    if (certificate.codes_serve(cell, asked.law.tolerance / 4)) certificate.code(cell);
    // Rounding may leave codes less precise than they promise; if no cell is wider than the tolerance, no sum is.
    if (certificate.state(cell) == State::bounded || certificate.width(cell) > asked.law.tolerance)
      certificate.scan(cell);
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

// The part of Z in the cells left over, of which each lies between two bounds: cells are drawn in proportion to the
// distance of their bounds, and where a cell's mass lies between them is a number in [0, 1].
class Tail {
 public:
  Tail(Certificate& certificate, const int64_t* begin, const int64_t* end)
      : certificate_(certificate), cells_(begin, end), peak_(nothing) {
    for (int64_t cell : cells_) peak_ = std::max(peak_, certificate.upper(cell));
    for (int64_t cell : cells_) {
      low_ += std::exp(certificate.lower(cell) - peak_);
      running_.push_back(gap_ += std::exp(certificate.upper(cell) - peak_) - std::exp(certificate.lower(cell) - peak_));
      lower_.push_back(certificate.lower(cell));
      upper_.push_back(certificate.upper(cell));
    }
  }

  double draw(double uniform) {
    const auto found = std::upper_bound(running_.begin(), running_.end(), uniform * gap_);
    const size_t i = std::min<size_t>(found - running_.begin(), cells_.size() - 1);
    const int64_t cell = cells_[i];
    const double mass = certificate_.state(cell) == State::scanned ? certificate_.upper(cell) : certificate_.scan(cell);
    const double width = std::exp(upper_[i] - peak_) - std::exp(lower_[i] - peak_);
    return width > 0 ? std::min(1.0, std::max(0.0, (std::exp(mass - peak_) - std::exp(lower_[i] - peak_)) / width)) : 0;
  }

  // log of the tail's sum if it lies this far between its bounds.
  double log_at(double part) const { return peak_ + std::log(low_ + gap_ * std::min(1.0, std::max(0.0, part))); }
  bool is_certain() const { return !(gap_ > 0); }

 private:
  Certificate& certificate_;
  std::vector<int64_t> cells_;
  double peak_, low_ = 0, gap_ = 0;
  std::vector<double> running_, lower_, upper_;
};

}  // namespace

double scan_error(const View& view, const Law& law, double query_norm, double longest) {
  return (rounding(view.d) * query_norm * longest + vanishing(view.d)) / law.temperature + weight_slack;
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
  const std::vector<int64_t> cells = by_upper_bound(query, certificate);
  const size_t done = scan_until(query, certificate, cells, budget);
  Bracket proven = certificate.bracket();
  if (proven.high - proven.low <= query.law.tolerance || done == cells.size()) return absolute(certificate, proven);
  double known_low = nothing, known_high = nothing;
  for (size_t i = 0; i < done; ++i) {
    known_low = log_add(known_low, certificate.lower(cells[i]) - certificate.error(cells[i]));
    known_high = log_add(known_high, certificate.upper(cells[i]) + certificate.error(cells[i]));
  }
  Tail tail(certificate, cells.data() + done, cells.data() + cells.size());
  MeanInterval mean(1.0 - confidence);
  // Every draw scans a cell; small cells must not make this endless.
  const int64_t most = certificate.scored() + 2 * budget, draws = std::max<int64_t>(64, query.view.k);
  double low = proven.low, high = proven.high, value = proven.value;
  const double rounded = scan_error(query.view, query.law, measure_query(query.view, certificate.query()).norm,
                                    query.view.longest);
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
