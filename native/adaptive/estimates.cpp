// Estimates of one query's logits, and what they have cost compared with scoring every row.
#include "adaptive/estimates.h"

#include <algorithm>
#include <cmath>

#include "base/interrupt.h"

namespace softindex {

double student(double z, int64_t terms) {
  // The first terms of its expansion about the normal quantile.
  const double freedom = (double)std::max<int64_t>(terms - 1, 1), cube = z * z * z;
  const double first = (cube + z) / 4, second = (5 * cube * z * z + 16 * cube + 3 * z) / 96;
  return z + first / freedom + second / (freedom * freedom);
}

Prices::Prices(const PacLayer& layer) {
  const bool cached = layer.is_cached();
  scan = cached ? 0.052 : 0.11;
  column = cached ? 35 : 80;
  pull = cached ? 0.1 : 0.2;
  visit = cached ? 0.5 : 20;
  // The sums of many rows are read and written again for every few columns.
  if (layer.n <= 8 * lanes)
    add = cached ? 0.07 : 0.12;
  else
    add = cached ? 0.12 : 0.4;
}

Estimates::Estimates(const PacLayer& layer, Coordinates& coordinates)
    : layer_(layer), coordinates_(coordinates), prices_(layer), reader_(layer) {
  state_.resize(layer.groups() * 4 * lanes);
  counts_.resize(layer.groups());
  known_.resize(layer.n);
  expected_.resize(layer.n);
  largest_.resize(layer.n);
  values_.resize(layer.n);
  variances_.resize(layer.n);
  jumps_.resize(layer.n);
  exact_.resize(layer.n);
}

double Estimates::price_by_columns(double numbers) const {
  // Columns are listed by 32-bit numbers.
  if (layer_.d > INT32_MAX) return HUGE_VAL;
  return Prices::list * (double)layer_.d + numbers * (prices_.visit + prices_.add * (double)padded(layer_.n));
}

bool Estimates::are_affordable(double numbers, double share) const {
  const double weighing = Prices::row * (double)layer_.n + Prices::query * (double)layer_.d;
  const double pulling = (double)first_columns * (prices_.column + prices_.pull * (double)padded(layer_.n));
  return weighing + pulling <= share * price_of_scan(numbers);
}

bool Estimates::start(const Kernels& kernels, Temperature temperature, double share) {
  kernels_ = &kernels;
  temperature_ = temperature;
  budget_ = share * price_of_scan((double)coordinates_.numbers());
  pulled_ = scored_ = 0;
  spent_ = Prices::row * (double)layer_.n + Prices::query * (double)coordinates_.used();
  if (price_of_columns(first_columns, layer_.groups(), std::min(first_columns, columns())) > room()) return false;
  std::fill(state_.begin(), state_.end(), 0.0);
  std::fill(counts_.begin(), counts_.end(), 0);
  std::fill(exact_.begin(), exact_.end(), 0);
  std::fill(variances_.begin(), variances_.end(), HUGE_VAL);
  pulled_ = layer_.n * layer_.kept;
  for (int64_t row = 0; row < layer_.n; ++row) known_[row] = coordinates_.heavy_product(row);
  predict();
  return true;
}

// The variance of the first term is W^2 times the mean, by weight, of e_c = a_c^2 / (mean square of column c), which is
// at most mean(e) + sd(rho) sd(e) with rho_c = d w_c / W (Cauchy-Schwarz). The part of var(e) that normal numbers have
// is left out: it is spread over many columns, and shows in those that were drawn. Terms are modelled as a sum of
// normal ones and of rare ones of one size, by their fourth moment.
void Estimates::predict() {
  const double total = coordinates_.total(), square = total * total;
  const double spread =
      square > 0 ? std::sqrt(std::max(0.0, (double)layer_.used * coordinates_.squared_weights() / square - 1.0)) : 0.0;
  for (int64_t row = 0; row < layer_.n; ++row) {
    const double excess = layer_.excesses[row], relative = layer_.energies[row] + spread * std::sqrt(excess);
    expected_[row] = square * relative;
    largest_[row] = relative > 0 ? total * std::sqrt(excess / relative) : 0.0;
  }
}

double Estimates::price_of_columns(int64_t more, int64_t groups, int64_t upto) const {
  const double numbers = (double)more * (double)(groups * lanes);
  return prices_.pull * numbers + prices_.column * (double)std::max<int64_t>(0, upto - coordinates_.drawn());
}

bool Estimates::pull(const std::vector<int64_t>& groups, int64_t upto) {
  upto = std::min(upto, coordinates_.used());
  int64_t numbers = 0;
  for (const int64_t group : groups) numbers += std::max<int64_t>(0, upto - counts_[group]);
  const double price = price_of_columns(numbers, 1, upto);
  if (price > room()) return false;
  spent_ += price;
  coordinates_.draw(upto);
  // Groups that have had as many columns as their neighbours are read together.
  for (size_t begin = 0, end; begin < groups.size(); begin = end) {
    for (end = begin + 1; end < groups.size() && counts_[groups[end]] == counts_[groups[begin]];) ++end;
    pull_same(groups.data() + begin, (int64_t)(end - begin), upto);
  }
  return true;
}

void Estimates::pull_same(const int64_t* groups, int64_t count, int64_t upto) {
  constexpr int64_t columns_at_once = 64;
  const int64_t begin = counts_[groups[0]];
  for (int64_t r = begin; r < upto; r += columns_at_once) {
    check_interrupt();
    kernels_->pull(coordinates_.pulls(r, std::min(upto, r + columns_at_once)), groups, count, state_.data());
  }
  for (int64_t i = 0; i < count; ++i) {
    counts_[groups[i]] = std::max(begin, upto);
    estimate(groups[i]);
    const int64_t rows = std::min<int64_t>(lanes, layer_.n - groups[i] * lanes);
    pulled_ += rows * std::max<int64_t>(0, upto - begin);
  }
}

// The mean of the terms weighted by (1 - P_r)^-2, as t_r has (1 - P_r)^2 times the variance of t_1.
void Estimates::estimate(int64_t group) {
  const double* const state = state_.data() + group * 4 * lanes;
  const int64_t count = counts_[group], begin = group * lanes, end = std::min(begin + lanes, layer_.n);
  const bool complete = count >= coordinates_.used();
  const double share = complete ? 1 : 1 / coordinates_.sum(count), squares = complete ? 0 : coordinates_.squares(count);
  const double correction = count > 1 ? (double)count / (double)(count - 1) : 1.0;
  const double inverse = temperature_.inverse, square = inverse * inverse, scale = share * share * correction;
  const double last = complete ? 0 : inverse * std::sqrt(coordinates_.last(count)) * share;
  for (int64_t row = begin; row < end; ++row) {
    if (exact_[row]) continue;
    const double* const lane = state + (row - begin);
    const double sums = lane[0], first = lane[lanes], second = lane[2 * lanes], third = lane[3 * lanes];
    const double mean = complete ? sums : first * share;
    values_[row] = temperature_.logit(layer_, row, mean + known_[row]);
    if (complete) {
      variances_[row] = jumps_[row] = 0;
      continue;
    }
    const double spread = std::max(third - 2 * mean * second + mean * mean * squares, 0.0) * scale;
    // A sparse row shows only zeros for a long time, so the predicted variance counts as well. A rare term counts most
    // in the last of all terms.
    variances_[row] = square * std::max(spread, expected_[row] * share);
    jumps_[row] = largest_[row] * last;
  }
}

bool Estimates::score(const int64_t* rows, int64_t count) {
  int64_t fresh = 0;
  for (int64_t i = 0; i < count; ++i) fresh += !is_known(rows[i]);
  if ((double)fresh * price_of_row() > room()) return false;
  spent_ += (double)fresh * price_of_row();
  for (int64_t i = 0; i < count; ++i) {
    if (is_known(rows[i])) continue;
    check_interrupt();
    values_[rows[i]] = temperature_.logit(layer_, rows[i], reader_.dot(*kernels_, rows[i], coordinates_.query()));
    variances_[rows[i]] = jumps_[rows[i]] = 0;
    exact_[rows[i]] = 1;
  }
  scored_ += fresh;
  return true;
}

double Estimates::width(int64_t row, double z) {
  // Neighbours have mostly had the same number of columns.
  if (z != asked_.z || count(row) != asked_.terms) asked_ = {z, count(row), student(z, count(row))};
  const double quantile = asked_.value;
  return quantile * std::sqrt(variances_[row]) + quantile * quantile / 6.0 * jumps_[row];
}

}  // namespace softindex
