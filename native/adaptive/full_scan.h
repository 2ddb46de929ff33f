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
  Coordinates& coordinates;  // the query
  Temperature temperature;
  int64_t k;
  Excluded excluded;
  int64_t threads;
};

// In double, which takes no longer than in float32.
class FullScan {
 public:
  explicit FullScan(const PacLayer& layer);

  // Row by row. False where a logit is no number.
  bool by_rows(const Kernels& kernels, const ScanRequest& request);
  // Whether a scan by rows can look at the query on the way: where there are few rows, another pass would count.
  bool can_survey() const { return layer_.n < 7 && layer_.d > short_row && layer_.rows.number == Number::float32; }
  // By the columns that the query uses: cheaper where they are few.
  bool by_columns(const Kernels& kernels, const ScanRequest& request);

  const std::vector<int64_t>& best() const { return best_; }  // the highest first, equal ones in order
  double logit(int64_t row) const { return logits_[row]; }
  double log_z() const { return log_z_; }

 private:
  void multiply(const Kernels& kernels, const ScanRequest& request);
  bool compare(const Kernels& kernels, const ScanRequest& request);
  bool is_better(int64_t a, int64_t b) const;
  void offer(int64_t row, int64_t k);
  void finish(const Kernels& kernels);

  const PacLayer& layer_;
  RowReader reader_;
  AlignedVector<double> logits_;  // (padded(n)) -infinity for rows that are left out, and for the padding
  std::vector<int64_t> best_;     // a heap while rows are offered: the worst of them first
  double log_z_ = 0;
};

}  // namespace softindex
