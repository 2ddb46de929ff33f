// Scores items with a learned similarity and finds the best of them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "mixture/clusters.h"
#include "mixture/packing.h"
#include "mixture/scratch.h"
#include "mixture/selection.h"
#include "mixture/views.h"

namespace softindex {

// What `best_screened` is asked for, and what it says beside the ranking.
struct Screening {
  int64_t k, width;      // results sought; items with the largest bounds, of which all results must be
  const float* slacks;   // (b) shares of the range of the logits by which a score may be off
  const float* margins;  // (b) added to bounds, for the rounding errors of bounds and of scores
  float* outside;        // (b) the largest bound of an item that was not scored
};

// Reads the items where they are: they must outlive the scorer. The weights of the gate are copied. All positions must
// be valid, and queries must have gates if and only if scores use the items' gates: the caller checks.
class MixtureScorer {
 public:
  MixtureScorer(const Kernels& kernels, const MixtureView& view)
      : kernels_(kernels), shape_(view.shape), items_(view.items), single_(view.shape, view.gate),
        precise_(view.shape, view.gate), screen_(view.shape, view.gate, view.screen), clusters_(view.clusters),
        cluster_search_(kernels, single_.mixture(), clusters_) {}
  MixtureScorer(const MixtureScorer&) = delete;
  MixtureScorer& operator=(const MixtureScorer&) = delete;

  const MixtureShape& shape() const { return shape_; }
  int64_t size() const { return items_.n; }
  // Whether scores need the gates of queries and items.
  bool uses_gates() const { return single_.mixture().gated && items_.gates != nullptr; }
  bool has_screen() const { return !screen_.empty(); }
  // Whether there is a screen, and this CPU is faster with it.
  bool screens() const { return has_screen() && kernels_.mixture_screen_pays(); }
  // The search through clusters; the caller checks that there are some.
  bool has_clusters() const { return clusters_.count > 0; }
  const ClusterSearch& clusters() const { return cluster_search_; }

  // The best of all items, best first.
  void best(const MixtureQueries<float>& queries, const Exclusions& excluded, int64_t threads,
            const Ranking& result) const;

  // bounds (queries, n): upper bounds on the scores of all items, where there is a screen. slacks: see Screening.
  void bound(const MixtureQueries<float>& queries, const float* slacks, int64_t threads, float* bounds) const;

  // The same as `best` for a caller that needs the k best only, where there is a screen: its bounds on the scores of
  // all items say which items to score, in the order of their bounds, until no other one can be among the k best.
  void best_screened(const MixtureQueries<float>& queries, const Exclusions& excluded, const Screening& screening,
                     int64_t threads, const Ranking& result) const;

  // The items whose average component has the largest dot products with queries (count, d), in increasing order of
  // position. Writes no scores.
  void best_average(const float* queries, int64_t count, const Exclusions& excluded, int64_t threads,
                    const Ranking& result) const;

  // largest (queries, n): the largest logit of each item, -infinity where it is excluded. listed: one row for each
  // query and pair, the items with the largest logits of the pair, in increasing order of position; none if listed.keep
  // is 0.
  void largest(const MixtureQueries<float>& queries, const Exclusions& excluded, int64_t threads, float* largest,
               const Ranking& listed) const;

  // scores (lists.total()): the scores of the listed items.
  void score_listed(const MixtureQueries<float>& queries, const PositionLists& lists, int64_t threads,
                    float* scores) const;

  // The best of the listed items, whose positions increase; best first.
  void best_listed(const MixtureQueries<float>& queries, const PositionLists& lists, int64_t threads,
                   const Ranking& result) const;

  // The same as score_listed, in double.
  void score_precisely(const MixtureQueries<double>& queries, const PositionLists& lists, int64_t threads,
                       double* scores) const;

 private:
  void gather(const int64_t* which, int64_t first, int64_t count, Scratch<float>& scratch) const;
  void score(const MixtureQueries<float>& queries, int64_t q, Scratch<float>& scratch) const;
  void screen(const MixtureQueries<float>& queries, int64_t q, float slack, Scratch<float>& scratch) const;
  void prefetch(const int64_t* which, int64_t count) const;
  template <class Score>
  std::vector<Selection> select(const MixtureQueries<float>& queries, const Exclusions& excluded, int64_t keep,
                                int64_t threads, const Score& score) const;
  void settle(const MixtureQueries<float>& queries, int64_t q, Selection& bounds, const Screening& screening,
              Scratch<float>& scratch, const Ranking& result) const;
  template <class Work>
  void for_each_tile(int64_t threads, std::vector<Selection>& selections, const Work& work) const;
  template <class Real, class Work>
  void for_each_stretch(const PositionLists& lists, int64_t tile, int64_t threads, const Mixture<Real>& mixture,
                        const Work& work) const;
  template <class Done>
  void score_lists(const MixtureQueries<float>& queries, const PositionLists& lists, int64_t threads, float* scores,
                   const Done& done) const;
  template <class Score>
  std::vector<Selection> start_high(int64_t count, int64_t keep, const Score& score) const;
  void largest_of_group(const MixtureQueries<float>& queries, int64_t begin, int64_t end, const Exclusions& excluded,
                        int64_t threads, float* largest, const Ranking& listed) const;

  const Kernels& kernels_;
  const MixtureShape shape_;
  const MixtureItems items_;
  const PackedMixture<float> single_;
  const PackedMixture<double> precise_;
  const PackedScreen screen_;
  const MixtureClusters clusters_;
  const ClusterSearch cluster_search_;
};

}  // namespace softindex
