// The log mass of every cluster under a law, for a group of one to four queries.
#pragma once

#include <algorithm>
#include <cmath>

#include "index/workspace.h"

namespace softindex {

// Copies one query, or the first queries of a group, into the workspace, where they are padded with zeros.
void stage_query(const View& view, const float* query, int64_t place, Workspace& workspace);
void stage_queries(const View& view, const float* queries, int64_t count, Workspace& workspace);

// Dot products of the first `count` staged queries with the rows; those of query g begin at dots + g * stride.
void scan_staged(const Kernels& kernels, const Rows& rows, int64_t count, float* dots, int64_t stride,
                 const Workspace& workspace);

// Prepares the staged query at this place for full forms, or for forms of rank r; the latter returns what one unit of
// the integer query stands for.
void stage_full_query(const Kernels& kernels, const View& view, double squared_norm, int64_t place,
                      Workspace& workspace);
double stage_rank_query(const View& view, int64_t place, Workspace& workspace);

// Fills workspace.pivots: for each staged query the largest score of a mean. Log masses are kept relative to pivot /
// temperature, as the digits that tell clusters apart drown in a large common score.
void find_pivots(const Kernels& kernels, const View& view, int64_t count, Workspace& workspace);

// Fills workspace.log_masses (count, k), relative to the workspace's pivots, for the staged queries. Those of a tree
// are shares: they sum to one, and their pivots are zero.
void cluster_masses(const Kernels& kernels, const View& view, const Law& law, int64_t count, Workspace& workspace);

// Scans clusters first .. last exactly; log_masses (count, k) gets the entries of these clusters, relative to the
// pivots.
void scan_clusters(const Kernels& kernels, const View& view, double temperature, int64_t count, int64_t first,
                   int64_t last, const double* pivots, double* log_masses, Workspace& workspace);

// What a cluster's dispersion adds to its log mass: half the variance of its logits, as if they were normal. Of n
// normal logits with a variance above 2 log n the largest decide, and their sum no longer follows the mean of exp: from
// there on it grows like the largest one, sqrt(2 log n) standard deviations above the mean.
inline double dispersion_term(double variance, double log_count) {
  return variance <= 2 * log_count ? variance / 2 : std::sqrt(2 * variance * log_count) - log_count;
}

// log(exp(a) + exp(b)), as both may be far from zero.
inline double log_add(double a, double b) {
  const double top = std::max(a, b);
  return std::isinf(top) ? top : top + std::log(std::exp(a - top) + std::exp(b - top));
}

double log_mass(const Mass& mass, double temperature, double pivot);

}  // namespace softindex
