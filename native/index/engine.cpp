// A batch of queries against one index: threads, workspaces and random streams around the per-query functions.
#include "index/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "base/parallel.h"
#include "index/bounds.h"
#include "index/certified.h"
#include "index/codes.h"
#include "index/log_partition.h"
#include "index/masses.h"
#include "index/probe.h"
#include "index/restricted.h"
#include "index/top_k.h"
#include "index/tree.h"

namespace softindex {
namespace {

constexpr double not_stated = std::numeric_limits<double>::quiet_NaN();
// Starting a thread costs about as much as a handful of two-level draws: give each at least this many groups.
constexpr int64_t groups_per_thread = 4;
// Likewise for scans of single clusters.
constexpr int64_t draws_per_thread = 16;
// Queries that scan or search together, and how many numbers of one kind they keep at most.
constexpr int64_t most_together = 64, numbers_together = 1 << 22;
// Queries that need padding are copied this many bytes at a time.
constexpr int64_t staged_bytes = 1 << 22;

int64_t groups_of(int64_t count) { return (count + group_size - 1) / group_size; }

int64_t worthwhile_threads(int64_t count, int64_t threads) {
  return std::min(threads, std::max<int64_t>(1, groups_of(count) / groups_per_thread));
}

}  // namespace

// Queries of a call, padded and named once.
struct Engine::Batch {
  int64_t first, count;
  StagedQueries vectors;
  const QueryNames& names;
  Workspace& workspace;  // of the thread that makes the call
};

// per_batch(batch): all queries of the call where the kernels can read the caller's memory, or else as many at a time
// as are copied and padded. Results do not depend on it.
template <class PerBatch>
void Engine::for_each_batch(const Request& request, const QueryNames& names, const PerBatch& per_batch) {
  WorkspacePool::Lease own(pool_, view_);
  const int64_t d = view_.d, width = padded(d);
  if (width == d) return per_batch(Batch{0, request.b, {request.queries, 0, d}, names, *own});
  const int64_t most = std::max<int64_t>(group_size, staged_bytes / (width * (int64_t)sizeof(float)));
  AlignedVector<float>& staged = (*own).queries;
  for (int64_t first = 0; first < request.b; first += most) {
    const int64_t count = std::min(most, request.b - first);
    // Only the first d numbers of a row are ever written: the padding stays zero.
    if ((int64_t)staged.size() < count * width) staged.resize(count * width, 0.0f);
    for (int64_t q = 0; q < count; ++q)
      std::memcpy(&staged[q * width], request.queries + (first + q) * d, d * sizeof(float));
    per_batch(Batch{first, count, {staged.data(), first, width}, names, *own});
  }
}

// The group of queries that begins with this one.
void Engine::stage(const Request& request, const Batch& batch, int64_t begin, std::vector<Query>& group,
                   Workspace& workspace) {
  const int64_t count = std::min(group_size, batch.first + batch.count - begin);
  const bool named = !batch.names.contents.empty();
  group.clear();
  for (int64_t g = 0; g < count; ++g) {
    const int64_t q = begin + g;
    const uint64_t content = named ? batch.names.contents[q] : 0, name = named ? batch.names.streams[q] : 0;
    double* variances = request.law.dispersion ? &workspace.variances[g * view_.k] : nullptr;
    group.push_back(Query{{kernels_, view_, request, workspace, request.temperature_of(q)},
                          q,
                          g,
                          batch.vectors[q],
                          content,
                          {request.seed, name},
                          &workspace.mean_dots[g * view_.k],
                          &workspace.log_masses[g * view_.k],
                          variances});
  }
}

// Queries first .. first + count, with rows of their own for their dot products and log masses.
std::vector<Query> Engine::stage_many(const Request& request, const Batch& batch, int64_t first, int64_t count,
                                      Workspace& workspace) {
  const bool scans = request.law.kind == Kind::exhaustive;
  std::vector<Query> queries, group;
  queries.reserve(count);
  workspace.many_dots.resize(count * view_.k);
  if (scans) workspace.many_masses.resize(count * view_.k);
  if (request.law.dispersion) workspace.many_variances.resize(count * view_.k);
  for (int64_t begin = 0; begin < count; begin += group_size) {
    stage(request, batch, first + begin, group, workspace);
    while (begin + (int64_t)group.size() > count) group.pop_back();
    for (Query& query : group) {
      const int64_t row = (begin + query.place) * view_.k;
      query.mean_dots = &workspace.many_dots[row];
      if (scans) query.log_masses = &workspace.many_masses[row];
      if (query.variances != nullptr) query.variances = &workspace.many_variances[row];
      queries.push_back(query);
    }
  }
  return queries;
}

// per_share(first, count, workspace): queries that share each read of memory, on several threads; more of them would
// take more memory and gain little. width: numbers that are kept for a query.
template <class PerShare>
void Engine::for_each_share(const Request& request, const Batch& batch, int64_t width, const PerShare& per_share) {
  const int64_t each = (batch.count + request.threads - 1) / request.threads;
  int64_t size = std::max<int64_t>(1, std::min({most_together, each, numbers_together / width}));
  if (size > group_size) size -= size % group_size;
  parallel((batch.count + size - 1) / size, request.threads, [&](const auto& next) {
    WorkspacePool::Lease lease(pool_, view_);
    for (int64_t task = next(); task >= 0; task = next())
      per_share(batch.first + task * size, std::min(size, batch.count - task * size), *lease);
  });
}

// per_group(group), on several threads.
template <class PerGroup>
void Engine::for_each_group(const Request& request, const Batch& batch, int64_t threads, const PerGroup& per_group) {
  parallel(groups_of(batch.count), threads, [&](const auto& next) {
    WorkspacePool::Lease lease(pool_, view_);
    std::vector<Query> group;
    group.reserve(group_size);
    for (int64_t task = next(); task >= 0; task = next()) {
      stage(request, batch, batch.first + task * group_size, group, *lease);
      per_group(Group{group.data(), (int64_t)group.size()});
    }
  });
}

// per_query(query) with the masses of its law, on several threads.
template <class PerQuery>
void Engine::for_each_query(const Request& request, const Batch& batch, const PerQuery& per_query) {
  if (request.law.kind == Kind::exhaustive)
    return groups_of(batch.count) < request.threads ? share_one_scan(request, batch, per_query)
                                                    : scan_for_many(request, batch, per_query);
  for_each_group(request, batch, worthwhile_threads(batch.count, request.threads), [&](const Group& group) {
    // What a query lists is scored item by item.
    if (!group.all_list()) cluster_masses(group);
    for (Query& query : group) {
      query.error = query.log_error = not_stated;
      if (request.probes != 0 && !query.lists()) probe_or_scan(query);
      per_query(query);
    }
  });
}

// Every item is read once for many queries: their dot products would otherwise wait for memory.
template <class PerQuery>
void Engine::scan_for_many(const Request& request, const Batch& batch, const PerQuery& per_query) {
  for_each_share(request, batch, view_.k, [&](int64_t first, int64_t count, Workspace& workspace) {
    std::vector<Query> queries = stage_many(request, batch, first, count, workspace);
    scan_together(begin_scan(queries), 0, view_.k, workspace);
    for (Query& query : queries) per_query(query);
  });
}

// Too few queries to give each thread its own: the threads share the scan of the clusters instead.
template <class PerQuery>
void Engine::share_one_scan(const Request& request, const Batch& batch, const PerQuery& per_query) {
  const int64_t pieces = std::min(view_.k, request.threads * 8);
  WorkspacePool::Lease own(pool_, view_);
  std::vector<Query> queries = stage_many(request, batch, batch.first, batch.count, *own);
  const std::vector<Group> groups = begin_scan(queries);
  parallel(groups.empty() ? 0 : pieces, request.threads, [&](const auto& next) {
    WorkspacePool::Lease lease(pool_, view_);
    for (int64_t piece = next(); piece >= 0; piece = next())
      scan_together(groups, piece * view_.k / pieces, (piece + 1) * view_.k / pieces, *lease);
  });
  for (Query& query : queries) per_query(query);
}

template <class PerQuery>
void Engine::with_masses(const Request& request, const PerQuery& per_query) {
  if (scans_everything(view_, request)) return with_masses(exhaustive(request), per_query);
  for_each_batch(request, name_queries(request.queries, request.b, view_.d),
                 [&](const Batch& batch) { for_each_query(request, batch, per_query); });
}

// per_query(query) with its estimated masses, on several threads: no cluster is scanned before.
template <class PerQuery>
void Engine::with_estimates(const Request& request, const PerQuery& per_query) {
  for_each_batch(request, name_queries(request.queries, request.b, view_.d), [&](const Batch& batch) {
    for_each_group(request, batch, worthwhile_threads(batch.count, request.threads), [&](const Group& group) {
      cluster_masses(group);
      for (Query& query : group) per_query(query);
    });
  });
}

// per_query(query) with its dot products with the means, on several threads. These queries have no names.
template <class PerQuery>
void Engine::with_mean_dots(const Request& request, int64_t threads, const PerQuery& per_query) {
  for_each_batch(request, {}, [&](const Batch& batch) {
    for_each_group(request, batch, threads, [&](const Group& group) {
      find_pivots(group);
      for (Query& query : group) per_query(query);
    });
  });
}

void Engine::sample(const Request& request, const DrawResults& results) {
  if (request.restriction != nullptr) return sample_from_part(request, results);
  if (request.law.kind == Kind::certified) return sample_with_proof(request, results);
  for_each_batch(request, name_queries(request.queries, request.b, view_.d),
                 [&](const Batch& batch) { sample_batch(request, batch, results); });
}

// Chooses the cluster of every draw.
void Engine::choose(const Request& request, const Batch& batch, const DrawResults& results, PendingDraw* pending) {
  const int64_t n = results.n;
  const auto own = [&](const Query& query) { return pending + (query.number - batch.first) * n; };
  const auto report = [&](const Query& query, double log_partition, double slack) {
    // A chosen cluster that was probed is scanned again, and still there are no more items.
    results.scored[query.number] = std::min(view_.n, query.scored + count_rows(view_, own(query), n));
    results.error[query.number] = query.error;
    results.log_partition.set_about(query.number, log_partition, slack);
  };
  if (request.law.kind == Kind::tree) {
    // No masses are computed but those of the nodes that the walk meets.
    const int64_t threads = worthwhile_threads(batch.count, request.threads);
    return for_each_group(request, batch, threads, [&](const Group& group) {
      for (Query& query : group) {
        choose_leaves(query, n, query.number * n, own(query));
        query.error = not_stated;
        report(query, not_stated, not_stated);
      }
    });
  }
  const double bias = largest_bias(view_, request);
  for_each_query(request, batch, [&](Query& query) {
    const Total total = weigh_clusters(query, query.log_masses);
    choose_clusters(query, query.log_masses, total, n, query.number * n, own(query));
    const double value = query.log_partition(total);
    report(query, value, request.law.kind == Kind::exhaustive ? exhaustive_error(query, value, bias) : query.log_error);
  });
}

void Engine::sample_batch(const Request& request, const Batch& batch, const DrawResults& results) {
  const int64_t count = batch.count * results.n;
  std::vector<PendingDraw>& pending = batch.workspace.pending;
  resize_pending(pending, count);
  choose(request, batch, results, pending.data());
  // All draws in the order of their clusters: those that chose the same cluster share one read of its memory.
  if (batch.count > 1) gather_by_cluster(batch.workspace, view_.k, pending.data(), pending.data() + count);
  const std::vector<int64_t> cuts = cut_by_cluster(pending.data(), count);
  const int64_t tasks = (int64_t)cuts.size() - 1;
  const Slots slots = {results.positions, results.log_prob};
  parallel(tasks, std::min(request.threads, std::max<int64_t>(1, tasks / draws_per_thread)), [&](const auto& next) {
    WorkspacePool::Lease lease(pool_, view_);
    const Context context = {kernels_, view_, request, *lease, request.temperature};
    for (int64_t task = next(); task >= 0; task = next())
      draw_items(context, batch.vectors, results.n, &pending[cuts[task]], pending.data() + cuts[task + 1],
                 pending.data() + count, slots);
  });
}

void Engine::sample_from_part(const Request& request, const DrawResults& results) {
  const int64_t n = results.n;
  const bool exhaustive = request.law.kind == Kind::exhaustive;
  const double bias = largest_bias(view_, request);
  with_masses(request, [&](Query& query) {
    const int64_t q = query.number;
    const RestrictedDraws drawn = sample_restricted(query, n, results.positions + q * n, results.log_prob + q * n);
    results.scored[q] = std::min(view_.n, query.scored + drawn.scored);
    results.error[q] = drawn.error;
    results.left[q] = drawn.left;
    const double value = request.law.kind == Kind::tree ? not_stated : drawn.log_partition;
    results.log_partition.set_about(q, value,
                                    exhaustive ? exhaustive_error(query, value, bias) : drawn.log_error(query));
  });
}

void Engine::sample_with_proof(const Request& request, const DrawResults& results) {
  if (!worth_bounding(view_)) return sample_all_scanned(request, results);
  const int64_t n = results.n;
  with_estimates(request, [&](Query& query) {
    const int64_t q = query.number, first = q * n;
    const ProvenSlots slots = {
        {results.positions + first, results.log_prob + first}, results.low + first, results.high + first};
    const Bracket bracket = sample_certified(query, n, slots);
    results.scored[q] = std::min(view_.n, bracket.scored);
    results.error[q] = 0.0;
    results.log_partition.set(q, bracket.value, bracket.low, bracket.high);
  });
}

// Where bounds would cost more than they save, everything is scanned, and only rounding is left to allow for.
void Engine::sample_all_scanned(const Request& request, const DrawResults& results) {
  sample(exhaustive(request), results);
  for (int64_t q = 0; q < request.b; ++q) {
    const double norm = std::sqrt(squared_norm(request.queries + q * view_.d, view_.d));
    const double rounding = view_.rounding() * norm * view_.longest_sum + view_.vanished(norm);
    const double slack = rounding / request.temperature_of(q) + weight_slack;
    results.log_partition.set_about(q, results.log_partition.value[q], slack);
    for (int64_t j = q * results.n; j < (q + 1) * results.n; ++j) {
      results.low[j] = results.log_prob[j] - 2 * slack;
      results.high[j] = std::min(0.0, results.log_prob[j] + 2 * slack);
    }
  }
}

void Engine::log_prob(const Request& request, const LogProbResults& results) {
  const int64_t m = results.m;
  const auto positions_of = [&](const Query& query) { return results.positions + query.number * m; };
  const auto log_prob_of = [&](const Query& query) { return results.log_prob + query.number * m; };
  const auto restricted = [&](Query& query) { log_prob_restricted(query, positions_of(query), m, log_prob_of(query)); };
  const int64_t threads = worthwhile_threads(request.b, request.threads);
  if (request.restriction != nullptr && request.restriction->k > 0) return with_mean_dots(request, threads, restricted);
  if (request.restriction != nullptr) return with_masses(request, restricted);
  if (request.law.kind != Kind::tree)
    return with_masses(request,
                       [&](Query& query) { log_probabilities(query, positions_of(query), m, log_prob_of(query)); });
  for_each_batch(request, name_queries(request.queries, request.b, view_.d), [&](const Batch& batch) {
    for_each_group(request, batch, threads, [&](const Group& group) {
      for (Query& query : group) leaf_log_probabilities(query, positions_of(query), m, log_prob_of(query));
    });
  });
}

void Engine::log_partition(const Request& request, const LogPartitionResults& results) {
  const bool restricted = request.restriction != nullptr;
  if (!restricted && (request.law.kind == Kind::certified || request.confidence < 1))
    return bracket_log_partition(request, results);
  const bool exhaustive = request.law.kind == Kind::exhaustive;
  const double bias = largest_bias(view_, request);
  with_masses(request, [&](Query& query) {
    const double value = restricted
                             ? log_partition_restricted(query)
                             : query.log_partition(kernels_.weigh_masses(query.log_masses, view_.k, nullptr, nullptr));
    if (!std::isfinite(value)) throw std::runtime_error("no cluster holds any weight");
    const double slack = exhaustive ? exhaustive_error(query, value, bias) : query.lists() ? 0.0 : query.log_error;
    results.log_partition.set_about(query.number, value, slack);
    results.scored[query.number] = query.scored;
  });
}

void Engine::bracket_log_partition(const Request& request, const LogPartitionResults& results) {
  with_estimates(request, [&](Query& query) {
    const Bracket bracket = request.confidence < 1 ? estimate_log_partition(query) : prove_log_partition(query);
    results.log_partition.set(query.number, bracket.value, bracket.low, bracket.high);
    results.scored[query.number] = std::min(view_.n, bracket.scored);
  });
}

void Engine::top_k(const Request& request, const BestResults& results) {
  for_each_batch(request, {}, [&](const Batch& batch) {
    const auto search = [&](int64_t first, int64_t count, Workspace& workspace) {
      std::vector<Query> queries = stage_many(request, batch, first, count, workspace);
      for (const Group& group : groups_in(queries))
        // Only predictions need the variances.
        if (!group.all_list()) (request.law.dispersion ? cluster_masses : find_pivots)(group);
      softindex::top_k(queries, results);
    };
    for_each_share(request, batch, std::max(view_.k, results.k), search);
  });
}

void Engine::masses(const Request& request, const MassResults& results) {
  with_masses(request, [&](Query& query) {
    double* log_masses = results.log_masses + query.number * view_.k;
    results.error[query.number] = masses_restricted(query, log_masses);
    for (int64_t c = 0; c < view_.k; ++c) log_masses[c] += query.pivot / query.temperature;
    results.scored[query.number] = query.scored;
  });
}

double Engine::coded_scores(const Request& request, int64_t cluster, float* scores) {
  double slack = 0;
  with_mean_dots(request, 1, [&](Query& query) {
    slack = softindex::coded_scores(query, stage_coded_query(query), cluster, query.mean_dots[cluster], scores);
  });
  return slack;
}

double Engine::mass_bounds(const Request& request, double* lower, double* upper, double* scanned) {
  double pivot = 0;
  with_estimates(request, [&](Query& query) {
    log_mass_bounds(query, lower, upper);
    scan_clusters(Group{&query, 1}, 0, view_.k, query.workspace);
    std::copy(query.log_masses, query.log_masses + view_.k, scanned);
    pivot = query.pivot;
  });
  return pivot;
}

}  // namespace softindex
