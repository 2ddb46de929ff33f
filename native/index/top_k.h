// The k best items of a query, proven by bounds on the clusters, or from a number of clusters.
#pragma once

#include "index/workspace.h"

namespace softindex {

// score = q.x + temperature * bias. probes < 0: scan clusters in the order of their upper bounds until the bound of the
// next one falls below the k-th best score, which proves the answer. Otherwise scan this many clusters (more where they
// hold fewer than k items). Best first; equal scores in the order of positions. Returns the items scored.
int64_t top_k(const Kernels& kernels, const View& view, const float* query, double temperature, int64_t k,
              int64_t probes, int64_t* positions, float* scores, Workspace& workspace);

}  // namespace softindex
