// The log mass of every cluster under a law, for a group of one to four queries.
#include "index/masses.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "index/tree.h"
#include "kernels/round_query.h"

namespace softindex {
namespace {

// Full forms: one dot product of the packed products with each cluster's row.
void evaluate_full_forms(const Kernels& kernels, const View& view, double precision, const double* norms, int64_t count,
                         Workspace& workspace) {
  for (int64_t g = 0; g < count; ++g) stage_full_query(kernels, view, norms[g], g, workspace);
  kernels.scan_int16(view.full_rows(), workspace.form_queries.data(), count, workspace.form_dots.data(), view.k);
  for (int64_t g = 0; g < count; ++g)
    for (int64_t c = 0; c < view.k; ++c) {
      // Rounding may leave a form of almost zero below zero, which no variance is.
      const double form = std::max((double)workspace.form_dots[g * view.k + c] * view.scales[c], 0.0);
      workspace.variances[g * view.k + c] = precision * norms[g] * form;
    }
}

// Forms of rank r: r dot products a cluster, squared and summed.
void evaluate_rank_forms(const Kernels& kernels, const View& view, double precision, const double* norms, int64_t count,
                         Workspace& workspace) {
  const int64_t rows = view.k * view.rank;
  double units[group_size];
  for (int64_t g = 0; g < count; ++g) units[g] = stage_rank_query(view, g, workspace);
  kernels.scan_int8(view.rank_rows(), workspace.integer_queries.data(), count, workspace.integer_dots.data(), rows);
  for (int64_t g = 0; g < count; ++g) {
    kernels.square_sums(&workspace.integer_dots[g * rows], view.scales, view.k, view.rank, workspace.form_sums.data());
    for (int64_t c = 0; c < view.k; ++c)
      workspace.variances[g * view.k + c] =
          precision * (workspace.form_sums[c] * units[g] * units[g] + view.spread[c] * norms[g]);
  }
}

// Fills workspace.variances: q' S q / t^2 for each query and cluster.
void find_variances(const Kernels& kernels, const View& view, const Law& law, int64_t count, Workspace& workspace) {
  const double precision = 1.0 / (law.temperature * law.temperature);
  double norms[group_size];
  for (int64_t g = 0; g < count; ++g) norms[g] = squared_norm(&workspace.queries[g * padded(view.d)], view.d);
  if (view.forms_kind == Forms::full)
    evaluate_full_forms(kernels, view, precision, norms, count, workspace);
  else
    evaluate_rank_forms(kernels, view, precision, norms, count, workspace);
}

void add_dispersion(const View& view, const Law& law, int64_t g, Workspace& workspace) {
  const double* __restrict variances = &workspace.variances[g * view.k];
  double* __restrict log_masses = &workspace.log_masses[g * view.k];
  if (law.kind == Kind::estimated && law.probes == 0)  // the published law
    for (int64_t c = 0; c < view.k; ++c) log_masses[c] += 0.5 * variances[c];
  else
    for (int64_t c = 0; c < view.k; ++c) log_masses[c] += dispersion_term(variances[c], view.log_counts[c]);
}

// The item that reaches farthest along the mean is one whose score is nearly known. Where lengths vary much it
// outweighs all that mean and variance tell of its cluster.
void raise_to_the_longest(const View& view, const Law& law, int64_t g, Workspace& workspace) {
  const float* __restrict dots = &workspace.cluster_dots[g * view.k];
  double* __restrict log_masses = &workspace.log_masses[g * view.k];
  const double inverse = 1.0 / law.temperature, pivot = workspace.pivots[g];
  for (int64_t c = 0; c < view.k; ++c) {
    const double longest = ((double)dots[c] * view.reach[c] - pivot) * inverse + law.log_weight;
    // An empty cluster stays empty, and what is told of a single item is exact.
    if (longest > log_masses[c] && view.size(c) > 1) log_masses[c] = longest;
  }
}

}  // namespace

void stage_query(const View& view, const float* query, int64_t place, Workspace& workspace) {
  std::memcpy(&workspace.queries[place * padded(view.d)], query, view.d * sizeof(float));
}

void stage_queries(const View& view, const float* queries, int64_t count, Workspace& workspace) {
  for (int64_t g = 0; g < count; ++g) stage_query(view, queries + g * view.d, g, workspace);
}

void scan_staged(const Kernels& kernels, const Rows& rows, int64_t count, float* dots, int64_t stride,
                 const Workspace& workspace) {
  const float* queries[group_size];
  for (int64_t g = 0; g < count; ++g) queries[g] = &workspace.queries[g * padded(rows.d)];
  if (count == group_size) return kernels.scan_group(rows, queries, dots, stride);
  for (int64_t g = 0; g < count; ++g) kernels.scan(rows, queries[g], dots + g * stride);
}

// The query is scaled to length one first, as the products of a long one could overflow float32.
void stage_full_query(const Kernels& kernels, const View& view, double squared_norm, int64_t place,
                      Workspace& workspace) {
  std::vector<float>& unit = workspace.weights;
  unit.resize(std::max<size_t>(unit.size(), view.d));
  const float* query = &workspace.queries[place * padded(view.d)];
  const double inverse = squared_norm > 0 ? 1.0 / std::sqrt(squared_norm) : 0.0;
  for (int64_t j = 0; j < view.d; ++j) unit[j] = (float)(query[j] * inverse);
  kernels.outer_product(unit.data(), view.d, &workspace.form_queries[place * padded(view.triangle())]);
}

double stage_rank_query(const View& view, int64_t place, Workspace& workspace) {
  const int64_t at = place * padded(view.d);
  const double unit = round_query(&workspace.queries[at], view.d, &workspace.integer_queries[at]);
  // Each coordinate is off by half a unit at most.
  workspace.query_loss[place] = 0.5000001 * unit * std::sqrt((double)view.d);
  return unit;
}

double log_mass(const Mass& mass, double temperature, double pivot) {
  return (mass.reference - pivot) / temperature + (mass.peak + std::log(mass.total));
}

void find_pivots(const Kernels& kernels, const View& view, int64_t count, Workspace& workspace) {
  scan_staged(kernels, view.mean_rows(), count, workspace.cluster_dots.data(), view.k, workspace);
  for (int64_t g = 0; g < count; ++g) {
    const float* dots = &workspace.cluster_dots[g * view.k];
    if (!view.any_empty) {
      workspace.pivots[g] = kernels.largest(dots, view.k);
      continue;
    }
    // The mean of an empty cluster stands for nothing.
    float best = -std::numeric_limits<float>::infinity();
    for (int64_t c = 0; c < view.k; ++c)
      if (view.size(c) > 0) best = std::max(best, dots[c]);
    workspace.pivots[g] = best;
  }
}

void scan_clusters(const Kernels& kernels, const View& view, double temperature, int64_t count, int64_t first,
                   int64_t last, const double* pivots, double* log_masses, Workspace& workspace) {
  const double inverse = 1.0 / temperature;
  int64_t from = first;
  while (from < last) {
    // Small clusters lie side by side in memory: scan a stretch of them with one call.
    int64_t to = from + 1;
    while (to < last && view.offsets[to + 1] - view.offsets[from] <= 1024) ++to;
    const int64_t begin = view.offsets[from];
    scan_staged(kernels, view.items(begin, view.offsets[to]), count, workspace.dots.data(), workspace.stretch,
                workspace);
    for (int64_t g = 0; g < count; ++g) {
      for (int64_t c = from; c < to; ++c) {
        double& result = log_masses[g * view.k + c];
        if (view.size(c) == 0) {
          result = -std::numeric_limits<double>::infinity();
          continue;
        }
        const float* dots = &workspace.dots[g * workspace.stretch + view.offsets[c] - begin];
        const float* bias = view.bias == nullptr ? nullptr : view.bias + view.offsets[c];
        result = log_mass(kernels.weigh(dots, view.size(c), inverse, bias, nullptr, nullptr), temperature, pivots[g]);
      }
    }
    from = to;
  }
}

void cluster_masses(const Kernels& kernels, const View& view, const Law& law, int64_t count, Workspace& workspace) {
  if (law.kind == Kind::tree) return leaf_shares(kernels, view, law, count, workspace);
  find_pivots(kernels, view, count, workspace);
  if (law.exhaustive()) {
    scan_clusters(kernels, view, law.temperature, count, 0, view.k, workspace.pivots, workspace.log_masses.data(),
                  workspace);
    return;
  }
  const double inverse = 1.0 / law.temperature;
  for (int64_t g = 0; g < count; ++g) {
    const float* __restrict dots = &workspace.cluster_dots[g * view.k];
    double* __restrict log_masses = &workspace.log_masses[g * view.k];
    const double pivot = workspace.pivots[g];
    for (int64_t c = 0; c < view.k; ++c) log_masses[c] = (dots[c] - pivot) * inverse + law.offset[c];
  }
  if (law.dispersion) {
    find_variances(kernels, view, law, count, workspace);
    for (int64_t g = 0; g < count; ++g) add_dispersion(view, law, g, workspace);
  }
  if (law.probes != 0 && view.reach != nullptr)
    for (int64_t g = 0; g < count; ++g) raise_to_the_longest(view, law, g, workspace);
}

}  // namespace softindex
