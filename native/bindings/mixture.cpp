// Binds a catalogue of a learned similarity: the best of all items, listed items, and the bounds that prove them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "base/parallel.h"
#include "bindings/arrays.h"

using namespace nanobind::literals;

namespace softindex {
namespace {

constexpr float nothing = -std::numeric_limits<float>::infinity();
constexpr int64_t tiles_per_task = 8;
constexpr int64_t list_bytes = 64 << 20;  // lists of the best of each pair that one thread holds at once

// The best `keep` of what is offered; equal scores by their position. What was beaten is thrown away in bulk.
class Selection {
 public:
  // Scores below the threshold are passed over: it is for the caller to know that enough others come.
  explicit Selection(int64_t keep, float threshold = std::numeric_limits<float>::lowest())
      : keep_(keep), threshold_(threshold) {}

  // A tile of scores. NaN and -infinity are never kept.
  void offer(const Kernels& kernels, const float* scores, int64_t count, int64_t first) {
    uint64_t reaching = kernels.mixture_reaching(scores, threshold_);
    if (count < 64) reaching &= ((uint64_t)1 << count) - 1;
    for (; reaching != 0; reaching &= reaching - 1) {
      const int64_t i = __builtin_ctzll(reaching);
      held_.push_back(key(scores[i], first + i));
    }
    if ((int64_t)held_.size() >= 2 * keep_ + 64) shorten();
  }
  int64_t size() const { return std::min(keep_, (int64_t)held_.size()); }
  void absorb(const Selection& other) { held_.insert(held_.end(), other.held_.begin(), other.held_.end()); }

  // How many there are, best first.
  int64_t finish(int64_t* positions, float* scores) {
    shorten();
    std::sort(held_.begin(), held_.end());
    for (size_t i = 0; i < held_.size(); ++i) {
      positions[i] = position(held_[i]);
      scores[i] = score(held_[i]);
    }
    return (int64_t)held_.size();
  }

  // How many there are, in the order of their positions, which are below n. marks: memory to work in.
  int64_t finish(int64_t* positions, int64_t n, std::vector<uint64_t>& marks) {
    shorten();
    const int64_t count = (int64_t)held_.size(), words = (n + 63) / 64;
    if (words > 16 * count) {  // few of many
      for (int64_t i = 0; i < count; ++i) positions[i] = position(held_[i]);
      std::sort(positions, positions + count);
      return count;
    }
    marks.assign(words, 0);  // a bit for each item: reading them all is less work than to sort
    for (uint64_t key : held_) marks[position(key) / 64] |= (uint64_t)1 << position(key) % 64;
    for (int64_t word = 0; word < words; ++word)
      for (uint64_t bits = marks[word]; bits != 0; bits &= bits - 1) *positions++ = word * 64 + __builtin_ctzll(bits);
    return count;
  }

 private:
  // One integer that sorts as the pair does, larger scores first: comparing it is half of the work of a selection.
  static uint64_t key(float score, int64_t position) {
    uint32_t bits;
    score += 0.0f;  // there is one zero
    std::memcpy(&bits, &score, sizeof(bits));
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)~bits << 32 | (uint64_t)position;
  }
  static int64_t position(uint64_t key) { return (int64_t)(uint32_t)key; }
  static float score(uint64_t key) {
    uint32_t bits = ~(uint32_t)(key >> 32);
    bits = bits >> 31 ? bits & 0x7FFFFFFFu : ~bits;
    float result;
    std::memcpy(&result, &bits, sizeof(bits));
    return result;
  }
  void shorten() {
    if ((int64_t)held_.size() <= keep_) return;
    std::nth_element(held_.begin(), held_.begin() + keep_ - 1, held_.end());
    held_.resize(keep_);
    threshold_ = score(held_[keep_ - 1]);
  }

  int64_t keep_;
  float threshold_;
  std::vector<uint64_t> held_;
};

// Positions that each query leaves out: one row of them for all, or one for each.
struct Exclusions {
  In<int64_t, 1> offsets, positions;

