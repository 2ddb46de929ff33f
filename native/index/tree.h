// Walks down a binary tree over the clusters: at every node a softmax of the two children, evaluated when first met.
#pragma once

#include "index/query.h"

namespace softindex {

// One query's walks down the tree. What was computed at a node is kept in the workspace until the next query's walk
// begins.
class TreeWalk {
 public:
  explicit TreeWalk(Query& query);

  // The cluster in whose share of [0, 1) the uniform falls, and the log of that share.
  struct Leaf {
    int64_t cluster;
    double log_share;
  };
  Leaf descend(double uniform);
  // The log share of a cluster: to the last bit the one that `descend` reports.
  double log_share(int64_t cluster);
  // The same for all clusters: log_shares (k).
  void log_shares(double* log_shares);

 private:
  double lead(int64_t node);
  double difference_of_forms(int64_t node);

  Query& query_;
  const Tree& tree_;
  const double* log_sizes_;
  double unit_ = 0.0;  // the value of one integer step of the rounded query
};

// Fills the log masses of each query with the log shares of all leaves.
void leaf_shares(const Group& group);

// Like choose_clusters and log_probabilities of draw.h, for a walk.
void choose_leaves(Query& query, int64_t n, int64_t first_slot, PendingDraw* pending);
void leaf_log_probabilities(Query& query, const int64_t* positions, int64_t m, double* log_prob);

}  // namespace softindex
