// A law from which items were taken away: those that a query excludes, or those that it has drawn.
#pragma once

#include "index/query.h"

namespace softindex {

// The clusters that lost items are kept with their dot products, where -infinity stands for an item that is gone. A
// cluster is scanned once, however often items are taken from it.
class Remainder {
 public:
  static constexpr float gone = -std::numeric_limits<float>::infinity();

  // Of the query's law, given by its log masses.
  explicit Remainder(const Query& query);

  // Takes away items at increasing positions, or one more. An item is taken once.
  void take(const Positions& positions);
  void take(int64_t position) { take(Positions{&position, 1}); }
  // Dot products of the cluster, scanned now if they were not before; valid until those of another one are read.
  const float* dots(int64_t cluster);

  const double* log_masses() const { return masses_.data(); }
  // Sum of the masses, relative to the query's pivot; the log of nothing is -infinity.
  Total total() const;
  // Items that are not gone: of all clusters, and of one.
  int64_t left() const { return left_; }
  int64_t left(int64_t cluster) const {
    return place_[cluster] < 0 ? query_.view.size(cluster) : kept_[place_[cluster]].left;
  }
  int64_t scored() const { return (int64_t)dots_.size(); }

 private:
  struct Kept {
    int64_t begin;  // of its dot products
    int64_t left;
    double log_mass;  // what the law gave the full cluster
    float reference;  // its largest dot product then
    double log_sum;   // log of the sum of its items then, relative to the reference
  };

  Kept& keep(int64_t cluster);
  Mass weigh(int64_t cluster, const Kept& kept) const;
  void lower(int64_t cluster, const Kept& kept);

  const Query& query_;
  int64_t left_;
  std::vector<double> masses_;  // (k)
  std::vector<int64_t> place_;  // (k): where a cluster is kept, or -1
  std::vector<Kept> kept_;
  std::vector<float> dots_;
};

}  // namespace softindex
