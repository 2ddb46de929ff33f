// The two-level draw: clusters by their log mass, then items by one scan of each chosen cluster.
#include "index/draw.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/philox.h"
#include "index/masses.h"

namespace softindex {

ScannedCluster weigh_cluster(const Kernels& kernels, const View& view, double temperature, int64_t cluster,
                             const float* dots, Workspace& workspace) {
  ScannedCluster scanned = {{}, 0.0, view.offsets[cluster], view.size(cluster), dots};
  const float* bias = view.bias == nullptr ? nullptr : view.bias + scanned.begin;
  if (scanned.count > 0)
    scanned.mass =
        kernels.weigh(dots, scanned.count, 1.0 / temperature, bias, workspace.weights.data(), workspace.prefix.data());
  // Numbers that were finite when the index was built give a positive sum.
  if (scanned.count == 0 || !(scanned.mass.total > 0 && std::isfinite(scanned.mass.total)))
    throw std::runtime_error("a cluster that was drawn holds no weight");
  scanned.log_total = std::log(scanned.mass.total);
  return scanned;
}

double log_within(const View& view, double temperature, const ScannedCluster& scanned, int64_t i) {
  const double bias = view.bias == nullptr ? 0.0 : view.bias[scanned.begin + i];
  const double relative = ((double)scanned.dots[i] - scanned.mass.reference) * (1.0 / temperature) + bias;
  // A rounding of the parts must not make a certain item more than certain.
  return std::min(0.0, relative - scanned.mass.peak - scanned.log_total);
}

Total weigh_clusters(const Kernels& kernels, const View& view, const double* log_masses, Workspace& workspace) {
  const Total total =
      kernels.weigh_masses(log_masses, view.k, workspace.cluster_weights.data(), workspace.cluster_prefix.data());
  if (!std::isfinite(total.peak + total.log_total)) throw std::runtime_error("no cluster holds any weight");
  return total;
}

double log_share(double log_mass, const Total& total) {
  return std::min(0.0, (log_mass - total.peak) - total.log_total);
}

int64_t cluster_of(const View& view, int64_t position) {
  return std::upper_bound(view.offsets, view.offsets + view.k + 1, position) - view.offsets - 1;
}

void pick_items(const Kernels& kernels, const View& view, double temperature, const ScannedCluster& scanned,
                const PendingDraw* begin, const PendingDraw* end, int64_t* positions, double* log_prob,
                const Workspace& workspace) {
  for (const PendingDraw* next = begin; next != end; ++next) {
    const int64_t i = kernels.pick(workspace.weights.data(), workspace.prefix.data(), scanned.count, next->uniform);
    positions[next->slot] = scanned.begin + i;
    log_prob[next->slot] = next->log_share + log_within(view, temperature, scanned, i);
  }
}

void order_by_cluster(PendingDraw* begin, PendingDraw* end) {
  std::sort(begin, end, [](const PendingDraw& a, const PendingDraw& b) {
    return a.cluster != b.cluster ? a.cluster < b.cluster : a.slot < b.slot;
  });
}

int64_t settle_clusters(const View& view, PendingDraw* pending, int64_t n) {
  order_by_cluster(pending, pending + n);
  int64_t held = 0;
  for (int64_t j = 0; j < n; ++j)
    if (j == 0 || pending[j].cluster != pending[j - 1].cluster) held += view.size(pending[j].cluster);
  return held;
}

int64_t choose_clusters(const Kernels& kernels, const View& view, const double* log_masses, uint64_t key,
                        uint64_t stream, int64_t n, int64_t first_slot, PendingDraw* pending, Workspace& workspace) {
  const Total total = weigh_clusters(kernels, view, log_masses, workspace);
  for (int64_t j = 0; j < n; ++j) {
    const Uniforms u = uniforms(key, stream, (uint64_t)j);
    const int64_t cluster =
        kernels.pick(workspace.cluster_weights.data(), workspace.cluster_prefix.data(), view.k, u.first);
    pending[j] = {cluster, first_slot + j, u.second, log_share(log_masses[cluster], total)};
  }
  return settle_clusters(view, pending, n);
}

void draw_items(const Kernels& kernels, const View& view, double temperature, const float* queries, int64_t n,
                const PendingDraw* begin, const PendingDraw* end, int64_t* positions, double* log_prob,
                Workspace& workspace) {
  const int64_t cluster = begin->cluster;
  const Rows rows = view.items(view.offsets[cluster], view.offsets[cluster + 1]);
  while (begin != end) {
    const PendingDraw* first[group_size + 1];
    int64_t count = 0;
    first[0] = begin;
    while (begin != end && count < group_size) {
      const int64_t query = begin->slot / n;
      stage_query(view, queries + query * view.d, count, workspace);
      while (begin != end && begin->slot / n == query) ++begin;
      first[++count] = begin;
    }
    scan_staged(kernels, rows, count, workspace.dots.data(), workspace.stretch, workspace);
    for (int64_t g = 0; g < count; ++g) {
      const ScannedCluster scanned =
          weigh_cluster(kernels, view, temperature, cluster, &workspace.dots[g * workspace.stretch], workspace);
      pick_items(kernels, view, temperature, scanned, first[g], first[g + 1], positions, log_prob, workspace);
    }
  }
}

void locate_items(const View& view, const int64_t* positions, int64_t m, Workspace& workspace) {
  std::vector<PendingDraw>& pending = workspace.pending;
  pending.resize(m);
  for (int64_t j = 0; j < m; ++j) {
    pending[j] = {cluster_of(view, positions[j]), j, 0.0, 0.0};
  }
  order_by_cluster(pending.data(), pending.data() + m);
}

void located_log_probabilities(const Kernels& kernels, const View& view, double temperature, const float* query,
                               const int64_t* positions, int64_t m, double* log_prob, Workspace& workspace) {
  const std::vector<PendingDraw>& pending = workspace.pending;
  ScannedCluster scanned = {};
  for (int64_t j = 0; j < m; ++j) {
    const PendingDraw& next = pending[j];
    if (j == 0 || next.cluster != pending[j - 1].cluster) {
      kernels.scan(view.items(view.offsets[next.cluster], view.offsets[next.cluster + 1]), query,
                   workspace.dots.data());
      scanned = weigh_cluster(kernels, view, temperature, next.cluster, workspace.dots.data(), workspace);
    }
    log_prob[next.slot] = next.log_share + log_within(view, temperature, scanned, positions[next.slot] - scanned.begin);
  }
}

void log_probabilities(const Kernels& kernels, const View& view, const Law& law, const float* query,
                       const double* log_masses, const int64_t* positions, int64_t m, double* log_prob,
                       Workspace& workspace) {
  const Total total = weigh_clusters(kernels, view, log_masses, workspace);
  locate_items(view, positions, m, workspace);
  for (PendingDraw& next : workspace.pending) next.log_share = log_share(log_masses[next.cluster], total);
  located_log_probabilities(kernels, view, law.temperature, query, positions, m, log_prob, workspace);
}

}  // namespace softindex