  void check(int64_t b, int64_t n) const {
    const int64_t rows = (int64_t)offsets.shape(0) - 1;
    expect(rows == 1 || rows == b, "exclusions do not fit the queries");
    const int64_t *at = offsets.data(), total = (int64_t)positions.shape(0);
    expect(at[0] == 0 && at[rows] == total, "exclusions are out of order");
    for (int64_t row = 0; row < rows; ++row) expect(at[row] <= at[row + 1], "exclusions are out of order");
    for (int64_t i = 0; i < total; ++i)
      expect(positions.data()[i] >= 0 && positions.data()[i] < n, "there is no such item");
  }
  // Strike out the excluded ones of the items first .. first + count.
  void apply(int64_t query, int64_t first, int64_t count, float* scores) const {
    if (positions.shape(0) == 0) return;
    const int64_t row = offsets.shape(0) == 2 ? 0 : query;
    const int64_t *begin = positions.data() + offsets.data()[row], *end = positions.data() + offsets.data()[row + 1];
    for (const int64_t* at = std::lower_bound(begin, end, first); at != end && *at < first + count; ++at)
      scores[*at - first] = nothing;
  }
};

int64_t up_to_four(int64_t count) { return (count + 3) / 4 * 4; }

// (rows, length) as the kernels take it: four rows at a time, column after column, padded with zeros.
template <class Real>
std::vector<Real> pack(const Real* matrix, int64_t rows, int64_t length) {
  std::vector<Real> packed(up_to_four(rows) * length, 0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < length; ++j) packed[r / 4 * 4 * length + j * 4 + r % 4] = matrix[r * length + j];
  return packed;
}

// The weights of a gate, packed, and the mixture that points to them.
template <class Real>
struct Packed {
  std::vector<Real> first, first_bias, second, second_bias;
  Mixture<Real> mixture;

  Packed(int64_t query_parts, int64_t item_parts, int64_t d)
      : mixture{query_parts, item_parts, d, 0, false, nullptr, nullptr, nullptr, nullptr} {}
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;

  void set(const float* first_rows, const float* biases, const float* second_rows, const float* second_biases,
           int64_t rows) {
    const int64_t pairs = mixture.query_parts * mixture.item_parts, hidden = up_to_four(rows);
    std::vector<Real> padded_first(hidden * pairs, 0), padded_second(pairs * hidden, 0);
    std::copy_n(first_rows, rows * pairs, padded_first.begin());
    for (int64_t p = 0; p < pairs; ++p) std::copy_n(second_rows + p * rows, rows, padded_second.begin() + p * hidden);
    first = pack(padded_first.data(), hidden, pairs);
    second = pack(padded_second.data(), pairs, hidden);
    first_bias.assign(hidden, 0);
    second_bias.assign(up_to_four(pairs), 0);
    std::copy_n(biases, rows, first_bias.begin());
    std::copy_n(second_biases, pairs, second_bias.begin());
    mixture.hidden = hidden;
    mixture.gated = true;
    mixture.first = first.data();
    mixture.first_bias = first_bias.data();
    mixture.second = second.data();
    mixture.second_bias = second_bias.data();
  }
};

// Memory that begins with a cache line: a register read across two of them costs two reads.
template <class T>
struct OnLines {
  using value_type = T;
  static constexpr std::align_val_t line{64};

  OnLines() = default;
  template <class Other>
  OnLines(const OnLines<Other>&) {}
  T* allocate(size_t count) { return (T*)::operator new(count * sizeof(T), line); }
  void deallocate(T* held, size_t) { ::operator delete(held, line); }
  bool operator==(const OnLines&) const { return true; }
  bool operator!=(const OnLines&) const { return false; }
};

template <class Real>
struct Scratch {
  std::vector<Real, OnLines<Real>> columns, gates, work, scores;

