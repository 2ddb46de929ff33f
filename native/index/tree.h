// Walks down a binary tree over the clusters: at every node a softmax of the two children, evaluated when first met.
#pragma once

#include "index/workspace.h"

namespace softindex {

// The splits (k - 1) of a tree whose children (k - 1, 2) must list nodes and clusters depth first, each exactly once;
// std::invalid_argument where they do not, as a walk might then never end.
std::vector<int64_t> tree_splits(const int64_t* children, int64_t k);

// One query's walks down the tree. What is learnt of a node is kept in the workspace until the next query's walk
// begins.
class TreeWalk {
 public:
  // The query is the one staged at this place of the workspace.
  TreeWalk(const Kernels& kernels, const View& view, const Law& law, int64_t place, Workspace& workspace);

  // The cluster in whose share of [0, 1) the uniform falls, and the log of that share.
  struct Leaf {
    int64_t cluster;
    double log_share;
  };
  Leaf descend(double uniform);
  // The log share of a cluster: to the last bit what `descend` says of it.
  double log_share(int64_t cluster);
  // The same for all clusters: log_shares (k).
  void log_shares(double* log_shares);

 private:
  double lead(int64_t node);
  double difference_of_forms(int64_t node);

  const Kernels& kernels_;
  const View& view_;
  const Tree& tree_;
  const Law& law_;
  Workspace& workspace_;
  const int64_t place_;
  const float* query_;
  double squared_norm_ = 0.0, unit_ = 0.0;
};

// Fills workspace.log_masses (count, k) with the log shares of all leaves for the staged queries.
void leaf_shares(const Kernels& kernels, const View& view, const Law& law, int64_t count, Workspace& workspace);

// Like choose_clusters and log_probabilities of draw.h, for a walk.
int64_t choose_leaves(const View& view, TreeWalk& walk, uint64_t key, uint64_t stream, int64_t n, int64_t first_slot,
                      PendingDraw* pending);
void leaf_log_probabilities(const Kernels& kernels, const View& view, const Law& law, const float* query,
                            TreeWalk& walk, const int64_t* positions, int64_t m, double* log_prob,
                            Workspace& workspace);

}  // namespace softindex
