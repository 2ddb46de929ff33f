// Scores every row: the k best, and log Z.
#pragma once

#include <cstdint>
#include <vector>

#include "adaptive/coordinates.h"
#include "adaptive/given_rows.h"
#include "adaptive/pac_layer.h"
#include "base/aligned.h"

namespace softindex {

// Rows that a query leaves out, increasing.
struct Excluded {
  const int64_t *begin, *end;
};

struct ScanRequest {
  const Coordinates& coordinates;  // the query
  Temperature temperature;
  int64_t k;
  Excluded excluded;
  double slack;  // how far logits may be off if they are not among the k best
  int64_t threads;
};

// Layers that fit a cache are scored in float32, which is faster there, and in double only the rows that may be among
// the best; other layers in double, which takes no longer. The number of threads has no say in that: it must not change
// the answer.
class FullScan {
 public:
  explicit FullScan(const PacLayer& layer);

  // Row by row. False where a logit is no number.
  bool by_rows(const Kernels& kernels, const ScanRequest& request);
  // In double by the columns that the query uses: cheaper where they are few.
  bool by_columns(const Kernels& kernels, const ScanRequest& request);

  const std::vector<int64_t>& best() const { return best_; }  // the highest first, equal ones in order
  double logit(int64_t row) const { return logits_[row]; }
  double log_z() const { return log_z_; }
  double error() const { return error_; }   // what float32 may have moved log Z by
  int64_t again() const { return again_; }  // rows that were scored in both

 private:
  void scan_double(const Kernels& kernels, const ScanRequest& request, int64_t begin);
  bool scan_float(const Kernels& kernels, const ScanRequest& request);
  double radius(const ScanRequest& request, int64_t row) const;
  void doubt(const ScanRequest& request, int64_t row);
  int64_t doubts() const { return (int64_t)doubtful_.size(); }
  void drop_settled(const ScanRequest& request);
  void settle_doubts(const Kernels& kernels, const ScanRequest& request);
  bool compare(const Kernels& kernels, const ScanRequest& request, int64_t begin);
  bool is_better(int64_t a, int64_t b) const;
  void offer(int64_t row, int64_t k);
  void finish(const Kernels& kernels);

  const PacLayer& layer_;
  const bool cached_;
  RowReader reader_;
  AlignedVector<double> logits_;  // (stride) -infinity for rows that are left out, and for the padding
  std::vector<int64_t> best_;     // a heap while rows are offered: the worst of them first
  std::vector<int64_t> doubtful_, which_;
  std::vector<double> lows_, values_;
  double log_z_ = 0, error_ = 0, margin_ = 0;
  int64_t again_ = 0;
};

}  // namespace softindex
