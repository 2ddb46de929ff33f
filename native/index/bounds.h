// What the moments of a cluster prove about its items: bounds on its best score and on its log mass.
#pragma once

#include "index/query.h"

namespace softindex {

// What float32 exponentials and sums may add to the log of a sum of weights, rounded up: see scan_slack in bounds.cpp.
constexpr double weight_slack = 1e-4;

// The length of a query and what float32 may add to any dot product with it, in units of the other's length.
struct QueryLength {
  double norm;      // at least |q|
  double rounding;  // at least the rounding error of a dot product over |q| and the other's length (View::rounding)
  double vanished;  // at least the absolute error beside it (View::vanished)
};
QueryLength measure_query(Query& query);

// No float32 score of the cluster's items, plus temperature times their biases, exceeds this. Reads mean_dots.
double best_score_bound(const Query& query, const QueryLength& length, int64_t cluster);

// lower and upper (k): bounds on each cluster's log mass as a scan in float32 would find it, relative to pivot /
// temperature; both -infinity where a cluster is empty. Reads what cluster_masses left.
void log_mass_bounds(Query& query, double* lower, double* upper);

// How far the log of a sum from a certified scan may be from the true one, for items no longer than this.
double scan_error(const Query& query, const QueryLength& length, double longest);

// How far the log Z of an exhaustive scan may lie from the true one. Each logit is off by the rounding of its dot
// product, over t, and a few units in the last place of itself; an item that counts has a logit within 87 of the
// largest, and one that does not adds less than exp(-87). largest_bias: no log bias is larger or smaller than this.
double exhaustive_error(Query& query, double log_partition, double largest_bias);

// No log bias is larger or smaller than this. Only a call that scans all items needs it, and reads them all anyway.
double largest_bias(const View& view, const Request& request);

}  // namespace softindex
