// Goes through all items of a learned similarity, a tile at a time.
#include "mixture/scorer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/parallel.h"

namespace softindex {
namespace {

constexpr int64_t tiles_per_task = 8;
constexpr int64_t list_bytes = 64 << 20;  // memory for the lists of one thread

}  // namespace

void MixtureScorer::gather(const int64_t* which, int64_t first, int64_t count, Scratch<float>& scratch) const {
  const int64_t length = shape_.item_length(), pairs = shape_.pairs();
  kernels_.mixture_gather(items_.components + first * length, length, which, count, scratch.columns.data());
  if (!scratch.gates.empty())
    kernels_.mixture_gather(items_.gates + first * pairs, pairs, which, count, scratch.gates.data());
}

void MixtureScorer::score(const MixtureQueries<float>& queries, int64_t q, Scratch<float>& scratch) const {
  kernels_.mixture_scores(single_.mixture(), queries.query(q), queries.gates(q), scratch.columns.data(),
                          scratch.gates.data(), scratch.work.data(), scratch.scores.data());
}

void MixtureScorer::screen(const MixtureQueries<float>& queries, int64_t q, float slack,
                           Scratch<float>& scratch) const {
  kernels_.mixture_screen(single_.mixture(), screen_.with(slack), queries.query(q), queries.gates(q),
                          scratch.columns.data(), scratch.gates.data(), scratch.work.data(), scratch.scores.data());
}

// Calls work(first item, count, scratch, selections of this thread) for every tile of items, then merges the
// selections.
template <class Work>
void MixtureScorer::for_each_tile(int64_t threads, std::vector<Selection>& selections, const Work& work) const {
  const int64_t n = items_.n, tile = kernels_.mixture_tile(), step = tile * tiles_per_task;
  const std::vector<Selection> initial = selections;
  std::mutex guard;
  parallel((n + step - 1) / step, threads, [&](const auto& next) {
    Scratch<float> scratch(single_.mixture(), items_.gates != nullptr, tile);
    std::vector<Selection> local = initial;
    for (int64_t task = next(); task >= 0; task = next())
      for (int64_t first = task * step; first < std::min(n, (task + 1) * step); first += tile)
        work(first, std::min(tile, n - first), scratch, local);
    std::lock_guard<std::mutex> lock(guard);
    for (size_t i = 0; i < selections.size(); ++i) selections[i].merge(local[i]);
  });
}

// The `keep` largest of what score(q, scratch) leaves in scratch.scores for each tile.
template <class Score>
std::vector<Selection> MixtureScorer::select(const MixtureQueries<float>& queries, const Exclusions& excluded,
                                             int64_t keep, int64_t threads, const Score& score) const {
  std::vector<Selection> selections(queries.count, Selection(keep));
  for_each_tile(threads, selections, [&](int64_t first, int64_t count, auto& scratch, auto& local) {
    gather(nullptr, first, count, scratch);
    for (int64_t q = 0; q < queries.count; ++q) {
      score(q, scratch);
      excluded.apply(q, first, count, scratch.scores.data());
      local[q].offer(kernels_, scratch.scores.data(), count, first);
    }
  });
  return selections;
}

void MixtureScorer::best(const MixtureQueries<float>& queries, const Exclusions& excluded, int64_t threads,
                         const Ranking& result) const {
  std::vector<Selection> selections = select(queries, excluded, result.keep, threads,
                                             [&](int64_t q, Scratch<float>& scratch) { score(queries, q, scratch); });
  write(selections, items_.n, threads, result);
}

void MixtureScorer::bound(const MixtureQueries<float>& queries, const float* slacks, int64_t threads,
                          float* bounds) const {
  std::vector<Selection> none;
  for_each_tile(threads, none, [&](int64_t first, int64_t count, auto& scratch, auto&) {
    gather(nullptr, first, count, scratch);
    for (int64_t q = 0; q < queries.count; ++q) {
      screen(queries, q, slacks[q], scratch);
      std::copy_n(scratch.scores.data(), count, bounds + q * items_.n + first);
    }
  });
}

void MixtureScorer::best_screened(const MixtureQueries<float>& queries, const Exclusions& excluded,
                                  const Screening& screening, int64_t threads, const Ranking& result) const {
  std::vector<Selection> bounds =
      select(queries, excluded, screening.width, threads,
             [&](int64_t q, Scratch<float>& scratch) { screen(queries, q, screening.slacks[q], scratch); });
  parallel(queries.count, threads, [&](const auto& next) {
    Scratch<float> scratch(single_.mixture(), items_.gates != nullptr, kernels_.mixture_tile());
    for (int64_t q = next(); q >= 0; q = next()) settle(queries, q, bounds[q], screening, scratch, result);
  });
}

// Scores the items of one query in the order of their bounds until the next one cannot be among the k best.
void MixtureScorer::settle(const MixtureQueries<float>& queries, int64_t q, Selection& bounds,
                           const Screening& screening, Scratch<float>& scratch, const Ranking& result) const {
  const int64_t tile = kernels_.mixture_tile(), keep = result.keep;
  std::vector<int64_t> listed(screening.width);
  std::vector<float> bound(screening.width);
  const int64_t found = bounds.write_ranked(listed.data(), bound.data());
  const float margin = screening.margins[q];
  // Items beyond those that were kept have no larger bound than the last one.
  float outside = found < screening.width ? no_score : bound[found - 1];
  Selection scored(keep), best(screening.k);
  for (int64_t first = 0; first < found; first += tile) {
    if (first >= screening.k && bound[first] + margin <= best.least()) {
      outside = bound[first];
      break;
    }
    const int64_t count = std::min(tile, found - first), next = first + count;
    gather(listed.data() + first, 0, count, scratch);
    prefetch(listed.data() + next, std::min(tile, found - next));
    score(queries, q, scratch);
    scored.offer(kernels_, scratch.scores.data(), count, listed.data() + first);
    best.offer(kernels_, scratch.scores.data(), count, listed.data() + first);
  }
  screening.outside[q] = outside;
  float* scores = result.scores + q * keep;
  int64_t* positions = result.positions + q * keep;
  const int64_t ranked = scored.write_ranked(positions, scores);
  std::fill(scores + ranked, scores + keep, no_score);
  std::fill(positions + ranked, positions + keep, -1);
}

void MixtureScorer::best_average(const float* queries, int64_t count, const Exclusions& excluded, int64_t threads,
                                 const Ranking& result) const {
  const int64_t d = shape_.d, tile = kernels_.mixture_tile();
  const std::vector<float> packed = pack(queries, count, d);
  // All queries together are one query of `count` parts against items of one part.
  const Mixture<float> plain = {count, 1, d, 0, false, nullptr, nullptr, nullptr, nullptr};
  const auto score = [&](int64_t first, int64_t items, auto& scratch) {
    scratch.work.resize(std::max<size_t>(scratch.work.size(), count * tile));
    kernels_.mixture_gather(items_.averages + first * d, d, nullptr, items, scratch.columns.data());
    kernels_.mixture_logits(plain, packed.data(), scratch.columns.data(), scratch.work.data());
    for (int64_t q = 0; q < count; ++q) excluded.apply(q, first, items, scratch.work.data() + q * tile);
  };
  const auto search = [&](std::vector<Selection>& selections) {
    for_each_tile(threads, selections, [&](int64_t first, int64_t items, auto& scratch, auto& local) {
      score(first, items, scratch);
      for (int64_t q = 0; q < count; ++q) local[q].offer(kernels_, scratch.work.data() + q * tile, items, first);
    });
  };
  std::vector<Selection> selections = start_high(count, result.keep, score);
  search(selections);
  // In rare cases the initial threshold was too high: search again without one.
  if (std::any_of(selections.begin(), selections.end(),
                  [&](const auto& found) { return found.size() < result.keep; })) {
    selections.assign(count, Selection(result.keep));
    search(selections);
  }
  write(selections, items_.n, threads, {result.keep, result.positions, nullptr});
}

// Selections whose thresholds are estimated from a sample of evenly spaced tiles. Without a threshold, most of the work
// of a selection goes into scores that are soon dropped again.
template <class Score>
std::vector<Selection> MixtureScorer::start_high(int64_t count, int64_t keep, const Score& score) const {
  const int64_t n = items_.n, tile = kernels_.mixture_tile(), tiles = n / tile;
  // The more items are kept, the more a better threshold saves.
  const int64_t sampled = std::min<int64_t>(tiles / 8, keep >= n / 64 ? 256 : 64);
  const double expected = (double)keep * sampled * tile / n;
  // Low enough in the sample that the threshold is very likely to keep enough items.
  const int64_t rank = (int64_t)(expected + 6 * std::sqrt(expected) + 4);
  if (rank >= sampled * tile) return std::vector<Selection>(count, Selection(keep));
  Scratch<float> scratch(single_.mixture(), items_.gates != nullptr, tile);
  std::vector<std::vector<float>> sample(count);
  for (int64_t i = 0; i < sampled; ++i) {
    score(i * (tiles / sampled) * tile, tile, scratch);
    for (int64_t q = 0; q < count; ++q)
      sample[q].insert(sample[q].end(), scratch.work.data() + q * tile, scratch.work.data() + (q + 1) * tile);
  }
  std::vector<Selection> selections;
  for (std::vector<float>& scores : sample) {
    std::nth_element(scores.begin(), scores.begin() + rank, scores.end(), comes_before);
    selections.emplace_back(keep, std::max(scores[rank], std::numeric_limits<float>::lowest()));
  }
  return selections;
}

void MixtureScorer::largest(const MixtureQueries<float>& queries, const Exclusions& excluded, int64_t threads,
                            float* largest, const Ranking& listed) const {
  // With lists, a few queries at a time: each has one selection for each pair.
  int64_t group = queries.count;
  if (listed.keep > 0) {
    const int64_t bytes = shape_.pairs() * (2 * listed.keep + 64) * (int64_t)sizeof(uint64_t);
    group = std::min(group, std::max<int64_t>(1, list_bytes / bytes));
  }
  for (int64_t begin = 0; begin < queries.count; begin += group)
    largest_of_group(queries, begin, std::min(queries.count, begin + group), excluded, threads, largest, listed);
}

void MixtureScorer::largest_of_group(const MixtureQueries<float>& queries, int64_t begin, int64_t end,
                                     const Exclusions& excluded, int64_t threads, float* largest,
                                     const Ranking& listed) const {
  const int64_t tile = kernels_.mixture_tile(), lists = listed.keep > 0 ? shape_.pairs() : 0;
  std::vector<Selection> selections((end - begin) * lists, Selection(listed.keep));
  for_each_tile(threads, selections, [&](int64_t first, int64_t count, auto& scratch, auto& local) {
    gather(nullptr, first, count, scratch);
    for (int64_t q = begin; q < end; ++q) {
      float *logits = scratch.work.data(), *to = largest + q * items_.n + first;
      kernels_.mixture_logits(single_.mixture(), queries.query(q), scratch.columns.data(), logits);
      kernels_.mixture_largest(single_.mixture(), logits, scratch.scores.data());
      std::copy_n(scratch.scores.data(), count, to);
      excluded.apply(q, first, count, to);
      for (int64_t p = 0; p < lists; ++p) {
        excluded.apply(q, first, count, logits + p * tile);
        local[(q - begin) * lists + p].offer(kernels_, logits + p * tile, count, first);
      }
    }
  });
  if (lists > 0)
    write(selections, items_.n, threads, {listed.keep, listed.positions + begin * lists * listed.keep, nullptr});
}

}  // namespace softindex
