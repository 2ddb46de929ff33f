// Scores listed items of a learned similarity, wherever they lie in memory.
#include <algorithm>
#include <atomic>
#include <vector>

#include "base/parallel.h"
#include "mixture/scorer.h"

namespace softindex {

// Requests the next tile's items while the current one is computed: they may lie anywhere in memory.
void MixtureScorer::prefetch(const int64_t* which, int64_t count) const {
  const int64_t length = shape_.item_length(), pairs = shape_.pairs(), line = 16;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < length; j += line) __builtin_prefetch(items_.components + which[i] * length + j);
    if (items_.gates == nullptr) continue;
    for (int64_t j = 0; j < pairs; j += line) __builtin_prefetch(items_.gates + which[i] * pairs + j);
  }
}

namespace {

constexpr int64_t block_bytes = (int64_t)1 << 22;  // of items, which several queries read from the cache
constexpr int64_t least_tiles = 2;                 // that a query has in a block: its last one may be almost empty

// At most `tile` listed items of one query.
struct Stretch {
  int64_t query, begin, count;
};

// The stretches of all lists, in the order of the queries; or, where the lists are long, block by block of the items:
// queries that share items then read them once from memory, if positions increase.
std::vector<Stretch> cut(const PositionLists& lists, int64_t tile, int64_t n, int64_t item_bytes) {
  const int64_t sought = block_bytes / item_bytes;
  const bool dense = lists.count > 1 && lists.total() / (double)lists.count * sought >= (double)n * least_tiles * tile;
  const int64_t step = dense ? sought : n;
  std::vector<Stretch> stretches;
  std::vector<int64_t> done(lists.offsets, lists.offsets + lists.count);
  for (int64_t first = 0; first < n; first += step)
    for (int64_t q = 0; q < lists.count; ++q) {
      const int64_t* last = lists.positions + lists.end(q);
      const int64_t* end = first + step < n ? std::lower_bound(lists.positions + done[q], last, first + step) : last;
      for (; done[q] < end - lists.positions; done[q] += stretches.back().count)
        stretches.push_back({q, done[q], std::min(tile, end - lists.positions - done[q])});
    }
  return stretches;
}

}  // namespace

// Calls work(query, begin, count, scratch) for every stretch of the lists.
template <class Real, class Work>
void MixtureScorer::for_each_stretch(const PositionLists& lists, int64_t tile, int64_t threads,
                                     const Mixture<Real>& mixture, const Work& work) const {
  const int64_t item_bytes = sizeof(float) * (shape_.item_length() + (items_.gates == nullptr ? 0 : shape_.pairs()));
  const std::vector<Stretch> stretches = cut(lists, tile, items_.n, item_bytes);
  parallel((int64_t)stretches.size(), threads, [&](const auto& next) {
    Scratch<Real> scratch(mixture, items_.gates != nullptr, tile);
    for (int64_t task = next(); task >= 0; task = next())
      work(stretches[task].query, stretches[task].begin, stretches[task].count, scratch);
  });
}

// Calls done(query, count) after each stretch of scores.
template <class Done>
void MixtureScorer::score_lists(const MixtureQueries<float>& queries, const PositionLists& lists, int64_t threads,
                                float* scores, const Done& done) const {
  const int64_t tile = kernels_.mixture_tile();
  for_each_stretch(lists, tile, threads, single_.mixture(),
                   [&](int64_t q, int64_t begin, int64_t count, auto& scratch) {
                     gather(lists.positions + begin, 0, count, scratch);
                     const int64_t next = begin + count;
                     prefetch(lists.positions + next, std::min(tile, lists.end(q) - next));
                     score(queries, q, scratch);
                     std::copy_n(scratch.scores.data(), count, scores + begin);
                     done(q, count);
                   });
}

void MixtureScorer::score_listed(const MixtureQueries<float>& queries, const PositionLists& lists, int64_t threads,
                                 float* scores) const {
  score_lists(queries, lists, threads, scores, [](int64_t, int64_t) {});
}

void MixtureScorer::best_listed(const MixtureQueries<float>& queries, const PositionLists& lists, int64_t threads,
                                const Ranking& result) const {
  const int64_t keep = result.keep, tile = kernels_.mixture_tile();
  std::fill_n(result.positions, queries.count * keep, -1);
  std::fill_n(result.scores, queries.count * keep, no_score);
  std::vector<float> scores(lists.total() + tile);  // one more tile, because selections read full tiles
  std::vector<std::atomic<int64_t>> missing(queries.count);
  for (int64_t q = 0; q < queries.count; ++q) missing[q] = lists.end(q) - lists.begin(q);
  score_lists(queries, lists, threads, scores.data(), [&](int64_t q, int64_t scored) {
    // The thread that scores the last item of a query selects the best of its items.
    if (missing[q].fetch_sub(scored) > scored) return;
    const int64_t begin = lists.begin(q), count = lists.end(q) - begin;
    Selection selection(keep);
    for (int64_t first = 0; first < count; first += tile)
      selection.offer(kernels_, scores.data() + begin + first, std::min(tile, count - first), first);
    int64_t* positions = result.positions + q * keep;
    const int64_t found = selection.write_ranked(positions, result.scores + q * keep);
    for (int64_t i = 0; i < found; ++i) positions[i] = lists.positions[begin + positions[i]];
  });
}

void MixtureScorer::score_precisely(const MixtureQueries<double>& queries, const PositionLists& lists, int64_t threads,
                                    double* scores) const {
  const Mixture<double>& mixture = precise_.mixture();
  const int64_t length = shape_.item_length(), pairs = shape_.pairs(), tile = kernels_.mixture_tile_double();
  for_each_stretch(lists, tile, threads, mixture, [&](int64_t q, int64_t begin, int64_t count, auto& scratch) {
    const int64_t* which = lists.positions + begin;
    kernels_.mixture_gather_double(items_.components, length, which, count, scratch.columns.data());
    if (queries.all_gates != nullptr)
      kernels_.mixture_gather_double(items_.gates, pairs, which, count, scratch.gates.data());
    kernels_.mixture_scores_double(mixture, queries.query(q), queries.gates(q), scratch.columns.data(),
                                   scratch.gates.data(), scratch.work.data(), scratch.scores.data());
    std::copy_n(scratch.scores.data(), count, scores + begin);
  });
}

}  // namespace softindex
