// The k best rows and log Z from as few columns as a probability of error allows (AdaptiveSoftmax, for any k).
#include "adaptive/bandit.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/interrupt.h"

namespace softindex {
namespace {

// Each look has at least and at most this many times the columns of the one before.
constexpr double growth = 1.5, largest_step = 6.0;
// Standard deviations by which a gap may be larger than it looks.
constexpr double hope = 1.0;
// So few rows are brought to the same number of columns, which takes one step instead of many.
constexpr int64_t few = 256;

// Number of columns to look at next, if widths are too large by a ratio: they fall with the square root. aim: below one
// to approach slowly, where rows drop out on the way; above one to get there in one step.
int64_t next_count(int64_t count, double ratio, double aim) {
  const double square = std::min(ratio, 1e3) * std::min(ratio, 1e3);
  const double step = std::min(std::max(growth, aim * square), largest_step);
  return std::max(count + 1, (int64_t)std::lround((double)count * step));
}

// The k-th largest; reorders the values.
double largest(std::vector<double>& values, int64_t k) {
  std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<double>());
  return values[k - 1];
}

}  // namespace

bool Bandit::find(Estimates& estimates, const Goal& goal, const std::vector<int64_t>& candidates) {
  active_ = candidates;
  if (!eliminate(estimates, goal) || !sharpen(estimates, goal, candidates)) return false;
  std::sort(best_.begin(), best_.end(), [&](int64_t a, int64_t b) {
    return estimates.value(a) != estimates.value(b) ? estimates.value(a) > estimates.value(b) : a < b;
  });
  return true;
}

// The k rows that no other can reach, by confidence bounds against the k-th best; exact scores decide ties.
bool Bandit::eliminate(Estimates& estimates, const Goal& goal) {
  int64_t wanted = first_columns;
  for (;;) {
    list_groups(active_);
    if (!estimates.pull(groups_, wanted)) return false;
    drop_losers(estimates, goal);
    const int64_t left = (int64_t)active_.size();
    // Only numbers that are none leave fewer: the scan will say so.
    if (left < goal.k) return false;
    if (left == goal.k) {
      best_ = active_;
      return true;
    }
    // Scoring the few that are left is as cheap as the work done so far, or all columns have been used.
    if ((double)left * estimates.price_of_row() <= estimates.spent() || wanted >= estimates.columns()) {
      if (!estimates.score(active_.data(), left)) return false;
      std::partial_sort(active_.begin(), active_.begin() + goal.k, active_.end(), [&](int64_t a, int64_t b) {
        return estimates.value(a) != estimates.value(b) ? estimates.value(a) > estimates.value(b) : a < b;
      });
      best_.assign(active_.begin(), active_.begin() + goal.k);
      return true;
    }
    if (!can_win(estimates, goal)) return false;
    wanted = next_look(estimates, goal, wanted);
  }
}

// Keeps the active rows whose upper bound reaches the k-th best lower bound.
void Bandit::drop_losers(Estimates& estimates, const Goal& goal) {
  const size_t count = active_.size();
  low_.resize(count);
  high_.resize(count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double value = estimates.value(active_[i]), width = estimates.width(active_[i], goal.elimination);
    low_[i] = value - width;
    high_[i] = value + width;
    sum += width;
  }
  mean_width_ = sum / (double)count;
  scratch_ = low_;
  const double least = largest(scratch_, goal.k);
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i)
    if (high_[i] >= least) active_[kept++] = active_[i];
  active_.resize(kept);
}

// Whether the columns that half of the time left is enough for would leave so few rows in doubt that they can be scored
// in the other half.
bool Bandit::can_win(const Estimates& estimates, const Goal& goal) {
  list_groups(active_);
  scratch_.clear();
  double variance = 0;
  for (const int64_t row : active_) {
    scratch_.push_back(estimates.value(row));
    variance += estimates.variance(row);
  }
  const double deviation = std::sqrt(2 * variance / (double)active_.size());
  const double count = (double)estimates.count(active_[0]);
  const double each = estimates.price_of_columns(1, (int64_t)groups_.size(), 0) + estimates.price_of_column();
  const double half = std::max(estimates.room(), 0.0) / 2;
  const double shrunk = mean_width_ * std::sqrt(count / (count + half / each));
  low_ = scratch_;
  const double least = largest(low_, goal.k) - std::max(2 * shrunk - hope * deviation, 0.0);
  const int64_t doubtful =
      std::count_if(scratch_.begin(), scratch_.end(), [&](double value) { return value >= least; });
  return doubtful <= goal.k || (double)doubtful * estimates.price_of_row() <= half;
}

// As many columns as would separate the k best from the rest, judging by the estimates.
int64_t Bandit::next_look(const Estimates& estimates, const Goal& goal, int64_t count) {
  scratch_.clear();
  for (const int64_t row : active_) scratch_.push_back(estimates.value(row));
  const double least = largest(scratch_, goal.k);
  const double next = *std::max_element(scratch_.begin() + goal.k, scratch_.end());
  return next_count(count, 2 * mean_width_ / std::max(least - next, 1e-300), 0.7);
}

