// A batch of queries against one index: threads, workspaces and random streams around the per-query functions.
#pragma once

#include <algorithm>
#include <cmath>

#include "index/slate.h"
#include "index/workspace.h"

namespace softindex {

// What the queries of a call may draw: the part that all share, and the excluded positions of each, row by row.
struct Restrictions {
  Restriction common;
  const int64_t* offsets = nullptr;  // (rows + 1): row r is positions offsets[r] .. offsets[r + 1], increasing
  const int64_t* excluded = nullptr;
  bool shared = true;  // one row for all queries, or one each

  Restriction of(int64_t query) const {
    const int64_t row = shared ? 0 : query;
    Restriction own = common;
    own.excluded = excluded + offsets[row];
    own.count = offsets[row + 1] - offsets[row];
    return own;
  }
};

class Engine {
 public:
  Engine(const Kernels& kernels, const View& view)
      : kernels_(kernels), view_(view), log_counts_(view.k), half_squares_(view.k) {
    for (int64_t c = 0; c < view.k; ++c) log_counts_[c] = std::log((double)std::max<int64_t>(view.size(c), 1));
    for (int64_t c = 0; c < view.k; ++c) half_squares_[c] = squared_norm(view.means + c * view.d, view.d) / 2;
    view_.log_counts = log_counts_.data();
    view_.longest = *std::max_element(view.norm_max, view.norm_max + view.k);
    view_.half_squares = half_squares_.data();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const View& view() const { return view_; }
  // Once, before the first query.
  void attach_outliers(const int64_t* positions, const float* vectors, int64_t count, float farthest) {
    view_.outlier_positions = positions;
    view_.outlier_vectors = vectors;
    view_.outliers = count;
    view_.farthest = farthest;
  }
  // Once, before the first query. All but norm_min may be null.
  void attach_bounds(const float* norm_min, const float* min_cosine, const float* reach, const float* excess) {
    view_.norm_min = norm_min;
    view_.min_cosine = min_cosine;
    view_.reach = reach;
    view_.excess = excess;
  }
  // The clusters become the leaves of this tree. Before the first query only: workspaces are made for it.
  void attach_tree(const Tree* tree) { view_.tree = tree; }

  // Before the first query: codes (n, d), scales (n), errors and lengths (k). The caller keeps them.
  void attach_codes(const int8_t* codes, const float* scales, const float* errors, const float* lengths);

  // queries (b, d); positions and log_prob (b, n); scored and error (b).
  void sample(const Law& law, const float* queries, int64_t b, int64_t n, uint64_t seed, int64_t threads,
              int64_t* positions, double* log_prob, int64_t* scored, double* error);
  // positions and log_prob (b, m).
  void log_prob(const Law& law, const float* queries, int64_t b, const int64_t* positions, int64_t m, int64_t threads,
                double* log_prob);
  // The same, provably from the softmax itself: log_prob (b, n) lies between low and high (b, n).
  void sample_certified(const Law& law, const float* queries, int64_t b, int64_t n, uint64_t seed, int64_t threads,
                        int64_t* positions, double* log_prob, double* low, double* high, int64_t* scored);
  // values between low and high (b): for certain if confidence is 1, else with that probability over the seed.
  void bracket_log_partition(const Law& law, const float* queries, int64_t b, double confidence, uint64_t seed,
                             int64_t threads, double* values, double* low, double* high, int64_t* scored);
  // log_masses (b, k): the log mass the law gives each cluster; scored and error (b).
  void masses(const Law& law, const float* queries, int64_t b, int64_t threads, double* log_masses, int64_t* scored,
              double* error);
  // The same from a part of the law. left (b): how many items a query could draw; where that is none, or fewer than
  // the n asked for without replacement, its results are not written.
  void sample_restricted(const Law& law, const Restrictions& restrictions, const float* queries, int64_t b, int64_t n,
                         uint64_t seed, int64_t threads, int64_t* positions, double* log_prob, int64_t* scored,
                         double* error, int64_t* left);
  void log_prob_restricted(const Law& law, const Restrictions& restrictions, const float* queries, int64_t b,
                           const int64_t* positions, int64_t m, int64_t threads, double* log_prob);
  // values (b).
  void log_partition(const Law& law, const float* queries, int64_t b, int64_t threads, double* values);
  // positions and scores (b, k); scored (b).
  void top_k(const float* queries, int64_t b, double temperature, int64_t k, int64_t probes, int64_t threads,
             int64_t* positions, float* scores, int64_t* scored);
  // The scores (size of the cluster) that codes give one query, and their slack.
  double coded_scores(const float* query, int64_t cluster, float* scores);
  // Bounds on the log mass of every cluster for one query, and what a scan of them all finds: each (k), relative to the
  // returned pivot over the temperature.
  double mass_bounds(const Law& law, const float* query, double* lower, double* upper, double* scanned);

 private:
  template <class PerQuery>
  void for_each_certified(const Law& law, const float* queries, int64_t b, int64_t threads, const PerQuery& per_query);
  void sample_exactly(const Law& law, const float* queries, int64_t b, int64_t n, uint64_t seed, int64_t threads,
                      int64_t* positions, double* log_prob, double* low, double* high, int64_t* scored);
  template <class PerGroup>
  void for_each_group(const float* queries, int64_t b, int64_t threads, const PerGroup& per_group);
  template <class PerQuery>
  void for_each_query(const Law& law, const float* queries, int64_t b, int64_t threads, const PerQuery& per_query);
  template <class PerQuery>
  void for_each_walk(const Law& law, const float* queries, int64_t b, int64_t threads, const PerQuery& per_query);
  template <class PerQuery>
  void share_one_scan(const Law& law, const float* queries, int64_t b, int64_t threads, const PerQuery& per_query);

  const Kernels& kernels_;
  View view_;
  std::vector<double> log_counts_, half_squares_;
  WorkspacePool pool_;
};

}  // namespace softindex
