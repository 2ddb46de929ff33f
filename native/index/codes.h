// Scores of a cluster from the 8-bit codes of its items, with a bound on how far they are from the float32 ones.
#pragma once

#include "index/query.h"

namespace softindex {

// A query rounded to integers.
struct CodedQuery {
  const int16_t* integers;  // (padded(d))
  double unit;              // the value of one integer step
  double norm;              // |q|, rounded up
  double lost;              // at least |q - rounded q|
};

// Rounds the query, into workspace.coded_query.
CodedQuery stage_coded_query(Query& query);

// Fills scores (items of the cluster) and returns the slack: none differs by more from what kernels.scan gives for the
// item itself. mean_dot is what kernels.scan gave for the cluster's mean.
double coded_scores(const Query& query, const CodedQuery& coded, int64_t cluster, double mean_dot, float* scores);

}  // namespace softindex
