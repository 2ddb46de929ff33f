// A batch of queries against one index: threads, workspaces and random streams around the per-query functions.
#pragma once

#include "index/draw.h"
#include "index/query.h"
#include "index/request.h"

namespace softindex {

// Every call takes a request and writes to the arrays of a result. A request's law must be one that the view serves
// (see `serves`), and its exclusions must leave something to draw. std::runtime_error where the index is damaged.
class Engine {
 public:
  Engine(const Kernels& kernels, View view) : kernels_(kernels), view_(std::move(view)) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const View& view() const { return view_; }
  bool serves(const Law& law) const {
    if (law.kind == Kind::tree && !view_.has_tree()) return false;
    return !law.dispersion || view_.dispersion.kind != Forms::none;
  }

  void sample(const Request& request, const DrawResults& results);
  void log_prob(const Request& request, const LogProbResults& results);
  // Bounds are written for an exhaustive law, for a certified one, and where the confidence is below 1.
  void log_partition(const Request& request, const LogPartitionResults& results);
  void top_k(const Request& request, const BestResults& results);
  void masses(const Request& request, const MassResults& results);

  // For tests. The scores (items of the cluster) that codes give the request's only query, and their slack.
  double coded_scores(const Request& request, int64_t cluster, float* scores);
  // Bounds on the log mass of every cluster for the request's only query, and the result of scanning them all: each
  // (k), relative to the returned pivot over the temperature.
  double mass_bounds(const Request& request, double* lower, double* upper, double* scanned);

 private:
  struct Batch;
  template <class PerBatch>
  void for_each_batch(const Request& request, const QueryNames& names, const PerBatch& per_batch);
  template <class PerGroup>
  void for_each_group(const Request& request, const Batch& batch, int64_t threads, const PerGroup& per_group);
  template <class PerQuery>
  void for_each_query(const Request& request, const Batch& batch, const PerQuery& per_query);
  template <class PerShare>
  void for_each_share(const Request& request, const Batch& batch, int64_t width, const PerShare& per_share);
  template <class PerQuery>
  void scan_for_many(const Request& request, const Batch& batch, const PerQuery& per_query);
  template <class PerQuery>
  void share_one_scan(const Request& request, const Batch& batch, const PerQuery& per_query);
  template <class PerQuery>
  void with_masses(const Request& request, const PerQuery& per_query);
  template <class PerQuery>
  void with_estimates(const Request& request, const PerQuery& per_query);
  template <class PerQuery>
  void with_mean_dots(const Request& request, int64_t threads, const PerQuery& per_query);

  void stage(const Request& request, const Batch& batch, int64_t begin, std::vector<Query>& group,
             Workspace& workspace);
  std::vector<Query> stage_many(const Request& request, const Batch& batch, int64_t first, int64_t count,
                                Workspace& workspace);
  void choose(const Request& request, const Batch& batch, const DrawResults& results, PendingDraw* pending);
  void sample_batch(const Request& request, const Batch& batch, const DrawResults& results);
  void sample_from_part(const Request& request, const DrawResults& results);
  void sample_with_proof(const Request& request, const DrawResults& results);
  void sample_all_scanned(const Request& request, const DrawResults& results);
  void bracket_log_partition(const Request& request, const LogPartitionResults& results);

  const Kernels& kernels_;
  const View view_;
  WorkspacePool pool_;
};

}  // namespace softindex
