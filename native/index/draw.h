// The two-level draw, and the log-probability of given items: two readings of the same cluster masses.
#pragma once

#include "index/query.h"

namespace softindex {

// A cluster scanned at one query: its weights and prefix sums are in the workspace until the next one is weighed.
struct ScannedCluster {
  Mass mass;
  double log_total;  // log of mass.total
  int64_t begin, count;
  const float* dots;
};

// Weighs the items of a cluster by their dot products; one of -infinity has no weight.
ScannedCluster weigh_cluster(const Context& context, int64_t cluster, const float* dots);

// log of the probability of item i of the cluster inside it.
double log_within(const Context& context, const ScannedCluster& scanned, int64_t i);

// Weighs the clusters by their log masses (k): fills the workspace's cluster_weights and cluster_prefix.
Total weigh_clusters(const Context& context, const double* log_masses);

// log of a cluster's share of the law.
double log_share(double log_mass, const Total& total);

// Where the results of draws go: positions and log_prob, by slot.
struct Slots {
  int64_t* positions;
  double* log_prob;
};

// Draws the items of one query inside the cluster it was scanned at.
void pick_items(const Context& context, const ScannedCluster& scanned, const PendingDraw* begin, const PendingDraw* end,
                const Slots& slots);

// Chooses the clusters of n draws by their log masses (k), of which `total` is the sum: fills pending (n), in the order
// of clusters, with slots from first_slot on.
void choose_clusters(const Query& query, const double* log_masses, const Total& total, int64_t n, int64_t first_slot,
                     PendingDraw* pending);

// Items in the clusters of n draws that are in the order of clusters.
int64_t count_rows(const View& view, const PendingDraw* pending, int64_t n);

// Padded queries: query q of the call begins at first + (q - number) * stride.
struct StagedQueries {
  const float* first;
  int64_t number;  // of the first
  int64_t stride;

  const float* operator[](int64_t query) const { return first + (query - number) * stride; }
};

// Draws the items of pending draws that chose the same cluster; slot s belongs to query s / n. The cluster is read from
// memory once for all queries that chose it. Draws up to `last` come next: what they read is fetched ahead of time.
void draw_items(const Context& context, const StagedQueries& queries, int64_t n, const PendingDraw* begin,
                const PendingDraw* end, const PendingDraw* last, const Slots& slots);

// The clusters of the items at positions (m), in the order of clusters, in workspace.pending; log_share is left to the
// caller.
void locate_items(const Context& context, const int64_t* positions, int64_t m);

// log_prob (m) of the items at positions (m), from their clusters and log shares in workspace.pending. dots_of(cluster)
// gives the dot products of a cluster, or null where nothing of it can be drawn.
template <class DotsOf>
void located_log_prob(const Query& query, const int64_t* positions, double* log_prob, const DotsOf& dots_of) {
  const std::vector<PendingDraw>& pending = query.workspace.pending;
  ScannedCluster scanned = {};
  for (size_t j = 0; j < pending.size(); ++j) {
    const PendingDraw& next = pending[j];
    if (j == 0 || next.cluster != pending[j - 1].cluster) {
      const float* dots = dots_of(next.cluster);
      scanned = dots == nullptr ? ScannedCluster{} : weigh_cluster(query, next.cluster, dots);
    }
    log_prob[next.slot] = scanned.dots == nullptr
                              ? minus_infinity
                              : next.log_share + log_within(query, scanned, positions[next.slot] - scanned.begin);
  }
}

// Dot products of a cluster, in the workspace.
const float* scan_cluster(const Query& query, int64_t cluster);

// log_prob (m) of the items at positions (m), each in [0, n of the view).
void log_probabilities(const Query& query, const int64_t* positions, int64_t m, double* log_prob);

// Where the draws, in the order of clusters, are cut into tasks: each within one cluster.
std::vector<int64_t> cut_by_cluster(const PendingDraw* pending, int64_t count);

// In the order of clusters, and of slots within a cluster.
void order_by_cluster(PendingDraw* begin, PendingDraw* end);

// The same for draws of which those of each cluster are in the order of slots already: counting is faster than sorting.
void gather_by_cluster(Workspace& workspace, int64_t k, PendingDraw* begin, PendingDraw* end);

// Makes room for this many draws, in steps that an interrupt ends: touching gigabytes of new memory takes seconds.
void resize_pending(std::vector<PendingDraw>& pending, int64_t count);

}  // namespace softindex