// Pulls until the probabilities of the best are within epsilon; log Z with its bounds.
bool Bandit::sharpen(Estimates& estimates, const Goal& goal, const std::vector<int64_t>& candidates) {
  const double target = std::log1p(goal.epsilon);
  for (;;) {
    check_interrupt();
    const double error = bound_log_z(estimates, goal.total, candidates);
    double widest = 0;
    for (const int64_t row : best_) widest = std::max(widest, estimates.width(row, goal.best));
    if (widest + error <= target) return true;
    // Neither is too large where numbers are none: the scan will say so.
    if (!(widest > target / 2) && !(error > target / 2)) return false;
    if (widest > target / 2) {
      doubtful_.clear();
      for (const int64_t row : best_)
        if (estimates.width(row, goal.best) > target / 2) doubtful_.push_back(row);
      if (!improve(estimates, widest / (target / 2))) return false;
    }
    if (error > target / 2) {
      list_doubtful(candidates, target / 4);
      if (!improve(estimates, error / (target / 2))) return false;
    }
  }
}

// log Z if every logit is as high as its estimate allows, and if every one is as low: rows share their columns, so all
// errors may have the same sign. Half of the difference.
double Bandit::bound_log_z(Estimates& estimates, double z, const std::vector<int64_t>& candidates) {
  const size_t count = candidates.size(), whole = (size_t)padded((int64_t)count);
  low_.assign(whole, -HUGE_VAL);
  high_.assign(whole, -HUGE_VAL);
  double lowest = -HUGE_VAL, highest = -HUGE_VAL;
  bool numbers = true;
  for (size_t i = 0; i < count; ++i) {
    const double value = estimates.value(candidates[i]);
    const double width = estimates.is_known(candidates[i]) ? 0.0 : estimates.width(candidates[i], z);
    low_[i] = value - width;
    high_[i] = value + width;
    lowest = std::max(lowest, low_[i]);
    highest = std::max(highest, high_[i]);
    numbers &= high_[i] - low_[i] < HUGE_VAL;
  }
  if (!numbers) return std::nan("");
  const Kernels& kernels = estimates.kernels();
  log_z_ = {0, lowest + std::log(kernels.sum_exponentials(low_.data(), (int64_t)whole, lowest)),
            highest + std::log(kernels.sum_exponentials(high_.data(), (int64_t)whole, highest))};
  log_z_.value = (log_z_.low + log_z_.high) / 2;
  return (log_z_.high - log_z_.low) / 2;
}

// The rows that add most to the difference between both sums, such that the others add no more than `enough` to log Z.
void Bandit::list_doubtful(const std::vector<int64_t>& candidates, double enough) {
  const size_t count = candidates.size();
  scratch_.resize(count);
  double left = 0;
  for (size_t i = 0; i < count; ++i) {
    // As shares of the upper sum, and expm1 for the difference: widths may be large.
    scratch_[i] = -std::exp(high_[i] - log_z_.high) * std::expm1(low_[i] - high_[i]);
    left += scratch_[i];
  }
  active_.resize(count);
  for (size_t i = 0; i < count; ++i) active_[i] = (int64_t)i;
  std::sort(active_.begin(), active_.end(),
            [&](int64_t a, int64_t b) { return scratch_[a] != scratch_[b] ? scratch_[a] > scratch_[b] : a < b; });
  doubtful_.clear();
  for (const int64_t i : active_) {
    if (left <= enough) break;
    left -= scratch_[i];
    doubtful_.push_back(candidates[i]);
  }
}

// More columns for the doubtful rows, whose errors are too large by a ratio; exact scores where that is cheaper.
bool Bandit::improve(Estimates& estimates, double ratio) {
  doubtful_.erase(
      std::remove_if(doubtful_.begin(), doubtful_.end(), [&](int64_t row) { return estimates.is_known(row); }),
      doubtful_.end());
  if (doubtful_.empty()) return true;
  const int64_t rows = (int64_t)doubtful_.size();
  list_groups(doubtful_);
  int64_t most = 0, least = INT64_MAX;
  for (const int64_t group : groups_) {
    most = std::max(most, estimates.count(group * lanes));
    least = std::min(least, estimates.count(group * lanes));
  }
  const int64_t upto = next_count(layer_.n <= few ? most : least, ratio, 1.2);
  double price = 0;
  for (const int64_t group : groups_)
    price += estimates.price_of_columns(std::max<int64_t>(0, upto - estimates.count(group * lanes)), 1, 0);
  price += estimates.price_of_columns(0, 0, upto);
  if ((double)rows * estimates.price_of_row() <= price || 2 * upto >= estimates.columns())
    return estimates.score(doubtful_.data(), rows);
  return estimates.pull(groups_, upto);
}

// The groups of these rows, increasing.
void Bandit::list_groups(const std::vector<int64_t>& rows) {
  groups_.clear();
  for (const int64_t row : rows)
    if (groups_.empty() || groups_.back() != row / lanes) groups_.push_back(row / lanes);
  std::sort(groups_.begin(), groups_.end());
  groups_.erase(std::unique(groups_.begin(), groups_.end()), groups_.end());
}

}  // namespace softindex