  Scratch(const Mixture<Real>& m, bool gated, int64_t tile)
      : columns(m.item_parts * m.d * tile), gates(gated ? m.query_parts * m.item_parts * tile : 0),
        work((2 * m.query_parts * m.item_parts + m.hidden) * tile), scores(tile) {}
};

// Keeps the arrays alive that it reads.
class BoundMixture {
 public:
  BoundMixture(In<float, 3> items, std::optional<In<float, 2>> gates, In<float, 2> averages, int64_t query_parts,
               std::optional<In<float, 2>> first, std::optional<In<float, 1>> first_bias,
               std::optional<In<float, 2>> second, std::optional<In<float, 1>> second_bias, const std::string& target)
      : items_(items), gates_(gates), averages_(averages), kernels_(kernels_named(target)), n_(items.shape(0)),
        pairs_(query_parts * (int64_t)items.shape(1)), single_(query_parts, items.shape(1), items.shape(2)),
        precise_(query_parts, items.shape(1), items.shape(2)) {
    expect(n_ >= 1 && query_parts >= 1 && items.shape(1) >= 1 && items.shape(2) >= 1, "the catalogue is empty");
    expect(n_ < (int64_t)1 << 32, "the catalogue holds more than 2^32 items");
    expect(fits(averages, n_, items.shape(2)) && (!gates || fits(*gates, n_, pairs_)), "shapes disagree");
    if (!first) return;
    const int64_t hidden = first->shape(0);
    expect(first_bias && second && second_bias && fits(*first, hidden, pairs_) && fits(*first_bias, hidden) &&
               fits(*second, pairs_, hidden) && fits(*second_bias, pairs_),
           "the weights of the gate disagree");
    single_.set(first->data(), first_bias->data(), second->data(), second_bias->data(), hidden);
    precise_.set(first->data(), first_bias->data(), second->data(), second_bias->data(), hidden);
  }

  // The best of all items: positions and scores (b, keep), best first, -1 where there are fewer.
  void best(In<float, 3> queries, std::optional<In<float, 2>> gates, In<int64_t, 1> offsets, In<int64_t, 1> excluded,
            int64_t threads, Out<int64_t, 2> positions, Out<float, 2> scores) const {
    const int64_t b = queries.shape(0), keep = positions.shape(1);
    check_queries(queries, gates);
    expect(keep >= 1 && fits(positions, b, keep) && fits(scores, b, keep), unfit);
    const Exclusions out = {offsets, excluded};
    out.check(b, n_);
    nb::gil_scoped_release release;
    const std::vector<float> packed = pack_queries<float>(queries);
    std::vector<Selection> all(b, Selection(keep));
    over_tiles(threads, all, [&](int64_t first, int64_t count, auto& scratch, auto& mine) {
      gather(nullptr, first, count, scratch);
      for (int64_t q = 0; q < b; ++q) {
        score(packed, gates, q, scratch);
        out.apply(q, first, count, scratch.scores.data());
        mine[q].offer(kernels_, scratch.scores.data(), count, first);
      }
    });
    finish(all, keep, threads, positions.data(), scores.data());
  }

  // The items whose mean component has the largest product with a query (b, d): positions (b, keep), increasing.
  void best_average(In<float, 2> queries, In<int64_t, 1> offsets, In<int64_t, 1> excluded, int64_t threads,
                    Out<int64_t, 2> positions) const {
    const int64_t b = queries.shape(0), keep = positions.shape(1), d = single_.mixture.d;
    const int64_t tile = kernels_.mixture_tile();
    expect(fits(queries, b, d) && keep >= 1 && fits(positions, b, keep), unfit);
    const Exclusions out = {offsets, excluded};
    out.check(b, n_);
    nb::gil_scoped_release release;
    const std::vector<float> packed = pack(queries.data(), b, d);
    const Mixture<float> plain = {b, 1, d, 0, false, nullptr, nullptr, nullptr, nullptr};
    const auto score = [&](int64_t first, int64_t count, auto& scratch) {
      scratch.work.resize(std::max<size_t>(scratch.work.size(), b * tile));
      kernels_.mixture_gather(averages_.data() + first * d, d, nullptr, count, scratch.columns.data());
      kernels_.mixture_logits(plain, packed.data(), scratch.columns.data(), scratch.work.data());
      for (int64_t q = 0; q < b; ++q) out.apply(q, first, count, scratch.work.data() + q * tile);
    };
    const auto search = [&](std::vector<Selection>& all) {
      over_tiles(threads, all, [&](int64_t first, int64_t count, auto& scratch, auto& mine) {
        score(first, count, scratch);
        for (int64_t q = 0; q < b; ++q) mine[q].offer(kernels_, scratch.work.data() + q * tile, count, first);
      });
    };
    std::vector<Selection> all = begin_high(b, keep, score);
    search(all);
    // A threshold that was too high is a rare misfortune: then everything is gone through without.
    if (std::any_of(all.begin(), all.end(), [&](const Selection& one) { return one.size() < keep; })) {
      all.assign(b, Selection(keep));
      search(all);
    }
    finish(all, keep, threads, positions.data(), nullptr);
  }

