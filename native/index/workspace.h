// Scratch memory for one thread, kept by the index and used again for query after query.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/pool.h"
#include "index/view.h"

namespace softindex {

// A draw whose cluster is chosen and whose item is not, or an item whose log-probability is wanted.
struct PendingDraw {
  int64_t cluster;
  int64_t slot;      // where the result goes
  double uniform;    // picks the item
  double log_share;  // log of the cluster's share of the law
};

struct Workspace {
  AlignedVector<float> queries;  // (queries at a time, padded(d)): those of a call, where they need padding

  // Rows of a group, one per query: see Query.
  std::vector<float> mean_dots;            // (group_size, k)
  std::vector<double> log_masses;          // (group_size, k)
  std::vector<double> variances;           // (group_size, k), where there are forms
  AlignedVector<float> form_queries;       // (group_size, padded(d(d+1)/2)): packed products, full forms only
  AlignedVector<int16_t> integer_queries;  // (group_size, padded(d)), rank forms only
  std::vector<float> form_dots;            // (group_size, k), full forms only
  std::vector<int32_t> integer_dots;       // (group_size, k * rank), rank forms only

  // The same for queries that scan or search together, one row per query: see Engine::stage_many.
  std::vector<float> many_dots;
  std::vector<double> many_masses, many_variances;

  int64_t stretch = 0;           // rows that `dots` holds for one query
  AlignedVector<float> dots;     // (group_size, stretch): of items
  AlignedVector<float> weights;  // (stretch): of the items of one cluster
  std::vector<double> prefix;    // their prefix sums

  std::vector<float> cluster_weights;  // (k)
  std::vector<double> cluster_prefix;
  std::vector<double> form_sums;  // (k)
  std::vector<double> estimates;  // (k) of a query that is being probed; -infinity where a cluster is known
  std::vector<float> shares;      // (k), likewise
  std::vector<uint8_t> searches;  // (k), likewise: what is known of single items
  std::vector<double> logit_means, inverse_deviations;  // (k), likewise: see Extremes
  std::vector<std::pair<double, int64_t>> ranked;       // clusters in some order
  std::vector<double> lower, upper;                     // (k) bounds on the log masses of one query
  std::vector<uint8_t> states;                          // (k) what is known of a cluster beyond its bounds
  std::vector<double> upper_weights;                    // (k)
  std::vector<double> upper_sums;
  std::vector<int16_t> coded_query;   // rounded for the codes
  std::vector<int8_t> rounded_query;  // whose hash names the sample of the tail
  std::vector<int32_t> code_dots;     // of one cluster, codes only
  std::vector<float> outlier_dots;
  // Rows of queries that search for their best items together, one per query: see BestSearch.
  std::vector<int8_t> sketched_queries;
  std::vector<uint8_t> cluster_states;
  std::vector<double> promises;
  std::vector<double> best_scores;  // of the best items, in double
  std::vector<int64_t> clusters;    // a list of some
  std::vector<PendingDraw> pending;
  // Of gather_by_cluster.
  std::vector<PendingDraw> gathered;
  std::vector<int64_t> places;  // (k + 1)

  std::vector<double> tree_leads;  // (inner nodes), valid where the stamp is that of the present walk
  std::vector<uint64_t> tree_stamps;
  std::vector<double> tree_paths;
  uint64_t tree_stamp = 0;

  explicit Workspace(const View& view) {
    const int64_t k = view.k, rank = view.dispersion.rank;
    stretch = std::max<int64_t>(view.largest_cluster, 1024) + 1024;
    dots.resize(group_size * stretch);
    weights.resize(stretch);
    prefix.resize(blocks(stretch));
    log_masses.resize(group_size * k);
    mean_dots.resize(group_size * k);
    cluster_weights.resize(k);
    cluster_prefix.resize(blocks(k));
    if (view.dispersion.kind != Forms::none) variances.resize(group_size * k);
    if (view.dispersion.kind == Forms::full) {
      form_queries.assign(group_size * padded(view.triangle()), 0.0f);
      form_dots.resize(group_size * k);
    } else if (view.dispersion.kind == Forms::rank) {
      integer_dots.resize(group_size * k * rank);
      integer_queries.assign(group_size * padded(view.d), 0);
      form_sums.resize(k);
    }
    if (view.codes != nullptr) code_dots.resize(view.largest_cluster);
    if (view.has_tree()) {
      tree_leads.resize(view.tree.inner);
      tree_stamps.assign(view.tree.inner, 0);
      tree_paths.resize(view.tree.inner);
    }
  }
};

// A call for millions of draws must not keep their memory once it is over.
inline void shrink(Workspace& workspace) {
  if (workspace.pending.capacity() > 1 << 16) std::vector<PendingDraw>().swap(workspace.pending);
  if (workspace.gathered.capacity() > 1 << 16) std::vector<PendingDraw>().swap(workspace.gathered);
}

using WorkspacePool = Pool<Workspace>;

}  // namespace softindex
