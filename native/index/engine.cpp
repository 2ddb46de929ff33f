// A batch of queries against one index: threads, workspaces and random streams around the per-query functions.
#include "index/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "base/hash.h"
#include "base/parallel.h"
#include "index/bounds.h"
#include "index/certified.h"
#include "index/codes.h"
#include "index/draw.h"
#include "index/masses.h"
#include "index/probe.h"
#include "index/top_k.h"
#include "index/tree.h"

namespace softindex {
namespace {

// Starting a thread costs about as much as a handful of two-level draws: give each at least this many groups.
constexpr int64_t groups_per_thread = 4;

int64_t groups_of(int64_t b) { return (b + group_size - 1) / group_size; }

int64_t worthwhile_threads(int64_t b, int64_t threads) {
  return std::min(threads, std::max<int64_t>(1, groups_of(b) / groups_per_thread));
}

// Likewise for scans of single clusters.
constexpr int64_t draws_per_thread = 16;
// So many draws from one cluster are a task of their own: a cluster that all queries choose must not be left to one
// thread.
constexpr int64_t draws_per_task = 64;

// Where the draws, in the order of clusters, are cut into tasks: each within one cluster.
std::vector<int64_t> cut_by_cluster(const PendingDraw* pending, int64_t count) {
  std::vector<int64_t> cuts = {0};
  for (int64_t i = 1; i < count; ++i)
    if (pending[i].cluster != pending[i - 1].cluster || i - cuts.back() >= draws_per_task) cuts.push_back(i);
  cuts.push_back(count);
  return cuts;
}

// The random stream of each query is named by its content, so that draws do not depend on how queries are batched
// or ordered; the second and later copies of a query in one call get streams of their own.
std::vector<uint64_t> streams_of(const float* queries, int64_t b, int64_t d) {
  std::vector<uint64_t> streams(b);
  for (int64_t q = 0; q < b; ++q) streams[q] = name_of(queries + q * d, d);
  if (b == 1) return streams;
  std::vector<int64_t> order(b);
  for (int64_t q = 0; q < b; ++q) order[q] = q;
  const std::vector<uint64_t> hashes = streams;
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t c) { return hashes[a] != hashes[c] ? hashes[a] < hashes[c] : a < c; });
  uint64_t copy = 0;
  for (int64_t i = 1; i < b; ++i) {
    copy = hashes[order[i]] == hashes[order[i - 1]] ? copy + 1 : 0;
    if (copy > 0) {
      const uint64_t name[2] = {hashes[order[i]], copy};
      streams[order[i]] = hash_bytes(name, sizeof(name));
    }
  }
  return streams;
}

}  // namespace

// per_group(number of its first query, how many it has, a workspace in which they are staged), on several threads.
template <class PerGroup>
void Engine::for_each_group(const float* queries, int64_t b, int64_t threads, const PerGroup& per_group) {
  parallel(groups_of(b), threads, [&](const auto& next) {
    WorkspacePool::Lease lease(pool_, view_);
    for (int64_t group = next(); group >= 0; group = next()) {
      const int64_t begin = group * group_size, count = std::min(group_size, b - begin);
      stage_queries(view_, queries + begin * view_.d, count, *lease);
      per_group(begin, count, *lease);
    }
  });
}

// per_query(query number, its place in the workspace's group, its log masses, workspace), on several threads.
template <class PerQuery>
void Engine::for_each_query(const Law& law, const float* queries, int64_t b, int64_t threads,
                            const PerQuery& per_query) {
  const Probed all_probed = {0.0, view_.n};
  const Probed unprobed = law.exhaustive() ? all_probed : Probed{std::numeric_limits<double>::quiet_NaN(), 0};
  if (law.exhaustive() && groups_of(b) < threads) return share_one_scan(law, queries, b, threads, per_query);
  if (!law.exhaustive()) threads = worthwhile_threads(b, threads);
  for_each_group(queries, b, threads, [&](int64_t begin, int64_t count, Workspace& workspace) {
    cluster_masses(kernels_, view_, law, count, workspace);
    for (int64_t g = 0; g < count; ++g) {
      double* log_masses = &workspace.log_masses[g * view_.k];
      workspace.probed = law.probes == 0 ? unprobed : probe(kernels_, view_, law, g, log_masses, workspace);
      per_query(begin + g, g, log_masses, workspace);
    }
  });
}

