// Columns of one query, drawn by importance and without replacement.
#pragma once

#include <cstdint>
#include <vector>

#include "adaptive/pac_layer.h"
#include "base/aligned.h"
#include "base/streams.h"

namespace softindex {

struct SparseQuery {
  const int64_t* indices;  // (count), increasing
  const float* values;     // (count)
  int64_t count;
};

// The weight of a column is |query| times its root mean square. Columns are drawn one after the other, each in
// proportion to its weight among those not drawn yet: along a tree of sums, sixteen to a node, whose leaves are tiles
// of sixteen columns; see weigh_columns.cpp for which. Columns that were drawn stay in the tree and are rejected, until
// they hold half of its weight.
//
// With y_r the product of the r-th column, p_r its share of all weights and P_r the share of those before it,
//   t_r = y_1 + ... + y_(r-1) + y_r (1 - P_r) / p_r
// is unbiased for the full product, whatever was drawn before it, and so no two t_r are correlated (Des Raj, 1956).
class Coordinates {
 public:
  explicit Coordinates(const PacLayer& layer);

  // Looks at the first numbers of a query (d), and says how many of all are not zero if the others are like them.
  double glance(const Kernels& kernels, const float* query);
  // Then looks at the others without copying them: enough to score rows. listed: whether to list the columns where the
  // query is not zero in the same pass. False where its length is not at most the root of `limit`, or no number.
  bool survey(const Kernels& kernels, double limit, bool listed);
  // What a survey found elsewhere.
  void measure(const Survey& found);
  bool is_surveyed() const { return is_surveyed_; }
  double squared_norm() const { return squared_norm_; }  // as it was added up
  // Copies and weighs a query (d), after which columns can be drawn. False as above.
  bool start(const Kernels& kernels, const float* query, double limit, uint64_t seed);
  // The same for a query of few numbers: values (count) at the increasing columns `indices`.
  bool start(const Kernels& kernels, const SparseQuery& query, double limit, uint64_t seed);

  // Draws until there are this many columns, or no other has any weight.
  void draw(int64_t count);

  const float* query() const { return now_; }  // (d)
  bool is_weighed() const { return now_ == query_.data(); }
  double norm() const { return norm_; }    // rounded up
  double total() const { return total_; }  // of all weights
  double squared_weights() const { return squared_weights_; }
  int64_t numbers() const { return numbers_; }  // of the query, without zeros
  int64_t used() const { return used_; }        // columns with any weight
  double heavy_product(int64_t row) const;      // of the heavy numbers of a row with the query
  int64_t drawn() const { return (int64_t)which_.size(); }
  Pulls pulls(int64_t begin, int64_t end) const;  // the columns drawn at these places, for the kernels
  // Sums of the weights (1 - P_r)^-2 of the first `count` terms, and of their squares; and the last weight.
  double sum(int64_t count) const { return sums_[count]; }
  double squares(int64_t count) const { return squares_[count]; }
  double last(int64_t count) const { return weights_[count - 1]; }
  // All columns where the query is not zero, in order: as many as `numbers`.
  const int32_t* list_numbers(const Kernels& kernels);

 private:
  void list(const Kernels& kernels, int64_t begin, int64_t end);
  bool finish(const ColumnMoments& moments, double limit, uint64_t seed);
  void clear();
  void sum_tree(size_t level);
  void weigh_tile(int64_t tile, double* weights) const;
  double weight(int64_t column) const;
  double sum_children(size_t level, int64_t node) const;
  int64_t pick(double uniform) const;
  void add(int64_t column);
  void remove_drawn();

  const PacLayer& layer_;
  AlignedVector<float> query_;             // (padded(d))
  const float* now_ = nullptr;             // the query: the copy, or the caller's
  std::vector<std::vector<double>> tree_;  // sums of tiles, of sixteen tiles, and so on
  double root_ = 0;                        // sum of the last of them
  std::vector<uint16_t> drawn_, removed_;  // one bit per column, one number per tile
  std::vector<int64_t> touched_;           // blocks of sixteen tiles where a sparse query has anything
  bool sparse_ = true;                     // whether only those have
  Stream stream_{};
  uint64_t draws_ = 0;
  Uniforms two_{};  // the numbers of this draw and its neighbour
  bool is_surveyed_ = false;
  double squared_norm_ = 0, norm_ = 0, total_ = 0, squared_weights_ = 0;
  double taken_ = 0;     // share of the columns drawn so far
  double rejected_ = 0;  // weight in the tree of columns that were drawn
  int64_t numbers_ = 0, used_ = 0;
  int64_t settled_ = 0;  // columns drawn that are not in the tree any more

  std::vector<int32_t> listed_;  // columns where the query is not zero, with room for all
  int64_t listed_upto_ = 0;      // of the columns of the query
  Survey seen_{};                // what was found on the way
  std::vector<int64_t> which_;
  std::vector<double> values_, scales_, weights_, sums_, squares_;
};

}  // namespace softindex
