// The k best items of queries: proven by bounds on clusters and items, or from the clusters that matter most.
#include "index/top_k.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "index/allowed.h"
#include "index/best_search.h"
#include "index/scan.h"

namespace softindex {
namespace {

constexpr int64_t together = 8;         // queries that share one read of the sketch
constexpr int64_t blocks_at_once = 64;  // of the sketch, so that thresholds rise while a large cluster is read

// Searches of up to eight queries in the sketch of a cluster.
void search_sketch(const Context& context, int64_t cluster, BestSearch* const* searches, int64_t count) {
  const View& view = context.view;
  const int64_t begin = view.offsets[cluster], end = view.offsets[cluster + 1];
  const int64_t last = (end + sketch_items - 1) / sketch_items;
  uint16_t masks[together * blocks_at_once];
  for (int64_t from = begin / sketch_items; from < last; from += blocks_at_once) {
    const int64_t to = std::min(last, from + blocks_at_once);
    SketchQuery aims[together];
    for (int64_t i = 0; i < count; ++i) aims[i] = searches[i]->aim_at(cluster);
    context.kernels.sketch_masks(view.sketch_blocks(from, to), aims, count, masks, blocks_at_once);
    const int64_t first_item = std::max(begin, from * sketch_items), last_item = std::min(end, to * sketch_items);
    for (int64_t i = 0; i < count; ++i)
      searches[i]->collect(masks + i * blocks_at_once, from * sketch_items, first_item, last_item);
  }
}

// Searches of up to four queries in the items of a cluster.
void search_items(const Context& context, int64_t cluster, BestSearch* const* searches, int64_t count) {
  const View& view = context.view;
  Workspace& workspace = context.workspace;
  const int64_t end = view.offsets[cluster + 1], step = blocks_at_once * sketch_items;
  for (int64_t from = view.offsets[cluster]; from < end; from += step) {
    const int64_t to = std::min(end, from + step);
    const float* vectors[group_size];
    for (int64_t i = 0; i < count; ++i) vectors[i] = searches[i]->vector();
    scan_items_together(context.kernels, view, from, to, {vectors, count, workspace.dots.data(), workspace.stretch});
    for (int64_t i = 0; i < count; ++i) searches[i]->offer(&workspace.dots[i * workspace.stretch], from, to);
  }
}

void search_cluster(const Context& context, int64_t cluster, BestSearch* const* searches, int64_t count) {
  // The sketch helps only where there is a score to reach.
  BestSearch *sketched[together], *others[together];
  int64_t with = 0, without = 0;
  for (int64_t i = 0; i < count; ++i) {
    searches[i]->visit(cluster);
    if (context.view.sketch != nullptr && searches[i]->full())
      sketched[with++] = searches[i];
    else
      others[without++] = searches[i];
  }
  if (with > 0) search_sketch(context, cluster, sketched, with);
  for (int64_t i = 0; i < without; i += group_size)
    search_items(context, cluster, others + i, std::min(group_size, without - i));
}

void search_chosen(const Context& context, std::vector<BestSearch>& searches) {
  BestSearch* some[together];
  for (int64_t cluster = 0; cluster < context.view.k; ++cluster) {
    int64_t count = 0;
    for (BestSearch& search : searches) {
      if (!search.wants(cluster)) continue;
      some[count++] = &search;
      if (count < together) continue;
      search_cluster(context, cluster, some, count);
      count = 0;
    }
    if (count > 0) search_cluster(context, cluster, some, count);
  }
  for (BestSearch& search : searches) search.settle();
}

// Visits the clusters of most promise, until there are `least` of them and k items.
void search_promising(BestSearch& search, int64_t least) {
  BestSearch* one = &search;
  for (int64_t visited = 0; visited < least || !search.full(); ++visited) {
    const int64_t cluster = search.most_promising();
    if (cluster < 0) break;
    search_cluster(search.context(), cluster, &one, 1);
    search.settle();
  }
}

}  // namespace

void top_k(Query* queries, int64_t count, const Wanted& wanted, Best* results) {
  const Context& context = queries[0];
  Workspace& workspace = context.workspace;
  const int64_t k = context.view.k, integers = 8 * context.view.sketch_groups;
  workspace.sketched_queries.resize(count * integers);
  workspace.cluster_states.resize(count * k);
  workspace.promises.resize(count * k);
  std::vector<BestSearch> searches;
  searches.reserve(count);
  for (int64_t i = 0; i < count; ++i)
    searches.emplace_back(queries[i], wanted, results[i],
                          SearchMemory{workspace.sketched_queries.data() + i * integers,
                                       workspace.cluster_states.data() + i * k, workspace.promises.data() + i * k});
  constexpr int64_t first_clusters = 3;  // whose items give a score to reach
  for (BestSearch& search : searches)
    search_promising(search, wanted.probes < 0 ? first_clusters : std::min(first_clusters, wanted.probes));
  const double allowed = context.view.recall.allowed(wanted.missed);
  if (allowed > 0) {
    // In two steps: after the first, the score to reach is better known, and fewer clusters matter.
    for (BestSearch& search : searches) search.choose_by_share(std::max(0.2, allowed));
    search_chosen(context, searches);
    for (BestSearch& search : searches) search.choose_by_share(allowed);
  } else {
    for (BestSearch& search : searches) search.choose(wanted.probes);
  }
  search_chosen(context, searches);
  for (BestSearch& search : searches) {
    search_promising(search, 0);
    search.finish();
  }
}

void top_k(const std::vector<Query>& queries, const BestResults& results) {
  std::vector<Query> searching;
  for (const Query& query : queries) {
    if (query.lists())
      best_allowed(query, results);
    else
      searching.push_back(query);
  }
  if (searching.empty()) return;
  const Request& request = searching[0].request;
  const int64_t k = results.k, count = (int64_t)searching.size();
  std::vector<double>& scores = searching[0].workspace.best_scores;
  scores.resize(count * k);
  std::vector<Best> found;
  found.reserve(count);
  for (int64_t i = 0; i < count; ++i) found.push_back({results.positions + searching[i].number * k, &scores[i * k]});
  top_k(searching.data(), count, {k, request.probes, request.tolerance, request.most, request.margin}, found.data());
  for (int64_t i = 0; i < count; ++i) {
    const Best& best = found[i];
    const int64_t q = searching[i].number;
    for (int64_t j = 0; j < k; ++j) {
      results.scores[q * k + j] = (float)best.scores[j];
      results.proven[q * k + j] = best.scores[j] >= best.beyond;
    }
    const double gap = best.beyond - best.scores[k - 1];
    results.gap[q] = request.margin > 0 ? gap : std::max(0.0, gap);
    results.missed[q] = best.missed;
    results.scored[q] = best.scored;
  }
}

}  // namespace softindex