// per_query(query number, its place in the workspace's group, its walk down the tree, workspace), on several threads:
// no masses are found but those of the nodes that the walk meets.
template <class PerQuery>
void Engine::for_each_walk(const Law& law, const float* queries, int64_t b, int64_t threads,
                           const PerQuery& per_query) {
  for_each_group(queries, b, worthwhile_threads(b, threads), [&](int64_t begin, int64_t count, Workspace& workspace) {
    for (int64_t g = 0; g < count; ++g) {
      TreeWalk walk(kernels_, view_, law, g, workspace);
      per_query(begin + g, g, walk, workspace);
    }
  });
}

// Too few queries to give each thread its own: the threads share the scan of the clusters instead.
template <class PerQuery>
void Engine::share_one_scan(const Law& law, const float* queries, int64_t b, int64_t threads,
                            const PerQuery& per_query) {
  const Probed all_probed = {0.0, view_.n};
  const int64_t pieces = std::min(view_.k, threads * 8);
  std::vector<double> log_masses(group_size * view_.k);
  for (int64_t begin = 0; begin < b; begin += group_size) {
    const int64_t count = std::min(group_size, b - begin);
    WorkspacePool::Lease own(pool_, view_);
    stage_queries(view_, queries + begin * view_.d, count, *own);
    find_pivots(kernels_, view_, count, *own);
    parallel(pieces, threads, [&](const auto& next) {
      WorkspacePool::Lease lease(pool_, view_);
      stage_queries(view_, queries + begin * view_.d, count, *lease);
      for (int64_t piece = next(); piece >= 0; piece = next())
        scan_clusters(kernels_, view_, law.temperature, count, piece * view_.k / pieces, (piece + 1) * view_.k / pieces,
                      (*own).pivots, log_masses.data(), *lease);
    });
    (*own).probed = all_probed;
    for (int64_t g = 0; g < count; ++g) per_query(begin + g, g, &log_masses[g * view_.k], *own);
  }
}

void Engine::sample(const Law& law, const float* queries, int64_t b, int64_t n, uint64_t seed, int64_t threads,
                    int64_t* positions, double* log_prob, int64_t* scored, double* error) {
  const std::vector<uint64_t> streams = streams_of(queries, b, view_.d);
  WorkspacePool::Lease own(pool_, view_);
  std::vector<PendingDraw>& pending = (*own).pending;
  pending.resize(b * n);
  if (law.kind == Kind::tree)
    for_each_walk(law, queries, b, threads, [&](int64_t q, int64_t, TreeWalk& walk, Workspace&) {
      scored[q] = choose_leaves(view_, walk, seed, streams[q], n, q * n, &pending[q * n]);
      error[q] = std::numeric_limits<double>::quiet_NaN();
    });
  else
    for_each_query(law, queries, b, threads, [&](int64_t q, int64_t, const double* log_masses, Workspace& workspace) {
      const int64_t held =
          choose_clusters(kernels_, view_, log_masses, seed, streams[q], n, q * n, &pending[q * n], workspace);
      // A chosen cluster that was probed is scanned again, and still there are no more items.
      scored[q] = std::min(view_.n, workspace.probed.scored + held);
      error[q] = workspace.probed.error;
    });
  // All draws of the call in the order of their clusters: who chose the same cluster shares its way from memory.
  if (b > 1) order_by_cluster(pending.data(), pending.data() + b * n);
  const std::vector<int64_t> cuts = cut_by_cluster(pending.data(), b * n);
  const int64_t tasks = (int64_t)cuts.size() - 1;
  parallel(tasks, std::min(threads, std::max<int64_t>(1, tasks / draws_per_thread)), [&](const auto& next) {
    WorkspacePool::Lease lease(pool_, view_);
    for (int64_t task = next(); task >= 0; task = next())
      draw_items(kernels_, view_, law.temperature, queries, n, &pending[cuts[task]], pending.data() + cuts[task + 1],
                 positions, log_prob, *lease);
  });
}

