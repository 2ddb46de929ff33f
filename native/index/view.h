// An index as the kernels see it: pointers into arrays that somebody else owns, and a few values derived from them.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/arrays.h"
#include "base/guard.h"
#include "index/recall_curve.h"
#include "index/request.h"
#include "index/tail_curve.h"
#include "kernels/kernels.h"

namespace softindex {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

enum class Forms { none, full, rank };

// Covariances of clusters or of the nodes of a tree: see records.Dispersion for what the integers mean.
struct Dispersion {
  Forms kind = Forms::none;
  int64_t rank = 0;
  const int16_t* full = nullptr;  // (rows, d(d+1)/2)
  const int8_t* low = nullptr;    // (rows, rank, d)
  const float* scales = nullptr;  // the value of one integer step: (rows) if full, else (rows, rank)
  const float* spread = nullptr;  // (rows), rank forms only
};

// What a law adds to the log mass of each cluster, or node, for its size.
struct LogSizes {
  const double* stored = nullptr;  // log of the summed weights; -infinity where empty
  std::vector<double> even;        // the average where anything is, for laws that ignore sizes; 0 for nodes
  // Log of the average weight exp(bias) of an item, as the sums of `stored` and of `even` have it.
  double log_weight = 0, even_log_weight = 0;

  const double* of(const Law& law) const { return law.size ? stored : even.data(); }
  double weight_of(const Law& law) const { return law.size ? log_weight : even_log_weight; }
};

// A binary tree over the clusters. Nodes that have children are numbered parents first, node 0 being the root; the
// children of node i are rows 2i and 2i + 1 of every other array, side by side for one scan.
struct Tree {
  int64_t inner = -1;                 // how many nodes have children: k - 1; below zero: there is no tree
  const int64_t* children = nullptr;  // (inner, 2): a node, or -1 - cluster
  std::vector<int64_t> splits;        // (inner): clusters below this number are on the left
  const float* means = nullptr;       // (2 inner, d)
  LogSizes sizes;                     // (2 inner)
  Dispersion dispersion;              // of the same kind and rank as that of the clusters
};

// Positions from `begin` on, up to the next run's, whose vectors lie side by side.
struct Run {
  int64_t begin;
  const float* rows;
  const float *first, *limit;    // of the array that they lie in, one past its last number
  int64_t segment = -1;          // number of that array among the segments; below zero: there is one array
  const Guard* guard = nullptr;  // checks it before it is read for the first time, or null
};

// Items kept in 8 or 16 bits per number, in place of vectors: an item is the centre of its cluster plus its scale times
// its integers, rounded to float32.
struct StoredResiduals {
  const int8_t* int8 = nullptr;    // (n, d), or null
  const int16_t* int16 = nullptr;  // (n, d), or null
  const float* scales = nullptr;   // (n)
  const float* centres = nullptr;  // (k, d)
  const float* bias = nullptr;     // (n) the last coordinate of items with a bias, or null: the integers are 0 there
  const float* lengths = nullptr;  // (k) the longest scale * integers plus |bias|
  const Guard* guard = nullptr;    // like that of the vectors

  double longest = 0;  // the largest of the lengths

  bool present() const { return int8 != nullptr || int16 != nullptr; }
};

// Items are numbered by position, cluster after cluster. Their vectors lie in one array, or as integers, or in the runs
// of a catalogue that changes, where some positions hold items that were removed: these have a dot product of
// -infinity, no weight, and are counted nowhere. Scan items by index/scan.h, which knows all that.
struct View {
  int64_t n = 0, d = 0, k = 0;
  int64_t extent = 0;     // positions: n, and those of items that were removed
  std::vector<Run> runs;  // none where there are residuals
  StoredResiduals residuals;
  const int64_t* removed = nullptr;  // (removed_count) positions, increasing
  int64_t removed_count = 0;
  const int64_t* offsets = nullptr;  // (k + 1): cluster c is positions offsets[c] .. offsets[c + 1]
  std::vector<int64_t> counts;       // (k) items of each cluster that were not removed
  int64_t largest_cluster = 0;       // positions
  int64_t first_known = 0;           // clusters from here on are scanned in every call, whatever the law
  bool any_empty = false;
  const float* bias = nullptr;      // (extent), or null
  const float* bias_max = nullptr;  // (k), or null

  const float* means = nullptr;      // (k, d)
  std::vector<double> half_squares;  // (k) half the squared length of the mean
  std::vector<double> log_counts;    // (k) log of the number of items, 0 where there are none
  LogSizes sizes;                    // (k)
  Dispersion dispersion;
  const float* excess = nullptr;    // (k): estimate + excess |q|^2 is at least q' S q
  const float* radii = nullptr;     // (k): largest distance of an item from the mean
  const float* norm_min = nullptr;  // (k)
  const float* norm_max = nullptr;  // (k)
  double longest = 0;               // the largest norm_max
  double shortest = 0;              // the smallest norm_min of a cluster that holds anything
  // (k): a dot product with an item of the cluster rounds in proportion to this: the length of the longest item, or of
  // centre and residual together; and the largest of them.
  std::vector<double> summed_lengths;
  double longest_sum = 0;
  const float* min_cosine = nullptr;  // (k) of the angle between an item and the mean, or null
  const float* reach = nullptr;       // (k) the largest x.mean / |mean|^2, or null