  // largest (b, n): the largest logit of each item, -infinity where it is excluded. listed (b, pairs, keep): the items
  // with the largest logits of each pair.
  void largest(In<float, 3> queries, In<int64_t, 1> offsets, In<int64_t, 1> excluded, int64_t threads,
               Out<float, 2> largest, std::optional<Out<int64_t, 3>> listed) const {
    const int64_t b = queries.shape(0), keep = listed ? listed->shape(2) : 0, tile = kernels_.mixture_tile();
    check_queries(queries, std::nullopt, false);
    expect(fits(largest, b, n_) && (!listed || (keep >= 1 && fits(*listed, b, pairs_, keep))), unfit);
    const Exclusions out = {offsets, excluded};
    out.check(b, n_);
    nb::gil_scoped_release release;
    const std::vector<float> packed = pack_queries<float>(queries);
    const int64_t lists = keep > 0 ? pairs_ : 0;
    const int64_t bytes = lists * (2 * keep + 64) * (int64_t)sizeof(uint64_t);
    const int64_t group = lists == 0 ? b : std::min(b, std::max<int64_t>(1, list_bytes / bytes));
    for (int64_t begin = 0; begin < b; begin += group) {
      const int64_t end = std::min(b, begin + group);
      std::vector<Selection> all((end - begin) * lists, Selection(keep));
      over_tiles(threads, all, [&](int64_t first, int64_t count, auto& scratch, auto& mine) {
        gather(nullptr, first, count, scratch);
        for (int64_t q = begin; q < end; ++q) {
          float *logits = scratch.work.data(), *to = largest.data() + q * n_ + first;
          kernels_.mixture_logits(single_.mixture, query(packed, q), scratch.columns.data(), logits);
          kernels_.mixture_largest(single_.mixture, logits, scratch.scores.data());
          std::copy_n(scratch.scores.data(), count, to);
          out.apply(q, first, count, to);
          for (int64_t p = 0; p < lists; ++p) {
            out.apply(q, first, count, logits + p * tile);
            mine[(q - begin) * lists + p].offer(kernels_, logits + p * tile, count, first);
          }
        }
      });
      if (lists > 0) finish(all, keep, threads, listed->data() + begin * lists * keep, nullptr);
    }
  }

  // scores (total) of listed items: query q has positions offsets[q] .. offsets[q + 1].
  void score_listed(In<float, 3> queries, std::optional<In<float, 2>> gates, In<int64_t, 1> offsets,
                    In<int64_t, 1> positions, int64_t threads, Out<float, 1> scores) const {
    check_queries(queries, gates);
    check_lists(queries.shape(0), offsets, positions, scores.shape(0));
    nb::gil_scoped_release release;
    score_lists(pack_queries<float>(queries), gates, offsets, positions, threads, scores.data(),
                [](int64_t, int64_t) {});
  }

