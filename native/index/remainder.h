// A law from which items were taken away: those that a query excludes, or those that it has drawn.
#pragma once

#include "index/query.h"

namespace softindex {

// Whether taking these items away from the masses of an estimated law would cost about as much as scanning everything.
bool scan_is_cheaper(const View& view, const Positions& excluded);

// The mass of a cluster that loses items falls by their share of it. That share is known once the cluster is scanned.
// Where a scan would read many items for a few that are gone, and the law's mass estimates the sum of the cluster, the
// share is taken of that mass instead, as long as it is at most a half. A law that scanned everything left the excluded
// items out at once. Clusters that are drawn from are kept with their dot products, where -infinity stands for an item
// that is gone, and are scanned once for all draws.
class Remainder {
 public:
  // Of the query's law, given by its log masses, without the items that the query excludes.
  explicit Remainder(const Query& query);

  // Takes away one more item, of a cluster whose dot products were asked for.
  void take(int64_t position);
  // Dot products of the cluster, scanned now if they were not before; valid until those of another one are read.
  const float* dots(int64_t cluster);

  const double* log_masses() const { return masses_.data(); }
  // Sum of the masses, relative to the query's pivot; the log of nothing is -infinity.
  Total total() const;
  // Items that are not gone: of all clusters, and of one.
  int64_t left() const { return left_; }
  int64_t left(int64_t cluster) const;
  // Items whose scores were computed.
  int64_t scored() const { return scored_; }

 private:
  // The sum of the items of a cluster, relative to the temperature's scale.
  struct Sum {
    float reference;  // largest dot product
    double log_sum;   // relative to it
  };
  struct Kept {
    int64_t begin;    // of its dot products
    int64_t left;     // items
    double log_mass;  // what the law gave the cluster
    double lost;      // share of that mass that is gone, where the cluster's own sum was not used
    Sum full;         // of the cluster that the law gave this mass
  };

  // Whether the law's mass is asked instead of a scan.
  bool asks_mass(int64_t cluster, int64_t left) const;
  void exclude();
  void exclude_from(int64_t cluster, const Positions& excluded);
  bool lower_by_mass(int64_t cluster, const Positions& excluded);
  void lower_by_scan(int64_t cluster, const Positions& excluded);
  double mass_after(double log_mass, const Sum& full, const Sum& rest) const;
  Sum weigh(int64_t cluster, const float* dots) const;
  double share_of(double log_mass, float dot, int64_t position) const;
  Kept& keep(int64_t cluster);

  const Query& query_;
  const Positions excluded_;
  const bool without_excluded_;  // the law's masses are those of the items left
  const bool estimates_sums_;    // the law's masses estimate the sums of the clusters
  int64_t left_, scored_ = 0;
  std::vector<double> masses_;  // (k)
  std::vector<int64_t> place_;  // (k): where a cluster is kept, or -1
  std::vector<Kept> kept_;
  std::vector<float> dots_;
};

}  // namespace softindex
