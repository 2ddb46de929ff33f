// Scratch memory for one thread, kept by the index and used again for query after query.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "index/view.h"

namespace softindex {

// A draw whose cluster is chosen and whose item is not, or an item whose log-probability is asked for.
struct PendingDraw {
  int64_t cluster;
  int64_t slot;      // where the result goes
  double uniform;    // picks the item
  double log_share;  // log of the cluster's share of the law
};

// What probing found out about a query's law.
struct Probed {
  double error;    // estimated total variation to the softmax; NaN where nothing was scanned to judge it
  int64_t scored;  // items scanned
};

struct Workspace {
  std::vector<float> queries;  // group_size padded queries
  std::vector<float> dots;     // one stretch of rows, for each query of a group
  std::vector<float> weights;  // one cluster
  std::vector<double> prefix;
  std::vector<double> log_masses;  // (group_size, k), relative to pivots / temperature
  double pivots[group_size] = {};
  std::vector<double> variances;       // (group_size, k) of the logits in each cluster, where there are forms
  double query_loss[group_size] = {};  // no less than |q - rounded q|, where a query was rounded to integers
  std::vector<double> lower, upper;    // (k) bounds on the log masses of one query
  std::vector<uint8_t> states;         // (k) what is known of a cluster beyond its bounds
  std::vector<double> upper_weights, upper_sums;
  std::vector<int16_t> coded_query;  // rounded for the codes
  std::vector<float> outlier_dots;
  std::vector<double> estimates;       // (k), of one query that is being probed
  std::vector<float> shares;           // (k), likewise
  Probed probed = {};                  // of the query at hand
  std::vector<float> cluster_dots;     // (group_size, k)
  std::vector<float> cluster_weights;  // (k)
  std::vector<double> cluster_prefix;
  std::vector<float> form_queries;       // packed products, full forms only
  std::vector<float> form_dots;          // (group_size, k), full forms only
  std::vector<int16_t> integer_queries;  // group_size padded queries, forms of rank r or codes only
  std::vector<int32_t> integer_dots;     // (group_size, k * rank)
  std::vector<double> form_sums;         // (k)
  std::vector<int32_t> code_dots;        // one cluster, codes only
  std::vector<double> tree_leads;        // (inner nodes), valid where the stamp is that of the present walk
  std::vector<uint64_t> tree_stamps;
  std::vector<double> tree_paths;
  uint64_t tree_stamp = 0;
  std::vector<PendingDraw> pending;
  std::vector<int64_t> clusters;
  std::vector<double> bounds;
  std::vector<double> best_scores;
  int64_t stretch = 0;  // rows that `dots` holds for one query

  explicit Workspace(const View& view) {
    const int64_t k = view.k, width = padded(view.d);
    stretch = std::max<int64_t>(view.largest_cluster, 1024) + 1024;
    queries.assign(group_size * width, 0.0f);
    dots.resize(group_size * stretch);
    weights.resize(stretch);
    prefix.resize(blocks(stretch));
    log_masses.resize(group_size * k);
    cluster_dots.resize(group_size * k);
    cluster_weights.resize(k);
    cluster_prefix.resize(blocks(k));
    estimates.resize(k);
    if (view.forms_kind != Forms::none) variances.resize(group_size * k);
    if (view.forms_kind == Forms::full) {
      form_queries.assign(group_size * padded(view.triangle()), 0.0f);
      form_dots.resize(group_size * k);
    } else if (view.forms_kind == Forms::rank) {
      integer_dots.resize(group_size * k * view.rank);
      form_sums.resize(k);
    }
    if (view.forms_kind == Forms::rank || view.codes != nullptr) integer_queries.assign(group_size * width, 0);
    if (view.codes != nullptr) code_dots.resize(view.largest_cluster);
    if (view.tree != nullptr) {
      tree_leads.resize(view.tree->inner);
      tree_stamps.assign(view.tree->inner, 0);
      tree_paths.resize(view.tree->inner);
    }
  }
};

// Workspaces that are not in use. Taking one is a lock and a pop; nothing is global.
class WorkspacePool {
 public:
  class Lease {
   public:
    Lease(WorkspacePool& pool, const View& view) : pool_(pool) {
      {
        std::lock_guard<std::mutex> hold(pool_.mutex_);
        if (!pool_.free_.empty()) {
          workspace_ = std::move(pool_.free_.back());
          pool_.free_.pop_back();
        }
      }
      if (!workspace_) workspace_ = std::make_unique<Workspace>(view);
    }
    ~Lease() {
      // One call for millions of draws must not hold their memory for ever.
      if (workspace_->pending.capacity() > 1 << 16) std::vector<PendingDraw>().swap(workspace_->pending);
      std::lock_guard<std::mutex> hold(pool_.mutex_);
      pool_.free_.push_back(std::move(workspace_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() const { return *workspace_; }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<Workspace> workspace_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

}  // namespace softindex