  // The best of the listed items, whose positions increase: positions and scores (b, keep) as those of `best`.
  void best_listed(In<float, 3> queries, std::optional<In<float, 2>> gates, In<int64_t, 1> offsets,
                   In<int64_t, 1> listed, int64_t threads, Out<int64_t, 2> positions, Out<float, 2> scores) const {
    const int64_t b = queries.shape(0), keep = positions.shape(1), tile = kernels_.mixture_tile();
    check_queries(queries, gates);
    check_lists(b, offsets, listed, listed.shape(0));
    expect(keep >= 1 && fits(positions, b, keep) && fits(scores, b, keep), unfit);
    nb::gil_scoped_release release;
    std::fill_n(positions.data(), b * keep, -1);
    std::fill_n(scores.data(), b * keep, nothing);
    std::vector<float> all(listed.shape(0) + tile);  // a tile more, as selections read whole ones
    std::vector<std::atomic<int64_t>> missing(b);    // scores of each query
    for (int64_t q = 0; q < b; ++q) missing[q] = offsets.data()[q + 1] - offsets.data()[q];
    score_lists(pack_queries<float>(queries), gates, offsets, listed, threads, all.data(),
                [&](int64_t q, int64_t made) {
                  if (missing[q].fetch_sub(made) > made) return;
                  const int64_t begin = offsets.data()[q], count = offsets.data()[q + 1] - begin;
                  Selection mine(keep);
                  for (int64_t first = 0; first < count; first += tile)
                    mine.offer(kernels_, all.data() + begin + first, std::min(tile, count - first), first);
                  int64_t* at = positions.data() + q * keep;
                  const int64_t found = mine.finish(at, scores.data() + q * keep);
                  for (int64_t i = 0; i < found; ++i) at[i] = listed.data()[begin + at[i]];
                });
  }

  // The same in double.
  void score_precisely(In<double, 3> queries, std::optional<In<double, 2>> gates, In<int64_t, 1> offsets,
                       In<int64_t, 1> positions, int64_t threads, Out<double, 1> scores) const {
    check_queries(queries, gates);
    check_lists(queries.shape(0), offsets, positions, scores.shape(0));
    nb::gil_scoped_release release;
    const std::vector<double> packed = pack_queries<double>(queries);
    const int64_t tile = kernels_.mixture_tile_double(), length = precise_.mixture.item_parts * precise_.mixture.d;
    over_lists(offsets, tile, threads, precise_.mixture, [&](int64_t q, int64_t begin, int64_t count, auto& scratch) {
      const int64_t* which = positions.data() + begin;
      kernels_.mixture_gather_double(items_.data(), length, which, count, scratch.columns.data());
      if (gates) kernels_.mixture_gather_double(gates_->data(), pairs_, which, count, scratch.gates.data());
      kernels_.mixture_scores_double(precise_.mixture, packed.data() + q * packed_length(),
                                     gates ? gates->data() + q * pairs_ : nullptr, scratch.columns.data(),
                                     scratch.gates.data(), scratch.work.data(), scratch.scores.data());
      std::copy_n(scratch.scores.data(), count, scores.data() + begin);
    });
  }

 private:
  template <class Queries, class Gates>
  void check_queries(const Queries& queries, const std::optional<Gates>& gates, bool scored = true) const {
    const int64_t b = queries.shape(0);
    expect(fits(queries, b, single_.mixture.query_parts, single_.mixture.d), unfit);
    expect(!gates || fits(*gates, b, pairs_), unfit);
    const bool wanted = single_.mixture.gated && gates_.has_value();
    expect(!scored || gates.has_value() == wanted, "the gates of queries and items disagree");
  }
  void check_queries(const In<float, 3>& queries, std::nullopt_t, bool scored) const {
    check_queries(queries, std::optional<In<float, 2>>(), scored);
  }
  void check_lists(int64_t b, const In<int64_t, 1>& offsets, const In<int64_t, 1>& positions, int64_t total) const {
    expect(fits(offsets, b + 1) && fits(positions, total), unfit);
    expect(offsets.data()[0] == 0 && offsets.data()[b] == total, unfit);
    for (int64_t q = 0; q < b; ++q) expect(offsets.data()[q] <= offsets.data()[q + 1], "the lists are out of order");
    for (int64_t i = 0; i < total; ++i)
      expect(positions.data()[i] >= 0 && positions.data()[i] < n_, "there is no such item");
  }

