// The k best items of a query, proven by bounds on the clusters, or from a limited number of clusters.
#pragma once

#include "index/query.h"

namespace softindex {

struct Best {
  int64_t scored;  // items
  double beyond;   // no score of an item that was not scored exceeds this; -infinity if all were
};

// Fills positions (k) with the best items that are not excluded, best first, equal scores in the order of positions,
// and workspace.best_scores (k) with their scores q.x + temperature * bias. Clusters are scanned in the order of the
// bounds on their best score: with probes < 0 until the bound of the next one falls below the k-th score, which proves
// the answer; otherwise as many as the request's probes say (more where they hold fewer than k items). Reads mean_dots.
Best top_k(Query& query, const Positions& excluded, int64_t k, int64_t* positions);

}  // namespace softindex
