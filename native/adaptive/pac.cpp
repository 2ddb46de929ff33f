// Answers queries with the "pac" guarantee: estimates where they win, a scan of everything where they do not.
#include "adaptive/pac.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/interrupt.h"
#include "base/parallel.h"

namespace softindex {
namespace {

// Share of the time of a full scan that estimates may take.
constexpr double largest_share = 0.2;
// A scan of fewer numbers takes less time than starting threads for it.
constexpr double numbers_for_threads = 1 << 23;
// Of the columns of a layer: if a query has fewer, adding them up is cheaper than reading all rows.
constexpr int64_t sparse_share = 4;
// What the rounding of sums and logarithms may add to the bounds of log Z.
constexpr double rounding_of_sums = 1e-9;

}  // namespace

void Pac::answer(const Kernels& kernels, const PacRequest& request, const PacAnswers& answers) {
  parallel(request.queries.b, request.threads, [&](const auto& next) {
    const typename Pool<Workspace>::Lease lease(pool_, [&] { return std::make_unique<Workspace>(layer_); });
    for (int64_t q = next(); q >= 0; q = next()) answer_one(kernels, request, q, *lease, answers);
  });
}

int64_t Pac::look(const Kernels& kernels, const float* query, uint64_t seed, int64_t count, const PacLook& seen) {
  const typename Pool<Workspace>::Lease lease(pool_, [&] { return std::make_unique<Workspace>(layer_); });
  Workspace& work = *lease;
  if (!work.coordinates.start(kernels, query, HUGE_VAL, seed)) return -1;
  work.estimates.start(kernels, {1.0}, HUGE_VAL);
  work.which.resize(layer_.groups());
  for (int64_t group = 0; group < layer_.groups(); ++group) work.which[group] = group;
  work.estimates.pull(work.which, count);
  const Pulls pulls = work.coordinates.pulls(0, work.coordinates.drawn());
  std::copy_n(pulls.which, pulls.rounds, seen.which);
  for (int64_t row = 0; row < layer_.n; ++row) {
    seen.values[row] = work.estimates.value(row);
    seen.variances[row] = work.estimates.variance(row);
    seen.jumps[row] = work.estimates.jump(row);
  }
  return pulls.rounds;
}

bool Pac::start(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work) const {
  const PacQueries& queries = request.queries;
  if (queries.dense != nullptr)
    return work.coordinates.start(kernels, queries.dense + q * layer_.d, queries.limit, request.seed);
  const int64_t begin = queries.offsets[q];
  return work.coordinates.start(
      kernels, SparseQuery{queries.columns + begin, queries.values + begin, queries.offsets[q + 1] - begin},
      queries.limit, request.seed);
}

void Pac::answer_one(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work,
                     const PacAnswers& answers) const {
  const Goal& goal = request.goal;
  int64_t* const cost = answers.costs + 4 * q;
  std::fill_n(cost, 4, 0);
  work.by_columns = false;
  if (!start(kernels, request, q, work)) return;
  list_candidates(request, q, work);
  work.estimates.start(kernels, request.temperature, largest_share);
  const bool won = request.estimates && work.bandit.find(work.estimates, goal, work.candidates);
  const int64_t width = layer_.rows.number == Number::float32 ? 4 : 2, scored = work.estimates.scored();
  PacCost total = {scored, work.estimates.pulled() + scored * layer_.d,
                   4 * work.estimates.pulled() + scored * layer_.d * width};
  Outcome outcome = Outcome::estimated;
  if (won) {
    double slack = rounding_of_sums;
    for (const int64_t row : work.bandit.best()) {
      work.dots[row] = work.estimates.value(row);
      slack = std::max(slack, rounding(request, work, row));
    }
    write(request, q, work.bandit.best(), work, work.bandit.log_z(), slack, answers);
  } else {
    const PacCost more = scan(kernels, request.queries.b == 1 ? request.threads : 1, work);
    outcome = settle(kernels, request, q, work, answers);
    total = {total.rows + more.rows + work.scored,
             total.multiplications + more.multiplications + work.scored * layer_.d,
             total.bytes + more.bytes + work.scored * layer_.d * width};
  }
  const int64_t costs[4] = {(int64_t)outcome, total.rows, total.multiplications, total.bytes};
  std::copy(costs, costs + 4, cost);
}

void Pac::list_candidates(const PacRequest& request, int64_t q, Workspace& work) const {
  work.candidates.resize(layer_.n);
  for (int64_t row = 0; row < layer_.n; ++row) work.candidates[row] = row;
  const PacExclusions& exclusions = request.exclusions;
  if (exclusions.offsets == nullptr) return;
  const int64_t* const place = exclusions.offsets + (exclusions.shared ? 0 : q);
  const int64_t *out = exclusions.rows + place[0], *const end = exclusions.rows + place[1];
  size_t kept = 0;
  for (int64_t row = 0; row < layer_.n; ++row) {
    if (out < end && *out == row)
      ++out;
    else
      work.candidates[kept++] = row;
  }
  work.candidates.resize(kept);
}

// Dot products of all rows: row by row, or in double by the columns that the query uses where they are few.
PacCost Pac::scan(const Kernels& kernels, int64_t threads, Workspace& work) const {
  const int64_t n = layer_.n, d = layer_.d, used = work.coordinates.used();
  work.by_columns = used <= d / sparse_share;
  if (work.by_columns) {
    work.coordinates.list_used(work.which, work.values);
    std::fill(work.dots.begin(), work.dots.end(), 0.0);
    constexpr int64_t columns_at_once = 256;
    for (int64_t r = 0; r < used; r += columns_at_once) {
      check_interrupt();
      const int64_t count = std::min(columns_at_once, used - r);
      kernels.add_columns(
          {layer_.columns, layer_.stride, work.which.data() + r, work.values.data() + r, nullptr, nullptr, count},
          layer_.groups(), work.dots.data());
    }
    for (int64_t row = 0; row < n; ++row) work.dots[row] += work.estimates.known(row);
    return {n, n * used, 4 * n * used};
  }
  const float* const query = work.coordinates.query();
  const bool many = (double)n * (double)d >= numbers_for_threads;
  constexpr int64_t rows_at_once = 16;
  if (threads > 1 && many) {
    parallel((n + rows_at_once - 1) / rows_at_once, threads, [&](const auto& next) {
      RowReader reader(layer_);
      for (int64_t task = next(); task >= 0; task = next()) {
        const int64_t begin = task * rows_at_once;
        reader.scan(kernels, begin, std::min(n, begin + rows_at_once), query, work.dots.data() + begin);
      }
    });
  } else {
    work.reader.scan(kernels, 0, n, query, work.dots.data());
  }
  return {n, n * d, n * d * (layer_.rows.number == Number::float32 ? 4 : 2)};
}

// Logits from the dot products, and how far float32 may have moved them. False where one is no number.
bool Pac::bound(const PacRequest& request, Workspace& work) const {
  const double error = RowReader::scan_error * work.coordinates.norm(), inverse = request.temperature.inverse;
  for (const int64_t row : work.candidates) {
    work.dots[row] = request.temperature.logit(layer_, row, work.dots[row]);
    if (!std::isfinite(work.dots[row])) return false;
    work.radii[row] = inverse * (error * layer_.norms[row] + RowReader::tiny) + rounding(request, work, row);
    if (work.by_columns) work.radii[row] = 0;
  }
  return true;
}

void Pac::score(const Kernels& kernels, const PacRequest& request, int64_t row, Workspace& work) const {
  if (work.radii[row] == 0) return;
  check_interrupt_every(1 << 4, work.scored);
  const double dot = work.reader.dot(kernels, row, work.coordinates.query());
  work.dots[row] = request.temperature.logit(layer_, row, dot);
  work.radii[row] = 0;
  ++work.scored;
}

// log Z, scoring the rows whose rounding would move it by too much.
LogZ Pac::sum_up(const Kernels& kernels, const PacRequest& request, Workspace& work) const {
  const double target = std::log1p(request.goal.epsilon) * (1 - 1e-6);
  double allowed = target / (double)work.candidates.size();
  for (;; allowed = 0) {
    double peak = -HUGE_VAL, low = 0, high = 0;
    for (const int64_t row : work.candidates) peak = std::max(peak, work.dots[row] + work.radii[row]);
    for (const int64_t row : work.candidates) {
      const double weight = std::exp(work.dots[row] + work.radii[row] - peak);
      high += weight;
      low += work.radii[row] == 0 ? weight : std::exp(work.dots[row] - work.radii[row] - peak);
    }
    const double lower = std::log(low), upper = std::log(high);
    if (upper - lower <= 2 * target) return {peak + (lower + upper) / 2, peak + lower, peak + upper};
    for (const int64_t row : work.candidates) {
      const double share = std::exp(work.dots[row] + work.radii[row] - peak - upper);
      if (-share * std::expm1(-2 * work.radii[row]) > allowed) score(kernels, request, row, work);
    }
  }
}

// The k best and log Z from the dot products of all rows. Rows that may be among the best are scored in double.
Outcome Pac::settle(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work,
                    const PacAnswers& answers) const {
  const int64_t k = request.goal.k;
  work.scored = 0;
  if (!bound(request, work)) return Outcome::damaged;
  work.scratch.clear();
  for (const int64_t row : work.candidates) work.scratch.push_back(work.dots[row] - work.radii[row]);
  std::nth_element(work.scratch.begin(), work.scratch.begin() + (k - 1), work.scratch.end(), std::greater<double>());
  const double least = work.scratch[k - 1];
  double slack = 0;
  for (const int64_t row : work.candidates) {
    if (work.dots[row] + work.radii[row] >= least) score(kernels, request, row, work);
    slack = std::max(slack, rounding(request, work, row));
  }
  const LogZ log_z = sum_up(kernels, request, work);
  const double around = slack + 1e-12 + 0x1p-50 * std::fabs(log_z.value);
  std::vector<int64_t>& rows = work.candidates;
  std::partial_sort(rows.begin(), rows.begin() + k, rows.end(), [&](int64_t a, int64_t b) {
    return work.dots[a] != work.dots[b] ? work.dots[a] > work.dots[b] : a < b;
  });
  write(request, q, rows, work, log_z, around, answers);
  return Outcome::scanned;
}

// The answer from the logits of the first k of these rows. around: what rounding adds to the bounds of log Z.
void Pac::write(const PacRequest& request, int64_t q, const std::vector<int64_t>& rows, const Workspace& work,
                LogZ log_z, double around, const PacAnswers& answers) const {
  const int64_t k = request.goal.k;
  for (int64_t i = 0; i < k; ++i) {
    const double logit = work.dots[rows[i]];
    answers.rows[q * k + i] = rows[i];
    answers.scores[q * k + i] = logit / request.temperature.inverse;
    // log Z may be a little too small, and a probability is never above one.
    answers.log_prob[q * k + i] = std::min(logit - log_z.value, 0.0);
  }
  const double bounds[3] = {log_z.value, log_z.low - around, log_z.high + around};
  std::copy(bounds, bounds + 3, answers.log_z + 3 * q);
}

// How far a logit in double may be off: by a product of d terms, both biases and the temperature.
double Pac::rounding(const PacRequest& request, const Workspace& work, int64_t row) const {
  // Sixteen running sums over all columns, or one over those that a query uses.
  const double additions = work.by_columns ? (double)work.coordinates.used() : (double)(layer_.d / lanes);
  const double inverse = request.temperature.inverse;
  double error = (additions + 32) * 0x1p-52 * inverse * layer_.norms[row] * work.coordinates.norm();
  if (layer_.bias != nullptr) error += inverse * 0x1p-50 * std::fabs((double)layer_.bias[row]);
  if (layer_.log_bias != nullptr) error += 0x1p-50 * std::fabs((double)layer_.log_bias[row]);
  return error;
}

}  // namespace softindex
