// What probing compares everything with: the mass of the items that can be drawn, of the clusters scanned so far.
#pragma once

#include <vector>

#include "index/query.h"

namespace softindex {

// Excluded items do not count. Neither do the likeliest ones, where a slate is drawn: once it has taken them, what is
// left must be known as well. How many is the same for every slate, so that a shorter one begins like a longer one.
class Drawable {
 public:
  explicit Drawable(const Query& query);

  // Whether a cluster counts with all of its items.
  bool holds_all(int64_t cluster) const;
  // Counts a cluster of which it holds all; log_sum: of its items, relative to the pivot.
  void add(double log_sum);
  // Counts the cluster whose dot products are in the workspace; hides those that do not count.
  void add_scanned(int64_t cluster, double log_sum);
  // Whether this item is excluded.
  bool excludes(int64_t position) const;

  double log_sum() const { return log_sum_; }
  // Largest dot product of the items of the cluster scanned last that are not excluded.
  double best_score() const { return best_score_; }

 private:
  int64_t set_aside(int64_t cluster);

  const Query& query_;
  const Positions excluded_;
  const int64_t most_aside_;
  std::vector<double> aside_;  // logits of the likeliest items, a heap with the smallest first
  double log_sum_ = minus_infinity, best_score_ = minus_infinity;
};

}  // namespace softindex
