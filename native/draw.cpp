// The two-level draw: a cell by its log mass, then an item by one scan of the cell.
#include "draw.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "masses.h"
#include "philox.h"

namespace softindex {
namespace {

ScannedCell scan_cell(const Kernels& kernels, const View& view, double temperature, const float* query,
                      int64_t cell, Workspace& workspace) {
  ScannedCell scanned;
  scanned.begin = view.offsets[cell];
  scanned.count = view.size(cell);
  kernels.scan(view.items(scanned.begin, view.offsets[cell + 1]), query, workspace.dots.data());
  const float* bias = view.bias == nullptr ? nullptr : view.bias + scanned.begin;
  if (scanned.count > 0)
    scanned.mass = kernels.weigh(workspace.dots.data(), scanned.count, 1.0 / temperature, bias,
                                 workspace.weights.data(), workspace.prefix.data());
  // Numbers that were finite when the index was built give a positive sum.
  if (scanned.count == 0 || !(scanned.mass.total > 0 && std::isfinite(scanned.mass.total)))
    throw std::runtime_error("a cluster that was drawn holds no weight");
  scanned.log_total = std::log(scanned.mass.total);
  return scanned;
}

// log of the probability of the item inside its cell.
double log_within(const View& view, double temperature, const ScannedCell& scanned, int64_t i,
                  const Workspace& workspace) {
  const double bias = view.bias == nullptr ? 0.0 : view.bias[scanned.begin + i];
  const double relative = ((double)workspace.dots[i] - scanned.mass.reference) * (1.0 / temperature) + bias;
  // A rounding of the parts must not make a certain item more than certain.
  return std::min(0.0, relative - scanned.mass.peak - scanned.log_total);
}

Total weigh_cells(const Kernels& kernels, const View& view, const double* log_masses, Workspace& workspace) {
  const Total total =
      kernels.weigh_masses(log_masses, view.k, workspace.cell_weights.data(), workspace.cell_prefix.data());
  if (!std::isfinite(total.peak + total.log_total)) throw std::runtime_error("no cluster holds any weight");
  return total;
}

double log_share(double log_mass, const Total& total) {
  return std::min(0.0, (log_mass - total.peak) - total.log_total);
}

void order_by_cell(std::vector<PendingDraw>& pending) {
  std::sort(pending.begin(), pending.end(), [](const PendingDraw& a, const PendingDraw& b) {
    return a.cell != b.cell ? a.cell < b.cell : a.draw < b.draw;
  });
}

}  // namespace

int64_t draw(const Kernels& kernels, const View& view, const Law& law, const float* query, const double* log_masses,
             uint64_t key, uint64_t stream, int64_t n, int64_t* positions, double* log_prob, Workspace& workspace) {
  const Total total = weigh_cells(kernels, view, log_masses, workspace);
  std::vector<PendingDraw>& pending = workspace.pending;
  pending.resize(n);
  for (int64_t j = 0; j < n; ++j) {
    const Uniforms u = uniforms(key, stream, (uint64_t)j);
    pending[j].cell = kernels.pick(workspace.cell_weights.data(), workspace.cell_prefix.data(), view.k, u.first);
    pending[j].draw = j;
    pending[j].uniform = u.second;
  }
  order_by_cell(pending);  // draws that fall into one cell share its scan
  ScannedCell scanned = {};
  int64_t current = -1, scored = 0;
  for (const PendingDraw& next : pending) {
    if (next.cell != current) {
      current = next.cell;
      scanned = scan_cell(kernels, view, law.temperature, query, current, workspace);
      scored += scanned.count;
    }
    const int64_t i =
        kernels.pick(workspace.weights.data(), workspace.prefix.data(), scanned.count, next.uniform);
    positions[next.draw] = scanned.begin + i;
    log_prob[next.draw] = log_share(log_masses[current], total) +
                          log_within(view, law.temperature, scanned, i, workspace);
  }
  return law.exhaustive ? view.n : scored;
}

void log_probabilities(const Kernels& kernels, const View& view, const Law& law, const float* query,
                       const double* log_masses, const int64_t* positions, int64_t m, double* log_prob,
                       Workspace& workspace) {
  const Total total = weigh_cells(kernels, view, log_masses, workspace);
  std::vector<PendingDraw>& pending = workspace.pending;
  pending.resize(m);
  for (int64_t j = 0; j < m; ++j) {
    const int64_t* after = std::upper_bound(view.offsets, view.offsets + view.k + 1, positions[j]);
    pending[j] = {after - view.offsets - 1, j, 0.0};
  }
  order_by_cell(pending);
  ScannedCell scanned = {};
  int64_t current = -1;
  for (const PendingDraw& next : pending) {
    if (next.cell != current) {
      current = next.cell;
      scanned = scan_cell(kernels, view, law.temperature, query, current, workspace);
    }
    log_prob[next.draw] = log_share(log_masses[current], total) +
                          log_within(view, law.temperature, scanned, positions[next.draw] - scanned.begin, workspace);
  }
}

}  // namespace softindex
