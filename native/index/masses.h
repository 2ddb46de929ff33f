// The log mass of every cluster under a law, for a group of one to four queries.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "index/query.h"

namespace softindex {

// Fills log_masses of each query, and what they are made from: mean_dots and pivot, and the variances where the law has
// a dispersion. Those of a tree are log shares, and their pivots are zero.
void cluster_masses(const Group& group);

// Fills mean_dots and pivot of each query.
void find_pivots(const Group& group);

// Scans clusters first .. last exactly, without what each query excludes: fills their entries of log_masses, relative
// to the pivots. The scratch memory need not be that of the queries.
void scan_clusters(const Group& group, int64_t first, int64_t last, Workspace& scratch);

// Prepares queries of one call for a scan of all items, which is exact: fills mean_dots and pivot, and returns the
// groups that are to be scanned. Queries that list items are scored one by one.
std::vector<Group> begin_scan(std::vector<Query>& queries);
// scan_clusters for all of these groups, each item being read from memory once.
void scan_together(const std::vector<Group>& groups, int64_t first, int64_t last, Workspace& scratch);

// Prepares a query for full forms: fills its row of form_queries.
void stage_full_query(Query& query);
// The same for forms of rank r, in integer_queries; returns the value of one integer step.
double stage_rank_query(Query& query);

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

// The weights of items whose dot products are given, the first of them at position `from`.
inline Mass weigh_items(const Query& query, int64_t from, int64_t count, const float* dots) {
  return query.kernels.weigh(dots, count, query.inverse_temperature(), query.view.bias_at(from), nullptr, nullptr);
}

inline double log_mass(const Mass& mass, double temperature, double pivot) {
  return (mass.reference - pivot) / temperature + (mass.peak + std::log(mass.total));
}

}  // namespace softindex
