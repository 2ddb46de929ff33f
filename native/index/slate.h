// Draws from a part of a law: without some items, without those already drawn, or from its most probable ones only.
#pragma once

#include "index/draw.h"

namespace softindex {

// What one query may draw, and how.
struct Restriction {
  const int64_t* excluded = nullptr;  // (count) positions, increasing
  int64_t count = 0;
  bool replace = true;
  double top_p = 1.0;   // below 1: only the most probable items that reach this together
  int64_t k = 0;        // above 0: the softmax of the k best items instead of the law
  int64_t probes = -1;  // clusters that the k best are looked for in; below zero: as many as prove them
};

// A law from which items were taken: the clusters that lost any are kept with their dot products, where -infinity
// stands for an item that is gone. A cluster is scanned once, whatever is taken from it afterwards.
class Remainder {
 public:
  // query: staged, so padded; log_masses (k) of the law. All are looked at later.
  Remainder(const Kernels& kernels, const View& view, double temperature, const float* query, const double* log_masses);

  // Takes away items at increasing positions, or one more. An item is taken once.
  void take(const int64_t* positions, int64_t count);
  void take(int64_t position) { take(&position, 1); }
  // Dot products of the cluster, scanned now if they were not before; valid until another cluster is asked for.
  const float* dots(int64_t cluster);

  const double* log_masses() const { return masses_.data(); }
  // Items that are not gone: of all, and of one cluster.
  int64_t left() const { return left_; }
  int64_t left(int64_t cluster) const {
    return place_[cluster] < 0 ? view_.size(cluster) : kept_[place_[cluster]].left;
  }
  int64_t scored() const { return (int64_t)dots_.size(); }

 private:
  struct Kept {
    int64_t begin;  // of its dot products
    int64_t left;
    double log_mass;  // what the law gave the cluster when it was whole
    float reference;  // its largest dot product then
    double log_sum;   // log of the sum of its items then, relative to the reference
  };

  Kept& keep(int64_t cluster);
  Mass weigh(int64_t cluster, const Kept& kept) const;
  void lower(int64_t cluster, const Kept& kept);

  const Kernels& kernels_;
  const View& view_;
  double temperature_;
  const float* query_;
  int64_t left_;
  std::vector<double> masses_;  // (k)
  std::vector<int64_t> place_;  // (k): where a cluster is kept, or -1
  std::vector<Kept> kept_;
  std::vector<float> dots_;
};

// One query and the law it is asked under; log_masses are relative to pivot / temperature, and the query is staged.
struct Asked {
  const Kernels& kernels;
  const View& view;
  const Law& law;
  const float* query;
  const double* log_masses;
  double pivot;
  Workspace& workspace;
};

// What came of one query.
struct Drawn {
  int64_t left = 0;  // items that could be drawn; where these are too few for the call, nothing was
  int64_t scored = 0;
  double error = 0.0;
};

// n draws: positions and log_prob (n), each that of its step. error: what the law states of itself.
Drawn sample_part(const Asked& asked, const Restriction& restriction, double error, uint64_t key, uint64_t stream,
                  int64_t n, int64_t* positions, double* log_prob);

// log_prob (m) of one draw of the items at positions (m); -infinity for those that cannot be drawn.
void log_prob_part(const Asked& asked, const Restriction& restriction, const int64_t* positions, int64_t m,
                   double* log_prob);

}  // namespace softindex
