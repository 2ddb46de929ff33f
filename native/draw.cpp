// The two-level draw: cells by their log mass, then items by one scan of each chosen cell.
#include "draw.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "masses.h"
#include "philox.h"

namespace softindex {

ScannedCell weigh_cell(const Kernels& kernels, const View& view, double temperature, int64_t cell, const float* dots,
                       Workspace& workspace) {
  ScannedCell scanned = {{}, 0.0, view.offsets[cell], view.size(cell), dots};
  const float* bias = view.bias == nullptr ? nullptr : view.bias + scanned.begin;
  if (scanned.count > 0)
    scanned.mass = kernels.weigh(dots, scanned.count, 1.0 / temperature, bias, workspace.weights.data(),
                                 workspace.prefix.data());
  // Numbers that were finite when the index was built give a positive sum.
  if (scanned.count == 0 || !(scanned.mass.total > 0 && std::isfinite(scanned.mass.total)))
    throw std::runtime_error("a cluster that was drawn holds no weight");
  scanned.log_total = std::log(scanned.mass.total);
  return scanned;
}

double log_within(const View& view, double temperature, const ScannedCell& scanned, int64_t i) {
  const double bias = view.bias == nullptr ? 0.0 : view.bias[scanned.begin + i];
  const double relative = ((double)scanned.dots[i] - scanned.mass.reference) * (1.0 / temperature) + bias;
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

int64_t cell_of(const View& view, int64_t position) {
  return std::upper_bound(view.offsets, view.offsets + view.k + 1, position) - view.offsets - 1;
}

void pick_items(const Kernels& kernels, const View& view, double temperature, const ScannedCell& scanned,
                const PendingDraw* begin, const PendingDraw* end, int64_t* positions, double* log_prob,
                const Workspace& workspace) {
  for (const PendingDraw* next = begin; next != end; ++next) {
    const int64_t i = kernels.pick(workspace.weights.data(), workspace.prefix.data(), scanned.count, next->uniform);
    positions[next->slot] = scanned.begin + i;
    log_prob[next->slot] = next->log_share + log_within(view, temperature, scanned, i);
  }
}

void order_by_cell(PendingDraw* begin, PendingDraw* end) {
  std::sort(begin, end, [](const PendingDraw& a, const PendingDraw& b) {
    return a.cell != b.cell ? a.cell < b.cell : a.slot < b.slot;
  });
}

int64_t settle_cells(const View& view, PendingDraw* pending, int64_t n) {
  order_by_cell(pending, pending + n);
  int64_t held = 0;
  for (int64_t j = 0; j < n; ++j)
    if (j == 0 || pending[j].cell != pending[j - 1].cell) held += view.size(pending[j].cell);
  return held;
}

int64_t choose_cells(const Kernels& kernels, const View& view, const double* log_masses, uint64_t key,
                     uint64_t stream, int64_t n, int64_t first_slot, PendingDraw* pending, Workspace& workspace) {
  const Total total = weigh_cells(kernels, view, log_masses, workspace);
  for (int64_t j = 0; j < n; ++j) {
    const Uniforms u = uniforms(key, stream, (uint64_t)j);
    const int64_t cell =
        kernels.pick(workspace.cell_weights.data(), workspace.cell_prefix.data(), view.k, u.first);
    pending[j] = {cell, first_slot + j, u.second, log_share(log_masses[cell], total)};
  }
  return settle_cells(view, pending, n);
}

void draw_items(const Kernels& kernels, const View& view, double temperature, const float* queries, int64_t n,
                const PendingDraw* begin, const PendingDraw* end, int64_t* positions, double* log_prob,
                Workspace& workspace) {
  const int64_t cell = begin->cell;
  const Rows rows = view.items(view.offsets[cell], view.offsets[cell + 1]);
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
      const ScannedCell scanned =
          weigh_cell(kernels, view, temperature, cell, &workspace.dots[g * workspace.stretch], workspace);
      pick_items(kernels, view, temperature, scanned, first[g], first[g + 1], positions, log_prob, workspace);
    }
  }
}

void locate_items(const View& view, const int64_t* positions, int64_t m, Workspace& workspace) {
  std::vector<PendingDraw>& pending = workspace.pending;
  pending.resize(m);
  for (int64_t j = 0; j < m; ++j) {
    pending[j] = {cell_of(view, positions[j]), j, 0.0, 0.0};
  }
  order_by_cell(pending.data(), pending.data() + m);
}

void located_log_probabilities(const Kernels& kernels, const View& view, double temperature, const float* query,
                               const int64_t* positions, int64_t m, double* log_prob, Workspace& workspace) {
  const std::vector<PendingDraw>& pending = workspace.pending;
  ScannedCell scanned = {};
  for (int64_t j = 0; j < m; ++j) {
    const PendingDraw& next = pending[j];
    if (j == 0 || next.cell != pending[j - 1].cell) {
      kernels.scan(view.items(view.offsets[next.cell], view.offsets[next.cell + 1]), query, workspace.dots.data());
      scanned = weigh_cell(kernels, view, temperature, next.cell, workspace.dots.data(), workspace);
    }
    log_prob[next.slot] = next.log_share + log_within(view, temperature, scanned, positions[next.slot] - scanned.begin);
  }
}

void log_probabilities(const Kernels& kernels, const View& view, const Law& law, const float* query,
                       const double* log_masses, const int64_t* positions, int64_t m, double* log_prob,
                       Workspace& workspace) {
  const Total total = weigh_cells(kernels, view, log_masses, workspace);
  locate_items(view, positions, m, workspace);
  for (PendingDraw& next : workspace.pending) next.log_share = log_share(log_masses[next.cell], total);
  located_log_probabilities(kernels, view, law.temperature, query, positions, m, log_prob, workspace);
}

}  // namespace softindex
