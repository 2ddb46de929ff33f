// Answers queries with the "pac" guarantee: estimates where they win, a scan of everything where they do not.
#include "adaptive/pac.h"

#include <algorithm>
#include <cmath>

#include "base/interrupt.h"
#include "base/parallel.h"

namespace softindex {
namespace {

// Share of the time of a full scan that estimates may take.
constexpr double largest_share = 0.25;
// What the rounding of sums and logarithms may add to the bounds of log Z.
constexpr double rounding_of_sums = 1e-9;

// Writes the answer to query q. logits: those of a row; around: what rounding adds to the bounds of log Z.
template <class Logits>
void write(const PacRequest& request, int64_t q, const std::vector<int64_t>& best, const Logits& logits, LogZ log_z,
           double around, const PacAnswers& answers) {
  const int64_t k = request.goal.k;
  for (int64_t i = 0; i < k; ++i) {
    const double logit = logits(best[i]);
    answers.rows[q * k + i] = best[i];
    answers.scores[q * k + i] = logit / request.temperature.inverse;
    // log Z may be a little too small, and a probability is never above one.
    answers.log_prob[q * k + i] = std::min(logit - log_z.value, 0.0);
  }
  const double bounds[3] = {log_z.value, log_z.low - around, log_z.high + around};
  std::copy(bounds, bounds + 3, answers.log_z + 3 * q);
}

}  // namespace

Pac::Pac(const PacLayer& layer) : layer_(layer) {
  for (int64_t row = 0; row < layer.n; ++row) {
    if (layer.bias != nullptr) largest_bias_ = std::max(largest_bias_, (double)std::fabs(layer.bias[row]));
    if (layer.log_bias != nullptr)
      largest_log_bias_ = std::max(largest_log_bias_, (double)std::fabs(layer.log_bias[row]));
  }
}

void Pac::answer(const Kernels& kernels, const PacRequest& request, const PacAnswers& answers) {
  parallel(request.queries.b, request.threads, [&](const auto& next) {
    const typename Pool<Workspace>::Lease lease(pool_, layer_);
    for (int64_t q = next(); q >= 0; q = next()) answer_one(kernels, request, q, *lease, answers);
  });
}

int64_t Pac::look(const Kernels& kernels, const float* query, uint64_t seed, int64_t count, const PacLook& seen) {
  const typename Pool<Workspace>::Lease lease(pool_, layer_);
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
  if (queries.dense != nullptr) {
    const float* const query = queries.dense + q * layer_.d;
    const double guess = work.coordinates.glance(kernels, query);
    if (!work.estimates.are_affordable(guess, largest_share)) {
      const bool listed = work.estimates.scans_columns(guess);
      // Nothing could make estimates affordable: the rows are scored in any case.
      if (!listed && work.scan.can_survey() && !work.estimates.are_affordable((double)layer_.d, largest_share))
        return true;
      if (!work.coordinates.survey(kernels, queries.limit, listed)) return false;
      if (!work.estimates.are_affordable((double)work.coordinates.numbers(), largest_share)) return true;
    }
    return work.coordinates.start(kernels, query, queries.limit, request.seed);
  }
  const int64_t begin = queries.offsets[q];
  return work.coordinates.start(
      kernels, SparseQuery{queries.columns + begin, queries.values + begin, queries.offsets[q + 1] - begin},
      queries.limit, request.seed);
}

void Pac::answer_one(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work,
                     const PacAnswers& answers) const {
  int64_t* const cost = answers.costs + 4 * q;
  std::fill_n(cost, 4, 0);
  if (!start(kernels, request, q, work)) return;
  const bool weighed =
      work.coordinates.is_weighed() && work.estimates.are_affordable((double)work.coordinates.numbers(), largest_share);
  if (weighed && estimate(kernels, request, q, work, answers)) {
    cost[0] = (int64_t)Outcome::estimated;
  } else {
    const PacCost scanned = scan(kernels, request, q, work, answers);
    const int64_t costs[4] = {(int64_t)scanned.outcome, scanned.rows, scanned.multiplications, scanned.bytes};
    std::copy(costs, costs + 4, cost);
    // Another thread may have changed a query that was not copied: it is checked again.
    if (scanned.outcome == Outcome::damaged && !weighed && request.queries.limit < HUGE_VAL)
      cost[0] = (int64_t)Outcome::refused;
    if (!weighed) return;
  }
  const int64_t width = layer_.rows.number == Number::float32 ? 4 : 2;
  const int64_t scored = work.estimates.scored(), pulled = work.estimates.pulled();
  // A row that was scored twice is one row.
  cost[1] = std::min(cost[1] + scored, layer_.n);
  cost[2] += pulled + scored * layer_.d;
  cost[3] += 4 * pulled + scored * layer_.d * width;
}

Excluded Pac::excluded(const PacRequest& request, int64_t q) {
  const PacExclusions& exclusions = request.exclusions;
  if (exclusions.offsets == nullptr) return {nullptr, nullptr};
  const int64_t* const place = exclusions.offsets + (exclusions.shared ? 0 : q);
  return {exclusions.rows + place[0], exclusions.rows + place[1]};
}

// The answer from a few columns of the rows. False where scoring every row is about as cheap.
bool Pac::estimate(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work,
                   const PacAnswers& answers) const {
  if (!work.estimates.start(kernels, request.temperature, largest_share)) return false;
  Excluded out = excluded(request, q);
  work.candidates.clear();
  for (int64_t row = 0; row < layer_.n; ++row) {
    if (out.begin < out.end && *out.begin == row)
      ++out.begin;
    else
      work.candidates.push_back(row);
  }
  if (!work.bandit.find(work.estimates, request.goal, work.candidates)) return false;
  // Sixteen running sums over all columns.
  const double around = std::max(rounding_of_sums, rounding(request, work, (double)layer_.d / lanes));
  write(
      request, q, work.bandit.best(), [&](int64_t row) { return work.estimates.value(row); }, work.bandit.log_z(),
      around, answers);
  return true;
}

// The answer from all rows.
PacCost Pac::scan(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work,
                  const PacAnswers& answers) const {
  const int64_t n = layer_.n, width = layer_.rows.number == Number::float32 ? 4 : 2;
  const ScanRequest wanted = {work.coordinates, request.temperature, request.goal.k, excluded(request, q),
                              request.queries.b == 1 ? request.threads : 1};
  FullScan& scan = work.scan;
  bool numbers_only = true, scanned = !work.coordinates.is_surveyed();
  if (scanned) {
    numbers_only = scan.by_rows(kernels, wanted);
    if (!(work.coordinates.squared_norm() <= request.queries.limit)) return {Outcome::refused, 0, 0, 0};
  }
  // A query that begins unlike the rest has the answer of the same one in sparse form.
  const bool by_columns = work.estimates.scans_columns((double)work.coordinates.numbers());
  const int64_t numbers = by_columns ? work.coordinates.numbers() : layer_.d;
  if (by_columns)
    numbers_only = scan.by_columns(kernels, wanted);
  else if (!scanned)
    numbers_only = scan.by_rows(kernels, wanted);
  if (!numbers_only) return {Outcome::damaged, 0, 0, 0};
  // Sixteen running sums over all columns, or one over those that a query uses.
  const double additions = by_columns ? (double)numbers : (double)numbers / lanes, log_z = scan.log_z();
  const double around = rounding(request, work, additions) + 1e-12 + 0x1p-50 * std::fabs(log_z);
  write(request, q, scan.best(), [&](int64_t row) { return scan.logit(row); }, {log_z, log_z, log_z}, around, answers);
  const int64_t before = scanned && by_columns ? n * layer_.d : 0;
  return {Outcome::scanned, n, n * numbers + before, n * numbers * (by_columns ? 4 : width) + before * width};
}

// How far any logit in double may be off: by a product with so many additions, both biases and the temperature.
double Pac::rounding(const PacRequest& request, const Workspace& work, double additions) const {
  const double inverse = request.temperature.inverse;
  return (additions + 32) * 0x1p-52 * inverse * layer_.longest * work.coordinates.norm() +
         inverse * 0x1p-50 * largest_bias_ + 0x1p-50 * largest_log_bias_;
}

}  // namespace softindex
