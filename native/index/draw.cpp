// The two-level draw: clusters by their log mass, then items by one scan of each chosen cluster.
#include "index/draw.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/interrupt.h"
#include "index/scan.h"

namespace softindex {
namespace {

// This many draws from one cluster make a task: a cluster that all queries choose must not be left to one thread.
constexpr int64_t draws_per_task = most_at_once;
// Dot products of items that the queries of a task have together at most, unless a group has more: they stay in the
// cache until they are weighed.
constexpr int64_t dots_at_once = 1 << 17;
// Draws that are put in the order of their clusters by counting: more would take much memory and no interrupt.
constexpr int64_t most_counted = 1 << 18;

// Queries that can be scanned together in a cluster of this many items.
int64_t queries_at_once(int64_t size) {
  const int64_t most = dots_at_once / std::max<int64_t>(size, 1) / group_size * group_size;
  return std::min(most_at_once, std::max(most, group_size));
}

// The first pages of a cluster, which the CPU's own prefetching would find too late.
void fetch_cluster(const View& view, int64_t cluster) {
  constexpr int64_t most_bytes = 4096;
  if (view.size(cluster) == 0) return;
  const StoredItem item = stored_at(view, view.offsets[cluster]);
  const int64_t bytes = std::min(most_bytes, view.size(cluster) * item.bytes);
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch((const char*)item.first + byte, 0, 3);
}

}  // namespace

ScannedCluster weigh_cluster(const Context& context, int64_t cluster, const float* dots) {
  const View& view = context.view;
  ScannedCluster scanned = {{}, 0.0, view.offsets[cluster], view.size(cluster), dots};
  if (scanned.count > 0)
    scanned.mass =
        context.kernels.weigh(dots, scanned.count, context.inverse_temperature(), view.bias_at(scanned.begin),
                              context.workspace.weights.data(), context.workspace.prefix.data());
  // Numbers that were finite when the index was built give a positive sum.
  if (scanned.count == 0 || !(scanned.mass.total > 0 && std::isfinite(scanned.mass.total)))
    throw std::runtime_error("a cluster that was drawn holds no weight");
  scanned.log_total = std::log(scanned.mass.total);
  return scanned;
}

double log_within(const Context& context, const ScannedCluster& scanned, int64_t i) {
  const double bias = context.view.bias == nullptr ? 0.0 : context.view.bias[scanned.begin + i];
  const double relative = ((double)scanned.dots[i] - scanned.mass.reference) * context.inverse_temperature() + bias;
  // Rounding of the parts must not make a probability exceed one.
  return std::min(0.0, relative - scanned.mass.peak - scanned.log_total);
}

Total weigh_clusters(const Context& context, const double* log_masses) {
  Workspace& workspace = context.workspace;
  const Total total = context.kernels.weigh_masses(log_masses, context.view.k, workspace.cluster_weights.data(),
                                                   workspace.cluster_prefix.data());
  if (!std::isfinite(total.peak + total.log_total)) throw std::runtime_error("no cluster holds any weight");
  return total;
}

double log_share(double log_mass, const Total& total) {
  return std::min(0.0, (log_mass - total.peak) - total.log_total);
}

void pick_items(const Context& context, const ScannedCluster& scanned, const PendingDraw* begin, const PendingDraw* end,
                const Slots& slots) {
  const Workspace& workspace = context.workspace;
  for (const PendingDraw* next = begin; next != end; ++next) {
    check_interrupt_every(1 << 14, next - begin);
    const int64_t i =
        context.kernels.pick(workspace.weights.data(), workspace.prefix.data(), scanned.count, next->uniform);
    slots.positions[next->slot] = scanned.begin + i;
    slots.log_prob[next->slot] = next->log_share + log_within(context, scanned, i);
  }
}

std::vector<int64_t> cut_by_cluster(const PendingDraw* pending, int64_t count) {
  std::vector<int64_t> cuts = {0};
  for (int64_t i = 1; i < count; ++i)
    if (pending[i].cluster != pending[i - 1].cluster || i - cuts.back() >= draws_per_task) cuts.push_back(i);
  cuts.push_back(count);
  return cuts;
}

void resize_pending(std::vector<PendingDraw>& pending, int64_t count) {
  constexpr int64_t step = 1 << 20;
  pending.reserve(count);
  for (int64_t size = std::min(count, step); size < count; size += step) {
    pending.resize(size);
    check_interrupt();
  }
  pending.resize(count);
}

void order_by_cluster(PendingDraw* begin, PendingDraw* end) {
  sort_until_interrupted(begin, end, [](const PendingDraw& a, const PendingDraw& b) {
    return a.cluster != b.cluster ? a.cluster < b.cluster : a.slot < b.slot;
  });
}

int64_t count_rows(const View& view, const PendingDraw* pending, int64_t n) {
  int64_t count = 0;
  for (int64_t j = 0; j < n; ++j)
    if (j == 0 || pending[j].cluster != pending[j - 1].cluster) count += view.size(pending[j].cluster);
  return count;
}

void gather_by_cluster(Workspace& workspace, int64_t k, PendingDraw* begin, PendingDraw* end) {
  const int64_t count = end - begin;
  if (count > most_counted || count < k / 8) return order_by_cluster(begin, end);
  std::vector<int64_t>& places = workspace.places;
  places.assign(k + 1, 0);
  for (const PendingDraw* draw = begin; draw != end; ++draw) ++places[draw->cluster + 1];
  for (int64_t c = 0; c < k; ++c) places[c + 1] += places[c];
  workspace.gathered.assign(begin, end);
  for (const PendingDraw& draw : workspace.gathered) begin[places[draw.cluster]++] = draw;
}

void choose_clusters(const Query& query, const double* log_masses, const Total& total, int64_t n, int64_t first_slot,
                     PendingDraw* pending) {
  const Workspace& workspace = query.workspace;
  for (int64_t j = 0; j < n; ++j) {
    check_interrupt_every(1 << 14, j);
    const Uniforms u = query.stream((uint64_t)j);
    const int64_t cluster =
        query.kernels.pick(workspace.cluster_weights.data(), workspace.cluster_prefix.data(), query.view.k, u.first);
    pending[j] = {cluster, first_slot + j, u.second, log_share(log_masses[cluster], total)};
  }
  gather_by_cluster(query.workspace, query.view.k, pending, pending + n);
}

void draw_items(const Context& context, const StagedQueries& queries, int64_t n, const PendingDraw* begin,
                const PendingDraw* end, const PendingDraw* last, const Slots& slots) {
  const int64_t cluster = begin->cluster;
  const View& view = context.view;
  const int64_t from = view.offsets[cluster], to = view.offsets[cluster + 1];
  const int64_t most = queries_at_once(to - from), stride = padded(to - from);
  AlignedVector<float>& dots = context.workspace.dots;
  if ((int64_t)dots.size() < most * stride) dots.resize(most * stride);
  if (end != last && end->cluster != cluster) fetch_cluster(view, end->cluster);
  while (begin != end) {
    const PendingDraw* first[most_at_once + 1] = {begin};
    const float* vectors[most_at_once];
    int64_t count = 0;
    while (begin != end && count < most) {
      const int64_t query = begin->slot / n;
      vectors[count] = queries[query];
      while (begin != end && begin->slot / n == query) ++begin;
      first[++count] = begin;
    }
    scan_items_together(context.kernels, view, from, to, {vectors, count, dots.data(), stride});
    for (int64_t g = 0; g < count; ++g) {
      const double temperature = context.request.temperature_of(first[g]->slot / n);
      const Context own = {context.kernels, view, context.request, context.workspace, temperature};
      const ScannedCluster scanned = weigh_cluster(own, cluster, &dots[g * stride]);
      pick_items(own, scanned, first[g], first[g + 1], slots);
    }
  }
}

void locate_items(const Context& context, const int64_t* positions, int64_t m) {
  std::vector<PendingDraw>& pending = context.workspace.pending;
  resize_pending(pending, m);
  for (int64_t j = 0; j < m; ++j) pending[j] = {context.view.cluster_of(positions[j]), j, 0.0, 0.0};
  gather_by_cluster(context.workspace, context.view.k, pending.data(), pending.data() + m);
}

const float* scan_cluster(const Query& query, int64_t cluster) {
  const View& view = query.view;
  scan_items(query.kernels, view, view.offsets[cluster], view.offsets[cluster + 1], query.vector,
             query.workspace.dots.data());
  return query.workspace.dots.data();
}

void log_probabilities(const Query& query, const int64_t* positions, int64_t m, double* log_prob) {
  const Total total = weigh_clusters(query, query.log_masses);
  locate_items(query, positions, m);
  for (PendingDraw& next : query.workspace.pending) next.log_share = log_share(query.log_masses[next.cluster], total);
  located_log_prob(query, positions, log_prob,
                   [&](int64_t cluster) { return query.view.empty(cluster) ? nullptr : scan_cluster(query, cluster); });
}

}  // namespace softindex