  int64_t outliers = 0;                        // items listed because they lie far from the mean of their cluster
  const int64_t* outlier_positions = nullptr;  // (outliers), increasing
  const float* outlier_vectors = nullptr;      // (outliers, d), the same items
  float farthest = 0;                          // largest distance of any other item from its mean

  const int8_t* codes = nullptr;        // (extent, d), or null: items as residuals about the mean of their cluster
  const Guard* codes_guard = nullptr;   // checks them before they are read for the first time, or null
  const float* code_scales = nullptr;   // (extent): the value of one step of an item's code
  const float* code_errors = nullptr;   // (k): largest distance of a residual from its scaled code
  const float* code_lengths = nullptr;  // (k): longest scaled code

  int64_t sketch_groups = 0;              // of eight coordinates, if there is a sketch: items in four bits per number
  const uint8_t* sketch = nullptr;        // (blocks, groups, 64), or null: see kernels/sketch_masks.cpp
  const Guard* sketch_guard = nullptr;    // like that of the vectors
  const float* sketch_scales = nullptr;   // (blocks, 16): the value of one step of an item's code
  const float* sketch_errors = nullptr;   // (k): largest distance of a residual from its scaled code, over its scale
  const float* sketch_lengths = nullptr;  // (k): longest code
  RecallCurve recall;
  TailCurve tails;

  Tree tree;

  bool has_tree() const { return tree.inner >= 0; }
  int64_t size(int64_t cluster) const { return offsets[cluster + 1] - offsets[cluster]; }  // positions
  int64_t count(int64_t cluster) const { return counts[cluster]; }                         // items
  bool empty(int64_t cluster) const { return counts[cluster] == 0; }
  int64_t known_items() const { return offsets[k] - offsets[first_known]; }
  const float* bias_at(int64_t position) const { return bias == nullptr ? nullptr : bias + position; }
  int64_t triangle() const { return d * (d + 1) / 2; }
  Rows outlier_rows() const { return {outlier_vectors, outliers, d, outlier_vectors + outliers * d}; }
  Rows mean_rows() const { return {means, k, d, means + k * d}; }
  Matrix<int16_t> full_rows() const { return {dispersion.full, k, triangle(), dispersion.full + k * triangle()}; }
  Matrix<int8_t> rank_rows() const {
    const int64_t rows = k * dispersion.rank;
    return {dispersion.low, rows, d, dispersion.low + rows * d};
  }
  Matrix<int8_t> code_rows(int64_t from, int64_t to) const {
    if (codes_guard != nullptr) codes_guard->check(from * d, to * d);
    return {codes + from * d, to - from, d, codes + extent * d};
  }
  // Blocks of sixteen items, whatever their clusters.
  SketchBlocks sketch_blocks(int64_t from, int64_t to) const {
    const int64_t bytes = sketch_groups * 64;
    if (sketch_guard != nullptr) sketch_guard->check(from * bytes, to * bytes);
    return {sketch + from * bytes, sketch_scales + from * 16, to - from, sketch_groups};
  }
  int64_t cluster_of(int64_t position) const;

  // How far the dot product of an item and a query, from a scan, may lie from the true one: `rounding` times both
  // lengths (summed_lengths for the item's), plus `vanished`. No dot product with a mean is farther off.
  double rounding() const;
  double vanished(double query_norm) const;
};

// The view of these arrays, named as they are on disk (see contents.py). std::invalid_argument where one is missing or
// unknown, or where they do not fit together: a damaged file must not become a wild pointer or an endless walk. There
// may be guards of the vectors, their codes and their sketch; other arrays are read here, and were checked before.
View make_view(const Arrays& arrays, const std::map<std::string, const Guard*>& guards = {});

inline double squared_norm(const float* query, int64_t d) {
  double total = 0;
  for (int64_t j = 0; j < d; ++j) total += (double)query[j] * query[j];
  return total;
}

// How far a float32 dot product of this library may lie from the true one, in units of |a||b|: every product and
// every addition rounds once, and a term passes through padded(d)/16 + 4 additions.
inline double dot_error(int64_t d, int64_t further_steps = 0) {
  const double steps = (double)(padded(d) / lanes + further_steps) + 6.0;
  return steps * 0x1.0p-24 / (1.0 - steps * 0x1.0p-24);
}

// The absolute error beside that relative one: a product or a sum too small for float32 loses up to 2^-126, where the
// caller has denormals flushed to zero.
inline double underflow_error(int64_t d) { return (2.0 * (double)padded(d) + 8.0) * 0x1.0p-126; }

}  // namespace softindex