void Engine::log_prob(const Law& law, const float* queries, int64_t b, const int64_t* positions, int64_t m,
                      int64_t threads, double* log_prob) {
  if (law.kind == Kind::tree)
    return for_each_walk(law, queries, b, threads, [&](int64_t q, int64_t g, TreeWalk& walk, Workspace& workspace) {
      const float* query = &workspace.queries[g * padded(view_.d)];
      leaf_log_probabilities(kernels_, view_, law, query, walk, positions + q * m, m, log_prob + q * m, workspace);
    });
  for_each_query(law, queries, b, threads, [&](int64_t q, int64_t g, const double* log_masses, Workspace& workspace) {
    const float* query = &workspace.queries[g * padded(view_.d)];
    log_probabilities(kernels_, view_, law, query, log_masses, positions + q * m, m, log_prob + q * m, workspace);
  });
}

// per_query(query number, what is estimated of it), on several threads.
template <class PerQuery>
void Engine::for_each_certified(const Law& law, const float* queries, int64_t b, int64_t threads,
                                const PerQuery& per_query) {
  for_each_group(queries, b, worthwhile_threads(b, threads), [&](int64_t begin, int64_t count, Workspace& workspace) {
    cluster_masses(kernels_, view_, law, count, workspace);
    for (int64_t g = 0; g < count; ++g)
      per_query(begin + g, CertifiedQuery{kernels_, view_, law, g, &workspace.log_masses[g * view_.k], workspace});
  });
}

void Engine::sample_certified(const Law& law, const float* queries, int64_t b, int64_t n, uint64_t seed,
                              int64_t threads, int64_t* positions, double* log_prob, double* low, double* high,
                              int64_t* scored) {
  if (!worth_bounding(view_))
    return sample_exactly(law, queries, b, n, seed, threads, positions, log_prob, low, high, scored);
  const std::vector<uint64_t> streams = streams_of(queries, b, view_.d);
  for_each_certified(law, queries, b, threads, [&](int64_t q, const CertifiedQuery& query) {
    scored[q] = softindex::sample_certified(query, seed, streams[q], n, positions + q * n, log_prob + q * n,
                                            low + q * n, high + q * n);
  });
}

// Where bounds would cost more than they save, everything is scanned, and only rounding is left to allow for.
void Engine::sample_exactly(const Law& law, const float* queries, int64_t b, int64_t n, uint64_t seed, int64_t threads,
                            int64_t* positions, double* log_prob, double* low, double* high, int64_t* scored) {
  Law all = law;
  all.kind = Kind::exhaustive;
  all.probes = 0;
  std::vector<double> error(b);
  sample(all, queries, b, n, seed, threads, positions, log_prob, scored, error.data());
  for (int64_t q = 0; q < b; ++q) {
    const double norm = std::sqrt(squared_norm(queries + q * view_.d, view_.d));
    const double slack = 2 * scan_error(view_, law, norm, view_.longest);
    for (int64_t j = q * n; j < (q + 1) * n; ++j) {
      low[j] = log_prob[j] - slack;
      high[j] = std::min(0.0, log_prob[j] + slack);
    }
  }
}

void Engine::bracket_log_partition(const Law& law, const float* queries, int64_t b, double confidence, uint64_t seed,
                                   int64_t threads, double* values, double* low, double* high, int64_t* scored) {
  const std::vector<uint64_t> streams = streams_of(queries, b, view_.d);
  for_each_certified(law, queries, b, threads, [&](int64_t q, const CertifiedQuery& query) {
    const Bracket found =
        confidence < 1 ? estimate_log_partition(query, confidence, seed, streams[q]) : prove_log_partition(query);
    values[q] = found.value;
    low[q] = found.low;
    high[q] = found.high;
    scored[q] = std::min(view_.n, found.scored);
  });
}

void Engine::masses(const Law& law, const float* queries, int64_t b, int64_t threads, double* log_masses,
                    int64_t* scored, double* error) {
  for_each_query(law, queries, b, threads, [&](int64_t q, int64_t g, const double* found, Workspace& workspace) {
    const double pivot = workspace.pivots[g] / law.temperature;
    for (int64_t c = 0; c < view_.k; ++c) log_masses[q * view_.k + c] = found[c] + pivot;
    scored[q] = workspace.probed.scored;
    error[q] = workspace.probed.error;
  });
}

