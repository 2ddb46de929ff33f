// What a few sampled clusters say about the tail: the clusters that were not scanned.
#pragma once

#include <vector>

#include "index/query.h"

namespace softindex {

// The result of scanning a stretch of one tail cluster.
struct TailSample {
  int64_t cluster;
  double ratio;     // the cluster's mass, judged by the stretch, over its estimate
  double noise;     // variance of the ratio, in units of its square, because only a stretch was scanned
  double misfit;    // variance of the true ratio among clusters like this one, in units of its square
  double variance;  // of the logits
  double log_sum;   // the cluster's own, if the stretch is all of it, or -infinity
};

// The name of the sample: that of the query's direction.
uint64_t name_direction(const Query& query);

// How many items of a tail cluster to scan; share: of the tail in all mass.
int64_t stretch_length(const Query& query, int64_t cluster, double share);

// The sample from the first `count` items' dot products in the workspace, whose log sum is given.
TailSample judge_stretch(const Query& query, int64_t cluster, int64_t count, double log_sum);

// What is expected from the two unknowns of the tail: how its clusters differ from their estimates times rho, and rho.
struct TailError {
  double variation;  // total variation between the law and the softmax
  double log_total;  // |log Z - estimate|: where the tail is everything, an error of rho changes log Z but not the law
};

// share: of the tail in all mass.
TailError tail_error(const std::vector<TailSample>& samples, double rho, double share);

// Whether the mass is spread over so many clusters that scanning as many as the budget allows would not lower the error
// enough. Reads the weights of the tail's clusters in the workspace.
bool hopeless(const Query& query, double error, int64_t budget);

}  // namespace softindex
