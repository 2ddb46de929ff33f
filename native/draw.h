// The two-level draw, the log-probability of given items, and log Z: three readings of the same cell masses.
#pragma once

#include "workspace.h"

namespace softindex {

// A cell scanned at the query in `query`: its weights and prefix sums are in the workspace until the next scan.
struct ScannedCell {
  Mass mass;
  double log_total;  // log of mass.total
  int64_t begin, count;
};

// Draws n items for one query from the log masses of the cells; positions (n) and log_prob (n).
// Returns the number of items scored for it.
int64_t draw(const Kernels& kernels, const View& view, const Law& law, const float* query, const double* log_masses,
             uint64_t key, uint64_t stream, int64_t n, int64_t* positions, double* log_prob, Workspace& workspace);

// log_prob (m) of the items at positions (m), each in [0, n of the view).
void log_probabilities(const Kernels& kernels, const View& view, const Law& law, const float* query,
                       const double* log_masses, const int64_t* positions, int64_t m, double* log_prob,
                       Workspace& workspace);

}  // namespace softindex
