// What the moments of a cluster prove about its items: bounds on its best score and on its log mass.
#pragma once

#include "index/workspace.h"

namespace softindex {

// The length of a query and what float32 may add to any dot product with it, in units of the other's length.
struct QueryLength {
  double norm;      // no less than |q|
  double rounding;  // no less than the rounding of a dot product over the other vector's length
};
QueryLength measure_query(const View& view, const float* query);

// workspace.bounds (k): no float32 score of the cluster's items, plus temperature times their biases, exceeds it. Reads
// the dots with the means from workspace.cluster_dots.
void best_score_bounds(const View& view, const float* query, double temperature, Workspace& workspace);

// lower and upper (k): bounds on each cluster's log mass as a scan in float32 would find it, relative to pivot /
// temperature; both -infinity where a cluster is empty. Reads what cluster_masses left in the workspace for the query
// at `place`: the dots with the means, the pivot and, where the law has them, the variances.
void log_mass_bounds(const View& view, const Law& law, int64_t place, double* lower, double* upper,
                     const Workspace& workspace);

}  // namespace softindex
