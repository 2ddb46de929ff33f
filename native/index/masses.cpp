// The log mass of every cluster under a law, for a group of one to four queries.
#include "index/masses.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/interrupt.h"
#include "index/exclusion.h"
#include "index/scan.h"
#include "index/tree.h"
#include "kernels/round_query.h"

namespace softindex {
namespace {

// Clusters that fit together into this many rows are scanned by one call.
constexpr int64_t scanned_together = 1024;

// Small clusters lie side by side in memory: a stretch of them, which ends here, is scanned with one call.
int64_t stretch_end(const View& view, int64_t from, int64_t last) {
  int64_t to = from + 1;
  while (to < last && view.offsets[to + 1] - view.offsets[from] <= scanned_together) ++to;
  return to;
}

// Dot products of all queries of the group; those of query g begin at dots + g * stride.
void scan_rows(const Group& group, const Rows& rows, float* dots, int64_t stride) {
  const Kernels& kernels = group.context().kernels;
  const float* vectors[group_size];
  for (int64_t g = 0; g < group.count; ++g) vectors[g] = group[g].vector;
  kernels.scan_many(rows, vectors, group.count, dots, stride);
}

// The same for the items at the positions from .. to, into the scratch memory.
void scan_stretch(const Group& group, int64_t from, int64_t to, Workspace& scratch) {
  const Context& context = group.context();
  const float* vectors[group_size];
  for (int64_t g = 0; g < group.count; ++g) vectors[g] = group[g].vector;
  scan_items_together(context.kernels, context.view, from, to,
                      {vectors, group.count, scratch.dots.data(), scratch.stretch});
}

double precision_of(const Query& query) { return 1.0 / (query.temperature * query.temperature); }

// Full forms: one dot product of the packed products with each cluster's row.
void evaluate_full_forms(const Group& group) {
  const Context& context = group.context();
  const View& view = context.view;
  Workspace& workspace = context.workspace;
  for (Query& query : group) stage_full_query(query);
  context.kernels.scan_int16(view.full_rows(), workspace.form_queries.data(), group.count, workspace.form_dots.data(),
                             view.k);
  for (Query& query : group) {
    const float* dots = &workspace.form_dots[query.place * view.k];
    const double norm = query.squared_norm(), precision = precision_of(query);
    for (int64_t c = 0; c < view.k; ++c) {
      // Rounding may leave a form of almost zero below zero, which no variance is.
      const double form = std::max((double)dots[c] * view.dispersion.scales[c], 0.0);
      query.variances[c] = precision * norm * form;
    }
  }
}

// Forms of rank r: r dot products per cluster, squared and summed.
void evaluate_rank_forms(const Group& group) {
  const Context& context = group.context();
  const View& view = context.view;
  Workspace& workspace = context.workspace;
  const int64_t rank = view.dispersion.rank, rows = view.k * rank;
  double units[group_size];
  for (Query& query : group) units[query.place] = stage_rank_query(query);
  context.kernels.scan_int8(view.rank_rows(), workspace.integer_queries.data(), group.count,
                            workspace.integer_dots.data(), rows);
  for (Query& query : group) {
    const double unit = units[query.place], norm = query.squared_norm(), precision = precision_of(query);
    const double* sums = workspace.form_sums.data();
    context.kernels.square_sums(&workspace.integer_dots[query.place * rows], view.dispersion.scales, view.k, rank,
                                workspace.form_sums.data());
    for (int64_t c = 0; c < view.k; ++c)
      query.variances[c] = precision * (sums[c] * unit * unit + view.dispersion.spread[c] * norm);
  }
}

// Fills the variances: q' S q / t^2 for each query and cluster.
void find_variances(const Group& group) {
  if (group.context().view.dispersion.kind == Forms::full)
    evaluate_full_forms(group);
  else
    evaluate_rank_forms(group);
}

void add_dispersion(Query& query) {
  const View& view = query.view;
  const double* __restrict variances = query.variances;
  const double* __restrict log_counts = view.log_counts.data();
  double* __restrict log_masses = query.log_masses;
  if (query.request.law.kind == Kind::estimated && query.request.probes == 0)  // the published law
    for (int64_t c = 0; c < view.k; ++c) log_masses[c] += 0.5 * variances[c];
  else
    for (int64_t c = 0; c < view.k; ++c) log_masses[c] += dispersion_term(variances[c], log_counts[c]);
}

// The score of the item that reaches farthest along the mean is nearly known. Where lengths vary much it outweighs
// everything that mean and variance say about its cluster.
void raise_to_the_longest(Query& query) {
  const View& view = query.view;
  const float* __restrict dots = query.mean_dots;
  double* __restrict log_masses = query.log_masses;
  const double inverse = query.inverse_temperature(), pivot = query.pivot;
  const double log_weight = view.sizes.weight_of(query.request.law);
  for (int64_t c = 0; c < view.k; ++c) {
    const double longest = ((double)dots[c] * view.reach[c] - pivot) * inverse + log_weight;
    // An empty cluster stays empty, and the estimate of a single item is exact.
    if (longest > log_masses[c] && view.count(c) > 1) log_masses[c] = longest;
  }
}

void estimate_from_means(Query& query) {
  const View& view = query.view;
  const float* __restrict dots = query.mean_dots;
  const double* __restrict log_sizes = view.sizes.of(query.request.law);
  double* __restrict log_masses = query.log_masses;
  const double inverse = query.inverse_temperature(), pivot = query.pivot;
  for (int64_t c = 0; c < view.k; ++c) log_masses[c] = (dots[c] - pivot) * inverse + log_sizes[c];
}

}  // namespace

// The query is scaled to length one first, as the products of a long one could overflow float32.
void stage_full_query(Query& query) {
  const int64_t d = query.view.d;
  AlignedVector<float>& unit = query.workspace.weights;
  unit.resize(std::max<size_t>(unit.size(), d));
  const double inverse = query.squared_norm() > 0 ? 1.0 / std::sqrt(query.squared_norm()) : 0.0;
  for (int64_t j = 0; j < d; ++j) unit[j] = (float)(query.vector[j] * inverse);
  query.kernels.outer_product(unit.data(), d,
                              &query.workspace.form_queries[query.place * padded(query.view.triangle())]);
}

double stage_rank_query(Query& query) {
  const int64_t d = query.view.d;
  const double unit = round_query(query.vector, d, &query.workspace.integer_queries[query.place * padded(d)]);
  // Each coordinate is off by half a unit at most.
  query.rounding_loss = 0.5000001 * unit * std::sqrt((double)d);
  return unit;
}

void find_pivots(const Group& group) {
  const Context& context = group.context();
  const View& view = context.view;
  scan_rows(group, view.mean_rows(), group[0].mean_dots, view.k);
  for (Query& query : group) {
    if (!view.any_empty) {
      query.pivot = context.kernels.largest(query.mean_dots, view.k);
      continue;
    }
    // The mean of an empty cluster stands for nothing.
    float best = -std::numeric_limits<float>::infinity();
    for (int64_t c = 0; c < view.k; ++c)
      if (!view.empty(c)) best = std::max(best, query.mean_dots[c]);
    query.pivot = best;
  }
}

std::vector<Group> begin_scan(std::vector<Query>& queries) {
  std::vector<Group> groups;
  for (Query& query : queries) query.scored = query.lists() ? 0 : query.view.n;
  for (const Group& group : groups_in(queries)) {
    if (group.all_list()) continue;
    find_pivots(group);
    groups.push_back(group);
  }
  return groups;
}

void scan_together(const std::vector<Group>& groups, int64_t first, int64_t last, Workspace& scratch) {
  for (int64_t from = first, to = 0; from < last && !groups.empty(); from = to) {
    check_interrupt();
    const View& view = groups[0].context().view;
    to = stretch_end(view, from, last);
    for (const Group& group : groups) scan_clusters(group, from, to, scratch);
  }
}

void scan_clusters(const Group& group, int64_t first, int64_t last, Workspace& scratch) {
  const Context& context = group.context();
  const View& view = context.view;
  for (int64_t from = first, to = 0; from < last; from = to) {
    to = stretch_end(view, from, last);
    const int64_t begin = view.offsets[from];
    scan_stretch(group, begin, view.offsets[to], scratch);
    for (Query& query : group) {
      float* stretch = &scratch.dots[(&query - group.begin()) * scratch.stretch];
      // Other laws are told of the items that a query excludes later.
      const bool hides = context.request.law.kind == Kind::exhaustive || query.without_excluded;
      const Positions excluded =
          hides ? excluded_within(query.request.excluded_of(query.number), begin, view.offsets[to]) : Positions{};
      hide(excluded, begin, stretch);
      for (int64_t c = from; c < to; ++c) {
        if (excluded_within(excluded, view.offsets[c], view.offsets[c + 1]).count == view.count(c)) {
          query.log_masses[c] = minus_infinity;
          continue;
        }
        const Mass mass = weigh_items(query, view.offsets[c], view.size(c), stretch + (view.offsets[c] - begin));
        query.log_masses[c] = log_mass(mass, query.temperature, query.pivot);
      }
    }
  }
}

void cluster_masses(const Group& group) {
  const Context& context = group.context();
  const Law& law = context.request.law;
  if (law.kind == Kind::tree) return leaf_shares(group);
  find_pivots(group);
  if (law.kind == Kind::exhaustive) return scan_clusters(group, 0, context.view.k, context.workspace);
  for (Query& query : group) estimate_from_means(query);
  if (law.dispersion) {
    find_variances(group);
    for (Query& query : group) add_dispersion(query);
  }
  if (context.request.probes != 0 && context.view.reach != nullptr)
    for (Query& query : group) raise_to_the_longest(query);
  scan_clusters(group, context.view.first_known, context.view.k, context.workspace);
}

}  // namespace softindex
