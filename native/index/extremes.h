// Single items of clusters that were not scanned: how likely one is to matter, and a search for it.
#pragma once

#include "index/bounds.h"
#include "index/probe_constants.h"
#include "index/query.h"
#include "index/sketch.h"

namespace softindex {

// Fills the workspace's `ranked` with the clusters whose mean is nearest to an item of this length in the query's
// direction, scale times the query, and which hold items of such a length.
void list_nearest_clusters(Query& query, double length, double scale);

// All log masses are relative to pivot / temperature, as those of the query.
class Extremes {
 public:
  explicit Extremes(Query& query);

  // An item of at least this log mass matters; where a cluster is searched, so do items of a part of it. variance: of
  // the logits, where the law has no dispersion.
  void aim_at(double log_mass, double variance);
  double least() const { return least_; }

  // The chance that a cluster holds an item that matters; its moments and the tail measured at build say so.
  double chance(int64_t cluster) const {
    // Most clusters end here.
    if ((least_ - means_[cluster]) * inverse_[cluster] >= end_) return 0.0;
    return likely(cluster);
  }
  // The mass to expect of a cluster by the tail measured at build, without items that matter, over that of exp(whole).
  double expected(int64_t cluster, double whole) const {
    const double deviations = (least_ - means_[cluster]) * inverse_[cluster];
    const double moment = query_.view.tails.moment(1.0 / inverse_[cluster], std::min(deviations, end_));
    return (double)query_.view.count(cluster) * moment * std::exp(means_[cluster] - whole);
  }
  // Whether the logits of a cluster vary so little that its moments tell its mass.
  bool tame(int64_t cluster) const { return inverse_[cluster] * inverse_[cluster] * probing::tame > 1.0; }
  // Whether there is a sketch to search.
  bool searchable() const { return query_.view.sketch != nullptr; }
  // Whether a cluster holds an item that matters: read in the sketch, and confirmed by its score.
  bool search(int64_t cluster);

 private:
  double likely(int64_t cluster) const;
  bool confirm(const uint16_t* masks, int64_t origin, int64_t from, int64_t to) const;
  bool confirm_any(int64_t from, int64_t to) const;

  Query& query_;
  const double log_weight_;  // of an average item
  QueryLength length_;
  SketchedQuery sketched_ = {};
  double end_ = 0;  // standard deviations beyond which the chance is nil
  float unlisted_;  // outliers that lie farther are known
  double least_ = 0, variance_ = -1;
  const double *means_ = nullptr, *inverse_ = nullptr;  // (k) of the logits, and one over their standard deviations
};

}  // namespace softindex
