// Draws that are provably exact, and log Z between proven bounds, from scanning only the clusters that bounds leave
// over.
#pragma once

#include "index/workspace.h"

namespace softindex {

// One query with what cluster_masses left of it in the workspace: staged at `place`, log_masses (k) estimated.
struct CertifiedQuery {
  const Kernels& kernels;
  const View& view;
  const Law& law;
  int64_t place;
  const double* log_masses;
  Workspace& workspace;
};

// log Z between two bounds, and how many items were scanned for them.
struct Bracket {
  double value, low, high;
  int64_t scored;
};

// n draws from the softmax of the float32 scores, exactly: positions (n), and log_prob (n) between low and high (n),
// which are proven of the true softmax. Draw j depends on the draws before it through the clusters they scanned, and so
// on nothing but key, stream and j. Returns the items scanned.
int64_t sample_certified(const CertifiedQuery& query, uint64_t key, uint64_t stream, int64_t n, int64_t* positions,
                         double* log_prob, double* low, double* high);

// Scans clusters until the bounds of log Z are no farther apart than the law's tolerance, or nothing is left to scan.
Bracket prove_log_partition(const CertifiedQuery& query);

// The same for a limited number of items; where that does not suffice, clusters are drawn, and the bounds hold with the
// asked probability over key and stream.
Bracket estimate_log_partition(const CertifiedQuery& query, double confidence, uint64_t key, uint64_t stream);

// Whether bounds cost so little that they can pay.
bool worth_bounding(const View& view);

// How far the log of a sum that a scan found may be from the true one.
double scan_error(const View& view, const Law& law, double query_norm, double longest);

}  // namespace softindex
