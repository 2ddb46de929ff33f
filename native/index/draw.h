// The two-level draw, and the log-probability of given items: two readings of the same cluster masses.
#pragma once

#include "index/workspace.h"

namespace softindex {

// A cluster scanned at one query: its weights and prefix sums are in the workspace until the next one is weighed.
struct ScannedCluster {
  Mass mass;
  double log_total;  // log of mass.total
  int64_t begin, count;
  const float* dots;
};

// Weighs the items of a cluster by their dot products; one of -infinity has no weight.
ScannedCluster weigh_cluster(const Kernels& kernels, const View& view, double temperature, int64_t cluster,
                             const float* dots, Workspace& workspace);

// log of the probability of the item inside its cluster.
double log_within(const View& view, double temperature, const ScannedCluster& scanned, int64_t i);

// Weighs the clusters by their log masses (k): fills workspace.cluster_weights and cluster_prefix.
Total weigh_clusters(const Kernels& kernels, const View& view, const double* log_masses, Workspace& workspace);

// log of a cluster's share of the law.
double log_share(double log_mass, const Total& total);

int64_t cluster_of(const View& view, int64_t position);

// Draws the items of one query inside the cluster it was scanned at.
void pick_items(const Kernels& kernels, const View& view, double temperature, const ScannedCluster& scanned,
                const PendingDraw* begin, const PendingDraw* end, int64_t* positions, double* log_prob,
                const Workspace& workspace);

// Chooses the clusters of n draws for one query: pending (n), with slots from first_slot on.
// Returns how many items the chosen clusters hold together.
int64_t choose_clusters(const Kernels& kernels, const View& view, const double* log_masses, uint64_t key,
                        uint64_t stream, int64_t n, int64_t first_slot, PendingDraw* pending, Workspace& workspace);

// Draws the items of pending draws that chose the same cluster; slot s belongs to query s / n. Queries take turns in
// groups, so that a cluster is read from memory once for all who chose it.
void draw_items(const Kernels& kernels, const View& view, double temperature, const float* queries, int64_t n,
                const PendingDraw* begin, const PendingDraw* end, int64_t* positions, double* log_prob,
                Workspace& workspace);

// Brings n chosen draws into the order of their clusters; returns how many items these clusters hold together.
int64_t settle_clusters(const View& view, PendingDraw* pending, int64_t n);

// log_prob (m) of the items at positions (m), each in [0, n of the view).
void log_probabilities(const Kernels& kernels, const View& view, const Law& law, const float* query,
                       const double* log_masses, const int64_t* positions, int64_t m, double* log_prob,
                       Workspace& workspace);

// Its two halves. workspace.pending (m): the clusters of the items, in the order of clusters; log_share is left to the
// caller.
void locate_items(const View& view, const int64_t* positions, int64_t m, Workspace& workspace);
// From the clusters and their log shares in workspace.pending.
void located_log_probabilities(const Kernels& kernels, const View& view, double temperature, const float* query,
                               const int64_t* positions, int64_t m, double* log_prob, Workspace& workspace);

// In the order of clusters, and of slots within a cluster.
void order_by_cluster(PendingDraw* begin, PendingDraw* end);

}  // namespace softindex
