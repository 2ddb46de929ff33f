// Scores every row: the k best, and log Z.
#include "adaptive/full_scan.h"

#include <algorithm>
#include <cmath>

#include "base/interrupt.h"
#include "base/parallel.h"

namespace softindex {
namespace {

// A scan of fewer numbers takes less time than starting threads for it.
constexpr double numbers_for_threads = 1 << 23;
// Rows of one task, at least.
constexpr int64_t rows_at_once = 8;

}  // namespace

FullScan::FullScan(const PacLayer& layer) : layer_(layer), reader_(layer), logits_(padded(layer.n)) {}

bool FullScan::by_rows(const Kernels& kernels, const ScanRequest& request) {
  multiply(kernels, request);
  return compare(kernels, request);
}

bool FullScan::by_columns(const Kernels& kernels, const ScanRequest& request) {
  const int32_t* const which = request.coordinates.list_numbers(kernels);
  const int64_t used = request.coordinates.numbers();
  std::fill(logits_.begin(), logits_.end(), 0.0);
  const int64_t columns_at_once = std::max<int64_t>(64, (1 << 20) / layer_.stride);
  for (int64_t r = 0; r < used; r += columns_at_once) {
    check_interrupt();
    const int64_t count = std::min(columns_at_once, used - r);
    kernels.add_columns({layer_.columns, layer_.stride, which + r, count, request.coordinates.query()}, layer_.n,
                        logits_.data());
  }
  for (int64_t row = 0; row < layer_.n; ++row) logits_[row] += request.coordinates.heavy_product(row);
  return compare(kernels, request);
}

// Dot products of all rows.
void FullScan::multiply(const Kernels& kernels, const ScanRequest& request) {
  const float* const query = request.coordinates.query();
  const int64_t n = layer_.n;
  if (!request.coordinates.is_surveyed()) {
    Survey found = {};
    reader_.scan(kernels, 0, n, query, logits_.data(), &found);
    return request.coordinates.measure(found);
  }
  if (request.threads == 1 || (double)n * (double)layer_.d < numbers_for_threads)
    return reader_.scan(kernels, 0, n, query, logits_.data(), nullptr);
  const int64_t each = std::max(rows_at_once, (1 << 18) / layer_.d / rows_at_once * rows_at_once);
  parallel((n + each - 1) / each, request.threads, [&](const auto& next) {
    RowReader reader(layer_);
    for (int64_t task = next(); task >= 0; task = next()) {
      const int64_t first = task * each;
      reader.scan(kernels, first, std::min(n, first + each), query, logits_.data() + first, nullptr);
    }
  });
}

// Makes logits of the dot products, and finds the best among them. False where one is no number.
bool FullScan::compare(const Kernels& kernels, const ScanRequest& request) {
  double* const logits = logits_.data();
  best_.clear();
  const double largest =
      kernels.make_logits(logits, layer_.n, {request.temperature.inverse, layer_.bias, layer_.log_bias});
  if (std::isnan(largest)) return false;
  const int64_t* out = request.excluded.begin;
  if (request.k == 1 && out == request.excluded.end) {
    offer(std::find(logits, logits + layer_.n, largest) - logits, 1);
  } else {
    for (; out < request.excluded.end; ++out) logits[*out] = -HUGE_VAL;
    for (int64_t row = 0; row < layer_.n; ++row) offer(row, request.k);
  }
  finish(kernels);
  return true;
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
  log_z_ = peak + std::log(kernels.sum_exponentials(logits_.data(), (int64_t)logits_.size(), peak));
}

}  // namespace softindex