void Engine::sample_restricted(const Law& law, const Restrictions& restrictions, const float* queries, int64_t b,
                               int64_t n, uint64_t seed, int64_t threads, int64_t* positions, double* log_prob,
                               int64_t* scored, double* error, int64_t* left) {
  const std::vector<uint64_t> streams = streams_of(queries, b, view_.d);
  for_each_query(law, queries, b, threads, [&](int64_t q, int64_t g, const double* log_masses, Workspace& workspace) {
    const float* query = &workspace.queries[g * padded(view_.d)];
    const Asked asked = {kernels_, view_, law, query, log_masses, workspace.pivots[g], workspace};
    const Drawn drawn = sample_part(asked, restrictions.of(q), workspace.probed.error, seed, streams[q], n,
                                    positions + q * n, log_prob + q * n);
    scored[q] = std::min(view_.n, workspace.probed.scored + drawn.scored);
    error[q] = drawn.error;
    left[q] = drawn.left;
  });
}

void Engine::log_prob_restricted(const Law& law, const Restrictions& restrictions, const float* queries, int64_t b,
                                 const int64_t* positions, int64_t m, int64_t threads, double* log_prob) {
  for_each_query(law, queries, b, threads, [&](int64_t q, int64_t g, const double* log_masses, Workspace& workspace) {
    const float* query = &workspace.queries[g * padded(view_.d)];
    const Asked asked = {kernels_, view_, law, query, log_masses, workspace.pivots[g], workspace};
    log_prob_part(asked, restrictions.of(q), positions + q * m, m, log_prob + q * m);
  });
}

void Engine::log_partition(const Law& law, const float* queries, int64_t b, int64_t threads, double* values) {
  for_each_query(law, queries, b, threads, [&](int64_t q, int64_t g, const double* log_masses, Workspace& workspace) {
    const Total total = kernels_.weigh_masses(log_masses, view_.k, nullptr, nullptr);
    values[q] = workspace.pivots[g] / law.temperature + (total.peak + total.log_total);
    if (!std::isfinite(values[q])) throw std::runtime_error("no cluster holds any weight");
  });
}

void Engine::top_k(const float* queries, int64_t b, double temperature, int64_t k, int64_t probes, int64_t threads,
                   int64_t* positions, float* scores, int64_t* scored) {
  parallel(b, std::min(threads, std::max<int64_t>(1, b / groups_per_thread)), [&](const auto& next) {
    WorkspacePool::Lease lease(pool_, view_);
    for (int64_t q = next(); q >= 0; q = next()) {
      stage_queries(view_, queries + q * view_.d, 1, *lease);
      scored[q] = softindex::top_k(kernels_, view_, (*lease).queries.data(), temperature, k, probes, positions + q * k,
                                   scores + q * k, *lease);
    }
  });
}

void Engine::attach_codes(const int8_t* codes, const float* scales, const float* errors, const float* lengths) {
  view_.codes = codes;
  view_.code_scales = scales;
  view_.code_errors = errors;
  view_.code_lengths = lengths;
}

double Engine::coded_scores(const float* query, int64_t cluster, float* scores) {
  WorkspacePool::Lease lease(pool_, view_);
  Workspace& workspace = *lease;
  stage_query(view_, query, 0, workspace);
  const CodedQuery coded = stage_coded_query(view_, workspace.queries.data(), workspace.integer_queries.data());
  float mean_dot;
  kernels_.scan(view_.mean_row(cluster), workspace.queries.data(), &mean_dot);
  return softindex::coded_scores(kernels_, view_, cluster, coded, workspace.integer_queries.data(), mean_dot,
                                 workspace.code_dots.data(), scores);
}

double Engine::mass_bounds(const Law& law, const float* query, double* lower, double* upper, double* scanned) {
  WorkspacePool::Lease lease(pool_, view_);
  Workspace& workspace = *lease;
  stage_query(view_, query, 0, workspace);
  cluster_masses(kernels_, view_, law, 1, workspace);
  log_mass_bounds(view_, law, 0, lower, upper, workspace);
  scan_clusters(kernels_, view_, law.temperature, 1, 0, view_.k, workspace.pivots, scanned, workspace);
  return workspace.pivots[0];
}

}  // namespace softindex
