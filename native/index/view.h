// An index as the kernels see it: pointers into arrays that somebody else owns.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/kernels.h"

namespace softindex {

enum class Forms { none, full, rank };

// A binary tree over the clusters, as the kernels see it. Nodes that have children are numbered parents first, node 0
// being the root; the children of node i are rows 2i and 2i + 1 of every other array, side by side for one scan.
struct Tree {
  int64_t inner = 0;                    // how many nodes have children: k - 1
  const int64_t* children = nullptr;    // (inner, 2): a node, or -1 - cluster
  const int64_t* splits = nullptr;      // (inner): clusters below this number are on the left
  const float* means = nullptr;         // (2 inner, d)
  const int16_t* full_forms = nullptr;  // like those of the clusters, and of the same kind and rank
  const int8_t* rank_forms = nullptr;
  const float* scales = nullptr;
  const float* spread = nullptr;
};

struct View {
  int64_t n = 0, d = 0, k = 0;
  const float* vectors = nullptr;     // (n, d) in cluster order
  const int64_t* offsets = nullptr;   // (k + 1): cluster c is rows offsets[c] .. offsets[c + 1]
  const float* means = nullptr;       // (k, d)
  const float* radii = nullptr;       // (k)
  const float* norm_max = nullptr;    // (k)
  double longest = 0;                 // the largest norm_max
  const float* norm_min = nullptr;    // (k)
  const float* reach = nullptr;       // (k) the largest x.mean / |mean|^2, or null
  const float* min_cosine = nullptr;  // (k) of the angle between an item and the mean, or null
  const float* bias = nullptr;        // (n), or null
  const float* bias_max = nullptr;    // (k), or null
  Forms forms_kind = Forms::none;
  int64_t rank = 0;
  const int16_t* full_forms = nullptr;         // (k, d(d+1)/2)
  const int8_t* rank_forms = nullptr;          // (k, rank, d)
  const float* scales = nullptr;               // what an integer of the forms stands for: (k) if full, (k, rank)
  const float* spread = nullptr;               // (k), rank forms only
  const float* excess = nullptr;               // (k): estimate + excess |q|^2 is no less than the form
  int64_t outliers = 0;                        // how many items are listed as lying far from the mean of their cluster
  const int64_t* outlier_positions = nullptr;  // (outliers), increasing
  const float* outlier_vectors = nullptr;      // (outliers, d), the same items
  float farthest = 0;                          // no other item lies farther from its mean
  const double* log_counts = nullptr;          // (k) log of the number of members, 0 where there are none
  const double* half_squares = nullptr;        // (k) half the squared length of the mean
  const int8_t* codes = nullptr;               // (n, d), or null: items as residuals about the mean of their cluster
  const float* code_scales = nullptr;          // (n): what an integer of an item's code stands for
  const float* code_errors = nullptr;          // (k): no residual is farther from its scaled code
  const float* code_lengths = nullptr;         // (k): no scaled code is longer
  const Tree* tree = nullptr;                  // null if the clusters are no tree's leaves
  int64_t largest_cluster = 0;
  bool any_empty = false;

  int64_t size(int64_t cluster) const { return offsets[cluster + 1] - offsets[cluster]; }
  int64_t triangle() const { return d * (d + 1) / 2; }
  Rows items(int64_t from, int64_t to) const { return {vectors + from * d, to - from, d, vectors + n * d}; }
  Rows outlier_rows() const { return {outlier_vectors, outliers, d, outlier_vectors + outliers * d}; }
  Rows mean_rows() const { return {means, k, d, means + k * d}; }
  Rows mean_row(int64_t cluster) const { return {means + cluster * d, 1, d, means + k * d}; }
  Matrix<int16_t> full_rows() const { return {full_forms, k, triangle(), full_forms + k * triangle()}; }
  Matrix<int8_t> rank_rows() const { return {rank_forms, k * rank, d, rank_forms + k * rank * d}; }
  Matrix<int8_t> code_rows(int64_t from, int64_t to) const { return {codes + from * d, to - from, d, codes + n * d}; }
};

// How the mass of a cluster is found: from its moments, from its bounds where these suffice, by scanning it, or from
// the choices on the way down a tree.
enum class Kind { estimated, certified, exhaustive, tree };

// What a law is, to the kernels: log mass = q.mean / t + offset + dispersion(q) / (2 t^2), or the cluster's own sum.
struct Law {
  Kind kind = Kind::estimated;
  const double* offset =
      nullptr;  // (k); -infinity where the cluster is empty; null if exhaustive; (2 inner) for a tree
  bool dispersion = false;
  double log_weight = 0.0;  // log of the average of exp(bias) over the items
  double temperature = 1.0;
  int64_t probes = 0;  // clusters scanned exactly before drawing; below zero: as many as the tolerance asks
  double tolerance = 0.0;

  bool exhaustive() const { return kind == Kind::exhaustive; }
};

inline double squared_norm(const float* query, int64_t d) {
  double total = 0;
  for (int64_t j = 0; j < d; ++j) total += (double)query[j] * query[j];
  return total;
}

// How far a float32 dot product of this library may lie from the true one, in units of |a||b|: every product and
// every addition rounds once, and a term passes through padded(d)/16 + 4 additions.
inline double dot_error(int64_t d) {
  const double steps = (double)(padded(d) / lanes) + 6.0;
  return steps * 0x1.0p-24 / (1.0 - steps * 0x1.0p-24);
}

// What that does not tell: a product or a sum too small for float32 loses up to 2^-126, where the caller has denormals
// flushed to zero.
inline double vanishing(int64_t d) { return (2.0 * (double)padded(d) + 8.0) * 0x1.0p-126; }

}  // namespace softindex
