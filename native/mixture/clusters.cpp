// Finds candidates cluster by cluster: by scores that are expanded around the centres of the clusters.
#include "mixture/clusters.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "base/parallel.h"
#include "mixture/packing.h"
#include "mixture/scratch.h"

namespace softindex {
namespace {

constexpr double deviations = 2.3;  // of a cluster's items: one in a hundred lies higher

// A mixture without a gate whose logits are the products of `rows` vectors of length d with columns.
Mixture<float> plain(int64_t rows, int64_t d) {
  return {rows, 1, d, 0, false, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
}

}  // namespace

// What one thread needs for a tile of centres or of items.
struct ClusterSearch::Workspace {
  const int64_t tile, pairs, length, rank;
  Scratch<float> scratch;
  AlignedVector<float> by_logit, slopes, promise;

  Workspace(const Kernels& kernels, const Mixture<float>& mixture, const MixtureClusters& clusters)
      : tile(kernels.mixture_tile()), pairs(mixture.query_parts * mixture.item_parts),
        length(mixture.item_parts * mixture.d), rank(clusters.rank), scratch(mixture, clusters.gates != nullptr, tile),
        by_logit(pairs * tile), slopes(rank * tile), promise(tile) {
    scratch.columns.resize(std::max(length, rank) * tile);
  }

