// The search of one query for its k best items: what is found, which clusters to visit, and what the others may hold.
#pragma once

#include <vector>

#include "index/best_items.h"
#include "index/sketch.h"
#include "index/top_k.h"

namespace softindex {

// Of one query, in the workspace.
struct SearchMemory {
  int8_t* integers;  // (8 * groups): the query rounded for the sketch
  uint8_t* states;   // (k)
  double* promises;  // (k)
};

class BestSearch {
 public:
  BestSearch(Query& query, const Wanted& wanted, Best& result, const SearchMemory& memory);

  const Context& context() const { return query_; }
  const float* vector() const { return query_.vector; }
  bool full() const { return best_.full(); }

  // The cluster, not visited yet, where the best items are expected; -1 if there is none.
  int64_t most_promising() const;
  // The `probes` most promising clusters, those that were visited included; all of them below zero.
  void choose(int64_t probes);
  // The clusters without those that hold together this share of the k best, as their moments predict.
  void choose_by_share(double missed);
  // Whether a cluster is chosen, not visited yet, and may hold one of the k best.
  bool wants(int64_t cluster) const {
    return states_[cluster] == chosen && !gives_up() && !(best_score_bound(query_, length_, cluster) < reach());
  }
  void visit(int64_t cluster) { states_[cluster] = visited; }

  // Offers the items from .. to, whose dot products these are.
  void offer(const float* dots, int64_t from, int64_t to);
  SketchQuery aim_at(int64_t cluster);
  // Takes note of the items from .. to that masks name; the first bit is that of item `origin`.
  void collect(const uint16_t* masks, int64_t origin, int64_t from, int64_t to);
  // Scores the items that were noted.
  void settle();
  // Sorts the best items and completes the result.
  void finish();

 private:
  enum State : uint8_t { skipped, chosen, visited };

  bool gives_up() const { return result_.scored > wanted_.most; }
  // Items that cannot score as much are of no interest.
  double reach() const { return best_.threshold() - wanted_.margin; }
  void offer_one(double dot, int64_t position);
  void note(int64_t position);
  double spread(int64_t cluster) const;
  double expected(int64_t cluster, double score) const;
  double predict_missed(double beyond) const;

  Query& query_;
  const View& view_;
  const Wanted& wanted_;
  Best& result_;
  const QueryLength length_;
  const Positions excluded_;
  uint8_t* states_;
  double* promises_;
  SketchedQuery sketched_ = {};
  double trust_ = 1;
  double next_ = minus_infinity;  // the largest score of an item that was scored and is not among the best
  BestItems best_;
  int64_t noted_count_ = 0;
  int64_t noted_[32];
};

}  // namespace softindex