  int64_t packed_length() const { return up_to_four(single_.mixture.query_parts) * single_.mixture.d; }
  const float* query(const std::vector<float>& packed, int64_t q) const { return packed.data() + q * packed_length(); }
  template <class Real>
  std::vector<Real> pack_queries(const In<Real, 3>& queries) const {
    const int64_t parts = single_.mixture.query_parts, d = single_.mixture.d;
    std::vector<Real> packed;
    for (size_t q = 0; q < queries.shape(0); ++q) {
      const std::vector<Real> one = pack(queries.data() + q * parts * d, parts, d);
      packed.insert(packed.end(), one.begin(), one.end());
    }
    return packed;
  }
  void gather(const int64_t* which, int64_t first, int64_t count, Scratch<float>& scratch) const {
    const int64_t length = single_.mixture.item_parts * single_.mixture.d;
    kernels_.mixture_gather(items_.data() + first * length, length, which, count, scratch.columns.data());
    if (!scratch.gates.empty())
      kernels_.mixture_gather(gates_->data() + first * pairs_, pairs_, which, count, scratch.gates.data());
  }
  void score(const std::vector<float>& packed, const std::optional<In<float, 2>>& gates, int64_t q,
             Scratch<float>& scratch) const {
    kernels_.mixture_scores(single_.mixture, query(packed, q), gates ? gates->data() + q * pairs_ : nullptr,
                            scratch.columns.data(), scratch.gates.data(), scratch.work.data(), scratch.scores.data());
  }

  // Asks for the next tile's items while this one is computed: they lie anywhere.
  void fetch(const int64_t* which, int64_t count) const {
    const int64_t length = single_.mixture.item_parts * single_.mixture.d, line = 16;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < length; j += line) __builtin_prefetch(items_.data() + which[i] * length + j);
      for (int64_t j = 0; gates_ && j < pairs_; j += line) __builtin_prefetch(gates_->data() + which[i] * pairs_ + j);
    }
  }

  // done(query, count) after each stretch of scores.
  template <class Done>
  void score_lists(const std::vector<float>& packed, const std::optional<In<float, 2>>& gates,
                   const In<int64_t, 1>& offsets, const In<int64_t, 1>& listed, int64_t threads, float* to,
                   const Done& done) const {
    const int64_t tile = kernels_.mixture_tile();
    over_lists(offsets, tile, threads, single_.mixture, [&](int64_t q, int64_t begin, int64_t count, auto& scratch) {
      gather(listed.data() + begin, 0, count, scratch);
      const int64_t ahead = begin + count;
      fetch(listed.data() + ahead, std::min(tile, offsets.data()[q + 1] - ahead));
      score(packed, gates, q, scratch);
      std::copy_n(scratch.scores.data(), count, to + begin);
      done(q, count);
    });
  }

  // Selections of b queries that begin at what some tiles, evenly spread, tell of the last score to be kept: most of
  // the work of a selection is with scores that are kept for a while only.
  template <class Score>
  std::vector<Selection> begin_high(int64_t b, int64_t keep, const Score& score) const {
    const int64_t tile = kernels_.mixture_tile(), tiles = n_ / tile, sampled = std::min<int64_t>(tiles / 8, 64);
    const double expected = (double)keep * sampled * tile / n_;
    const int64_t rank =
        (int64_t)(expected + 4 * std::sqrt(expected) + 4);  // far enough down to be too low, not too high
    if (rank >= sampled * tile) return std::vector<Selection>(b, Selection(keep));
    Scratch<float> scratch(single_.mixture, gates_.has_value(), tile);
    std::vector<std::vector<float>> seen(b);
    for (int64_t i = 0; i < sampled; ++i) {
      score(i * (tiles / sampled) * tile, tile, scratch);
      for (int64_t q = 0; q < b; ++q)
        seen[q].insert(seen[q].end(), scratch.work.data() + q * tile, scratch.work.data() + (q + 1) * tile);
    }
    std::vector<Selection> all;
    for (std::vector<float>& scores : seen) {
      std::nth_element(scores.begin(), scores.begin() + rank, scores.end(), std::greater<float>());
      all.emplace_back(keep, std::max(scores[rank], std::numeric_limits<float>::lowest()));
    }
    return all;
  }

  // work(first item, count, scratch, selections of this thread) for every tile of items; the selections are merged.
  template <class Work>
  void over_tiles(int64_t threads, std::vector<Selection>& all, const Work& work) const {
    const int64_t tile = kernels_.mixture_tile(), step = tile * tiles_per_task;
    const std::vector<Selection> fresh = all;
    std::mutex guard;
    parallel((n_ + step - 1) / step, threads, [&](const auto& next) {
      Scratch<float> scratch(single_.mixture, gates_.has_value(), tile);
      std::vector<Selection> mine = fresh;
      for (int64_t task = next(); task >= 0; task = next())
        for (int64_t first = task * step; first < std::min(n_, (task + 1) * step); first += tile)
          work(first, std::min(tile, n_ - first), scratch, mine);
      std::lock_guard<std::mutex> hold(guard);
      for (size_t i = 0; i < all.size(); ++i) all[i].absorb(mine[i]);
    });
  }

  // work(query, begin, count, scratch) for every stretch of at most `step` listed items.
  template <class Real, class Work>
  void over_lists(const In<int64_t, 1>& offsets, int64_t step, int64_t threads, const Mixture<Real>& mixture,
                  const Work& work) const {
    struct Stretch {
      int64_t query, begin, count;
    };
    std::vector<Stretch> tasks;
    for (int64_t q = 0; q + 1 < (int64_t)offsets.shape(0); ++q)
      for (int64_t begin = offsets.data()[q]; begin < offsets.data()[q + 1]; begin += step)
        tasks.push_back({q, begin, std::min(step, offsets.data()[q + 1] - begin)});
    parallel((int64_t)tasks.size(), threads, [&](const auto& next) {
      Scratch<Real> scratch(mixture, gates_.has_value(), step);
      for (int64_t task = next(); task >= 0; task = next())
        work(tasks[task].query, tasks[task].begin, tasks[task].count, scratch);
    });
  }

  // positions and scores (all, keep), best first; without scores, positions in increasing order. -1 where there are
  // fewer.
  void finish(std::vector<Selection>& all, int64_t keep, int64_t threads, int64_t* positions, float* scores) const {
    // To start threads takes as long as to sort a few thousand.
    parallel((int64_t)all.size(), (int64_t)all.size() * keep < 1 << 16 ? 1 : threads, [&](const auto& next) {
      std::vector<uint64_t> marks;
      for (int64_t i = next(); i >= 0; i = next()) {
        int64_t *at = positions + i * keep, count;
        if (scores != nullptr) {
          count = all[i].finish(at, scores + i * keep);
          std::fill(scores + i * keep + count, scores + (i + 1) * keep, nothing);
        } else {
          count = all[i].finish(at, n_, marks);
        }
        std::fill(at + count, at + keep, -1);
      }
    });
  }

  In<float, 3> items_;
  std::optional<In<float, 2>> gates_;
  In<float, 2> averages_;
  const Kernels& kernels_;
  const int64_t n_, pairs_;
  Packed<float> single_;
  Packed<double> precise_;
};

}  // namespace