  // Reads the centres which[0 .. count), or first .. first + count if `which` is null.
  void gather(const Kernels& kernels, const MixtureClusters& clusters, const int64_t* which, int64_t first,
              int64_t count) {
    kernels.mixture_gather(clusters.centres + first * length, length, which, count, scratch.columns.data());
    if (clusters.gates != nullptr)
      kernels.mixture_gather(clusters.gates + first * pairs, pairs, which, count, scratch.gates.data());
  }
};

// The slope of each logit of a query along each direction of the basis, as a packed matrix (rank, pairs): a direction
// has the form of an item, so these are its logits.
std::vector<float> ClusterSearch::slopes_of_logits(const MixtureQueries<float>& queries, int64_t q) const {
  Workspace work(kernels_, mixture_, clusters_);
  std::vector<float> slopes(work.rank * work.pairs);
  for (int64_t first = 0; first < work.rank; first += work.tile) {
    const int64_t count = std::min(work.tile, work.rank - first);
    kernels_.mixture_gather(clusters_.basis + first * work.length, work.length, nullptr, count,
                            work.scratch.columns.data());
    kernels_.mixture_logits(mixture_, queries.query(q), work.scratch.columns.data(), work.scratch.work.data());
    for (int64_t r = 0; r < count; ++r)
      for (int64_t p = 0; p < work.pairs; ++p)
        slopes[(first + r) * work.pairs + p] = work.scratch.work[p * work.tile + r];
  }
  return pack(slopes.data(), work.rank, work.pairs);
}

// The scores (tile) and slopes (rank, tile) at the centres that were gathered.
void ClusterSearch::expand(const MixtureQueries<float>& queries, int64_t q, const std::vector<float>& logit_slopes,
                           Workspace& work) const {
  Scratch<float>& scratch = work.scratch;
  kernels_.mixture_scores(mixture_, queries.query(q), queries.gates(q), scratch.columns.data(), scratch.gates.data(),
                          scratch.work.data(), scratch.scores.data());
  kernels_.mixture_slopes(mixture_, queries.gates(q), scratch.gates.data(), scratch.work.data(), work.by_logit.data());
  kernels_.mixture_logits(plain(work.rank, work.pairs), logit_slopes.data(), work.by_logit.data(), work.slopes.data());
}

// promise (tile): the score that few items of clusters first .. first + count exceed, if their features are normal.
void ClusterSearch::weigh_promise(int64_t first, int64_t count, Workspace& work) const {
  for (int64_t i = 0; i < count; ++i) {
    const float* spreads = clusters_.spreads + (first + i) * work.rank;
    double variance = 0;
    for (int64_t r = 0; r < work.rank; ++r) {
      const double deviation = (double)work.slopes[r * work.tile + i] * spreads[r];
      variance += deviation * deviation;
    }
    work.promise[i] = (float)(work.scratch.scores[i] + deviations * std::sqrt(variance));
  }
}

// The route of one query, given the promise of every cluster.
ClusterSearch::Route ClusterSearch::route(const MixtureQueries<float>& queries, int64_t q,
                                          const std::vector<float>& logit_slopes, const float* promise,
                                          const Exclusions& excluded, int64_t scanned, Workspace& work) const {
  Route route;
  std::vector<int64_t> heap(clusters_.count);
  std::iota(heap.begin(), heap.end(), 0);
  const auto after = [&](int64_t a, int64_t b) {
    return comes_before(promise[b], promise[a]) || (!comes_before(promise[a], promise[b]) && b < a);
  };
  std::make_heap(heap.begin(), heap.end(), after);
  for (int64_t held = 0; held < scanned && !heap.empty(); heap.pop_back()) {
    std::pop_heap(heap.begin(), heap.end(), after);
    const int64_t cluster = heap.back(), size = clusters_.size(cluster);
    const int64_t left = size - excluded.among(q, clusters_.offsets[cluster], size);
    if (left > 0) route.clusters.push_back(cluster);
    held += left;
  }
  const int64_t visited = (int64_t)route.clusters.size();
  route.slopes.resize(visited * work.rank);
  for (int64_t first = 0; first < visited; first += work.tile) {
    const int64_t count = std::min(work.tile, visited - first);
    work.gather(kernels_, clusters_, route.clusters.data() + first, 0, count);
    expand(queries, q, logit_slopes, work);
    route.scores.insert(route.scores.end(), work.scratch.scores.begin(), work.scratch.scores.begin() + count);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t r = 0; r < work.rank; ++r)
        route.slopes[(first + i) * work.rank + r] = work.slopes[r * work.tile + i];
  }
  return route;
}

// Every centre is scored twice, here and on the route: its slopes take more memory than its promise.
std::vector<ClusterSearch::Route> ClusterSearch::all_routes(const MixtureQueries<float>& queries,
                                                            const Exclusions& excluded, int64_t scanned,
                                                            int64_t threads) const {
  const int64_t b = queries.count, clusters = clusters_.count, tile = kernels_.mixture_tile();
  std::vector<std::vector<float>> logit_slopes(b);
  parallel(b, threads, [&](const auto& next) {
    for (int64_t q = next(); q >= 0; q = next()) logit_slopes[q] = slopes_of_logits(queries, q);
  });
  std::vector<float> promise(b * clusters);
  parallel((clusters + tile - 1) / tile, threads, [&](const auto& next) {
    Workspace work(kernels_, mixture_, clusters_);
    for (int64_t task = next(); task >= 0; task = next()) {
      const int64_t first = task * tile, count = std::min(tile, clusters - first);
      work.gather(kernels_, clusters_, nullptr, first, count);
      for (int64_t q = 0; q < b; ++q) {
        expand(queries, q, logit_slopes[q], work);
        weigh_promise(first, count, work);
        std::copy_n(work.promise.data(), count, promise.data() + q * clusters + first);
      }
    }
  });
  std::vector<Route> routes(b);
  parallel(b, threads, [&](const auto& next) {
    Workspace work(kernels_, mixture_, clusters_);
    for (int64_t q = next(); q >= 0; q = next())
      routes[q] = route(queries, q, logit_slopes[q], promise.data() + q * clusters, excluded, scanned, work);
  });
  return routes;
}

// Offers the items of a cluster to the queries that stop there.
void ClusterSearch::scan(int64_t cluster, const std::vector<Stop>& stops, const std::vector<Route>& routes,
                         const Exclusions& excluded, Workspace& work, std::vector<Selection>& selections) const {
  const int64_t m = (int64_t)stops.size(), rank = work.rank, tile = work.tile;
  std::vector<float> slopes(m * rank);
  for (int64_t i = 0; i < m; ++i)
    std::copy_n(routes[stops[i].query].slopes.data() + stops[i].place * rank, rank, slopes.data() + i * rank);
  const std::vector<float> packed = pack(slopes.data(), m, rank);
  Scratch<float>& scratch = work.scratch;
  scratch.work.resize(std::max<size_t>(scratch.work.size(), m * tile));
  for (int64_t first = clusters_.offsets[cluster]; first < clusters_.offsets[cluster + 1]; first += tile) {
    const int64_t count = std::min(tile, clusters_.offsets[cluster + 1] - first);
    kernels_.mixture_gather(clusters_.features + first * rank, rank, nullptr, count, scratch.columns.data());
    kernels_.mixture_logits(plain(m, rank), packed.data(), scratch.columns.data(), scratch.work.data());
    for (int64_t i = 0; i < m; ++i) {
      const auto [query, place] = stops[i];
      float* scores = scratch.work.data() + i * tile;
      for (int64_t j = 0; j < tile; ++j) scores[j] += routes[query].scores[place];
      excluded.apply(query, first, count, scores);
      selections[query].offer(kernels_, scores, count, clusters_.order + first);
    }
  }
}

void ClusterSearch::candidates(const MixtureQueries<float>& queries, const Exclusions& excluded, int64_t scanned,
                               int64_t threads, const Ranking& result) const {
  const std::vector<Route> routes = all_routes(queries, excluded, std::max(scanned, result.keep), threads);
  // Cluster by cluster: queries that look into the same one share the reading of its items.
  std::vector<std::vector<Stop>> stops(clusters_.count);
  for (int64_t q = 0; q < queries.count; ++q)
    for (size_t place = 0; place < routes[q].clusters.size(); ++place)
      stops[routes[q].clusters[place]].push_back({q, (int64_t)place});
  std::vector<int64_t> visited;
  for (int64_t c = 0; c < clusters_.count; ++c)
    if (!stops[c].empty()) visited.push_back(c);
  std::vector<Selection> selections(queries.count, Selection(result.keep));
  std::mutex guard;
  parallel((int64_t)visited.size(), threads, [&](const auto& next) {
    Workspace work(kernels_, mixture_, clusters_);
    std::vector<Selection> local(queries.count, Selection(result.keep));
    for (int64_t task = next(); task >= 0; task = next())
      scan(visited[task], stops[visited[task]], routes, excluded, work, local);
    std::lock_guard<std::mutex> lock(guard);
    for (int64_t q = 0; q < queries.count; ++q) selections[q].merge(local[q]);
  });
  int64_t items = clusters_.offsets[clusters_.count];
  write(selections, items, threads, result);
}

}  // namespace softindex
