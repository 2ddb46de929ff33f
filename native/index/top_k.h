// The k best items of queries: proven by bounds on clusters and items, or from the clusters that matter most.
#pragma once

#include "index/query.h"

namespace softindex {

struct Wanted {
  int64_t k;
  int64_t probes = -1;       // clusters to scan at most (more where they hold fewer than k items); below zero: no limit
  double missed = 0;         // share of the k best that may be missed, on average; 0: proven
  int64_t most = INT64_MAX;  // once more items were scored, no further cluster is searched
  double margin =
      0;  // above 0: no item whose score may be within this of the k-th best is left out, and the gap is how
          // far the next item is above the last of the k, which is below zero unless they are not proven
};

// What was found for one query. The caller provides the arrays.
struct Best {
  int64_t* positions;  // (k) best first, equal scores in the order of positions
  double* scores;      // (k) q.x + temperature * bias
  int64_t scored = 0;  // items whose score was computed from their float32 numbers
  double beyond = 0;   // no score of an item that is not among them exceeds this; -infinity if all were scored
  double missed = 0;   // expected share of the k best that are not among them; 0 if there are none
};

// Finds the best items of each query (count), without those that the request excludes: results (count). Queries share
// each read of a cluster. Reads mean_dots, and variances where they are given.
void top_k(Query* queries, int64_t count, const Wanted& wanted, Best* results);
// The same for queries of one request: fills their rows of the results.
void top_k(const std::vector<Query>& queries, const BestResults& results);

}  // namespace softindex
