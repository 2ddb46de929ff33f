// Scores every row: the k best, and log Z.
#include "adaptive/full_scan.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/interrupt.h"
#include "base/parallel.h"

namespace softindex {
namespace {

// A scan of fewer numbers takes less time than starting threads for it.
constexpr double numbers_for_threads = 1 << 23;
// Of a product in float32, relative to the lengths of row and query. Every number is in one product, and in as many
// additions as its lane has in a stretch; the few that follow are in double.
constexpr double float_error = (float_stretch / lanes + 8) * 0x1p-24;
// What products too small for float32 may lose.
constexpr double tiny = 1e-33;
// If more rows than these may have to be scored in double as well, the others are scored only in double: some, and one
// of so many.
constexpr int64_t few_doubtful = 3, doubtful_share = 32;
constexpr int64_t rows_at_once = 8;

}  // namespace

FullScan::FullScan(const PacLayer& layer)
    : layer_(layer), cached_(layer.is_cached() && layer.rows.number == Number::float32 && layer.d > short_row),
      reader_(layer), logits_(layer.stride) {}

bool FullScan::by_rows(const Kernels& kernels, const ScanRequest& request) {
  best_.clear();
  again_ = 0;
  if (cached_ && rows_at_once * request.k <= layer_.n) {
    if (!scan_float(kernels, request)) return false;
  } else {
    error_ = 0;
    scan_double(kernels, request, 0);
    if (!compare(kernels, request, 0)) return false;
  }
  finish(kernels);
  return true;
}

bool FullScan::by_columns(const Kernels& kernels, const ScanRequest& request) {
  best_.clear();
  error_ = 0;
  again_ = 0;
  request.coordinates.list_used(which_, values_);
  const int64_t used = (int64_t)which_.size();
  std::fill(logits_.begin(), logits_.end(), 0.0);
  constexpr int64_t columns_at_once = 256;
  for (int64_t r = 0; r < used; r += columns_at_once) {
    check_interrupt();
    const int64_t count = std::min(columns_at_once, used - r);
    kernels.add_columns({layer_.columns, layer_.stride, which_.data() + r, values_.data() + r, nullptr, nullptr, count},
                        layer_.groups(), logits_.data());
  }
  for (int64_t row = 0; row < layer_.n; ++row) logits_[row] += request.coordinates.heavy_product(row);
  if (!compare(kernels, request, 0)) return false;
  finish(kernels);
  return true;
}

// Dot products of the rows from `begin` on.
void FullScan::scan_double(const Kernels& kernels, const ScanRequest& request, int64_t begin) {
  const float* const query = request.coordinates.query();
  const int64_t n = layer_.n;
  if (request.threads == 1 || (double)(n - begin) * (double)layer_.d < numbers_for_threads)
    return reader_.scan(kernels, begin, n, query, logits_.data() + begin);
  const int64_t each = std::max(rows_at_once, (1 << 18) / layer_.d / rows_at_once * rows_at_once);
  parallel((n - begin + each - 1) / each, request.threads, [&](const auto& next) {
    RowReader reader(layer_);
    for (int64_t task = next(); task >= 0; task = next()) {
      const int64_t first = begin + task * each;
      reader.scan(kernels, first, std::min(n, first + each), query, logits_.data() + first);
    }
  });
}

// Makes logits of the dot products from `begin` on, and finds the best among them.
bool FullScan::compare(const Kernels& kernels, const ScanRequest& request, int64_t begin) {
  double* const logits = logits_.data();
  const LogitTerms terms = {request.temperature.inverse, layer_.bias == nullptr ? nullptr : layer_.bias + begin,
                            layer_.log_bias == nullptr ? nullptr : layer_.log_bias + begin};
  const double largest = kernels.make_logits(logits + begin, layer_.n - begin, terms);
  if (std::isnan(largest)) return false;
  const int64_t* out = std::lower_bound(request.excluded.begin, request.excluded.end, begin);
  if (request.k == 1 && out == request.excluded.end) {
    offer(std::find(logits + begin, logits + layer_.n, largest) - logits, 1);
    return true;
  }
  for (; out < request.excluded.end; ++out) logits[*out] = -HUGE_VAL;
  for (int64_t row = begin; row < layer_.n; ++row) offer(row, request.k);
  return true;
}

// Eight rows at a time in float32, as long as few may be among the best, which are scored in double in the end.
bool FullScan::scan_float(const Kernels& kernels, const ScanRequest& request) {
  const float *const rows = (const float*)layer_.rows.first, *const query = request.coordinates.query();
  const int64_t *out = request.excluded.begin, n = layer_.n, d = layer_.d;
  error_ = request.temperature.inverse * (float_error * request.coordinates.norm() * layer_.longest + tiny);
  // Where rounding moves logits by more than log Z allows, rows count that are so far below the best that all others
  // together change it by less.
  margin_ = error_ <= request.slack ? 0.0 : std::max(0.0, std::log((double)n / request.slack));
  error_ = std::min(error_, request.slack);
  doubtful_.clear();
  lows_.clear();
  const int64_t most = request.k + few_doubtful + n / doubtful_share;
  int64_t begin = 0;
  for (; begin < n; begin += rows_at_once) {
    if (doubts() > most) drop_settled(request);
    if (doubts() > most) break;
    const int64_t end = std::min(n, begin + rows_at_once);
    kernels.scan_stretches({rows + begin * d, end - begin, d, rows + n * d}, query, logits_.data() + begin);
    for (int64_t row = begin; row < end; ++row) {
      logits_[row] = request.temperature.logit(layer_, row, logits_[row]);
      if (!std::isfinite(logits_[row])) return false;
      if (out < request.excluded.end && *out == row) {
        logits_[row] = -HUGE_VAL;
        ++out;
      } else {
        doubt(request, row);
      }
    }
  }
  settle_doubts(kernels, request);
  if (begin >= n) return true;
  scan_double(kernels, request, begin);
  return compare(kernels, request, begin);
}

// How far float32 may have moved the logit of a row.
double FullScan::radius(const ScanRequest& request, int64_t row) const {
  return request.temperature.inverse * (float_error * request.coordinates.norm() * layer_.norms[row] + tiny);
}

// Notes a row that may be among the k best. lows_: a heap of the k best lower bounds so far, the smallest first.
void FullScan::doubt(const ScanRequest& request, int64_t row) {
  const double width = radius(request, row), low = logits_[row] - width;
  const bool full = (int64_t)lows_.size() == request.k;
  if (full && logits_[row] + width < lows_[0] - margin_) return;
  doubtful_.push_back(row);
  if (full && low <= lows_[0]) return;
  if (full) {
    std::pop_heap(lows_.begin(), lows_.end(), std::greater<double>());
    lows_.pop_back();
  }
  lows_.push_back(low);
  std::push_heap(lows_.begin(), lows_.end(), std::greater<double>());
}

// Forgets the rows that cannot be among the best any more.
void FullScan::drop_settled(const ScanRequest& request) {
  const auto settled = [&](int64_t row) { return logits_[row] + radius(request, row) < lows_[0] - margin_; };
  doubtful_.erase(std::remove_if(doubtful_.begin(), doubtful_.end(), settled), doubtful_.end());
}

// Scores in double the rows that may still be among the best, neighbours together.
void FullScan::settle_doubts(const Kernels& kernels, const ScanRequest& request) {
  drop_settled(request);
  again_ = doubts();
  for (size_t i = 0, j; i < doubtful_.size(); i = j) {
    for (j = i + 1; j < doubtful_.size() && doubtful_[j] == doubtful_[j - 1] + 1;) ++j;
    const int64_t first = doubtful_[i], last = doubtful_[j - 1];
    reader_.scan(kernels, first, last + 1, request.coordinates.query(), logits_.data() + first);
    for (int64_t row = first; row <= last; ++row) {
      logits_[row] = request.temperature.logit(layer_, row, logits_[row]);
      offer(row, request.k);
    }
  }
}

bool FullScan::is_better(int64_t a, int64_t b) const {
  return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
}

void FullScan::offer(int64_t row, int64_t k) {
  const bool full = (int64_t)best_.size() == k;
  // Rows come in order: among equal ones those before are better.
  if (full && !(logits_[row] > logits_[best_[0]])) return;
  const auto better = [this](int64_t a, int64_t b) { return is_better(a, b); };
  if (full) {
    std::pop_heap(best_.begin(), best_.end(), better);
    best_.back() = row;
  } else {
    best_.push_back(row);
  }
  std::push_heap(best_.begin(), best_.end(), better);
}

void FullScan::finish(const Kernels& kernels) {
  std::sort_heap(best_.begin(), best_.end(), [this](int64_t a, int64_t b) { return is_better(a, b); });
  std::fill(logits_.begin() + layer_.n, logits_.end(), -HUGE_VAL);
  const double peak = logits_[best_[0]];
  log_z_ = peak + std::log(kernels.sum_exponentials(logits_.data(), layer_.stride, peak));
}

}  // namespace softindex