void bind_mixture(nb::module_& m) {
  nb::class_<BoundMixture>(m, "Mixture")
      .def(nb::init<In<float, 3>, std::optional<In<float, 2>>, In<float, 2>, int64_t, std::optional<In<float, 2>>,
                    std::optional<In<float, 1>>, std::optional<In<float, 2>>, std::optional<In<float, 1>>,
                    const std::string&>(),
           "items"_a, "gates"_a.none(), "averages"_a, "query_parts"_a, "first"_a.none(), "first_bias"_a.none(),
           "second"_a.none(), "second_bias"_a.none(), "target"_a = "")
      .def("best", &BoundMixture::best, "queries"_a, "gates"_a.none(), "offsets"_a, "excluded"_a, "threads"_a,
           "positions"_a, "scores"_a)
      .def("best_average", &BoundMixture::best_average, "queries"_a, "offsets"_a, "excluded"_a, "threads"_a,
           "positions"_a)
      .def("largest", &BoundMixture::largest, "queries"_a, "offsets"_a, "excluded"_a, "threads"_a, "largest"_a,
           "listed"_a.none())
      .def("score_listed", &BoundMixture::score_listed, "queries"_a, "gates"_a.none(), "offsets"_a, "positions"_a,
           "threads"_a, "scores"_a)
      .def("best_listed", &BoundMixture::best_listed, "queries"_a, "gates"_a.none(), "offsets"_a, "listed"_a,
           "threads"_a, "positions"_a, "scores"_a)
      .def("score_precisely", &BoundMixture::score_precisely, "queries"_a, "gates"_a.none(), "offsets"_a, "positions"_a,
           "threads"_a, "scores"_a);
}

}  // namespace softindex
