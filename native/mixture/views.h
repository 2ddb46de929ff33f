// Plain views of the arrays that learned similarities read and write.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/arrays.h"

namespace softindex {

constexpr float no_score = -std::numeric_limits<float>::infinity();

struct MixtureShape {
  int64_t query_parts, item_parts, d;

  int64_t pairs() const { return query_parts * item_parts; }
  int64_t item_length() const { return item_parts * d; }
};

struct MixtureItems {
  int64_t n;
  const float* components;  // (n, item_parts, d)
  const float* gates;       // (n, pairs), or null
  const float* averages;    // (n, d)
};

// The two layers of the gate; `first` is null if there is none.
struct GateWeights {
  int64_t hidden = 0;
  const float *first = nullptr, *first_bias = nullptr;    // (hidden, pairs), (hidden)
  const float *second = nullptr, *second_bias = nullptr;  // (pairs, hidden), (pairs)
};

// The gate in sixteen bits; `first` is null if there is none.
struct ScreenWeights {
  const int16_t *first = nullptr, *second = nullptr;  // (hidden, pairs), (pairs, hidden)
  const int64_t* first_bias = nullptr;                // (hidden) that fit into 32 bits
  const int16_t *bases = nullptr, *slopes = nullptr;  // (screen_pieces)
  const int64_t* steps = nullptr;                     // factor and width of a piece
  const float* scales = nullptr;                      // of logits and outputs, then the slack per length
};

// Items that are close to each other, and what they differ in, in few dimensions. Cluster c holds the items
// order[offsets[c]] .. order[offsets[c + 1]]: the places of its items in the order of the clusters.
struct MixtureClusters {
  int64_t count = 0, rank = 0;       // no clusters if count is 0
  const int64_t* offsets = nullptr;  // (count + 1)
  const int64_t* order = nullptr;    // (n) position of the item at each place
  const float* centres = nullptr;    // (count, item_parts, d) mean components
  const float* gates = nullptr;      // (count, pairs) mean gates, or null
  const float* basis = nullptr;      // (rank, item_parts, d) directions in which items differ from their centres
  const float* features = nullptr;   // (n, rank) of the item at each place: its difference, in these directions
  const float* spreads = nullptr;    // (count, rank) standard deviation of the features

  int64_t size(int64_t cluster) const { return offsets[cluster + 1] - offsets[cluster]; }
};

// Everything of a learned similarity that scoring reads.
struct MixtureView {
  MixtureShape shape;
  MixtureItems items;
  GateWeights gate;
  ScreenWeights screen;
  MixtureClusters clusters;
};

// Reads the arrays of a stored index of learned similarities, and checks everything the kernels rely on.
MixtureView make_mixture(const Arrays& arrays, int64_t query_parts);

// Queries in the layout that the kernels read, packed once per call: every function of a call reads the same numbers.
template <class Real>
struct MixtureQueries {
  int64_t count, packed_length, pairs;
  const Real* packed;     // (count, packed_length): four components at a time, see packing.h
  const Real* all_gates;  // (count, pairs), or null

  const Real* query(int64_t q) const { return packed + q * packed_length; }
  const Real* gates(int64_t q) const { return all_gates == nullptr ? nullptr : all_gates + q * pairs; }
};

// Positions for each query: those of query q are positions[offsets[q]] .. positions[offsets[q + 1]].
struct PositionLists {
  int64_t count;
  const int64_t* offsets;
  const int64_t* positions;

  int64_t total() const { return offsets[count]; }
  int64_t begin(int64_t query) const { return offsets[query]; }
  int64_t end(int64_t query) const { return offsets[query + 1]; }
};

// Increasing positions that each query leaves out: one list for all queries, or one for each.
struct Exclusions {
  PositionLists lists;

  // Overwrites the scores of excluded items among items first .. first + count.
  void apply(int64_t query, int64_t first, int64_t count, float* scores) const {
    if (lists.total() == 0) return;
    for (const int64_t *at = from(query, first), *end = end_of(query); at != end && *at < first + count; ++at)
      scores[*at - first] = no_score;
  }

  // How many of the items first .. first + count a query leaves out.
  int64_t among(int64_t query, int64_t first, int64_t count) const {
    return lists.total() == 0 ? 0 : from(query, first + count) - from(query, first);
  }

 private:
  int64_t row(int64_t query) const { return lists.count == 1 ? 0 : query; }
  const int64_t* end_of(int64_t query) const { return lists.positions + lists.end(row(query)); }
  const int64_t* from(int64_t query, int64_t first) const {
    return std::lower_bound(lists.positions + lists.begin(row(query)), end_of(query), first);
  }
};

// Results, one row of `keep` for each query. Rows with fewer results end with position -1 and score -infinity.
struct Ranking {
  int64_t keep;
  int64_t* positions;
  float* scores;  // null if only the positions are wanted
};

}  // namespace softindex
