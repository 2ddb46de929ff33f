// Finds candidates cluster by cluster: by scores that are expanded around the centres of the clusters.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "kernels/kernels.h"
#include "mixture/selection.h"
#include "mixture/views.h"

namespace softindex {

// The score of an item is expanded around the centre of its cluster: the centre's score, plus the slope of the score
// along each direction of the basis times the item's feature. The slope keeps the weights that the gate gives to the
// centre's logits. Reads mixture and clusters where they are: they must outlive the search.
class ClusterSearch {
 public:
  ClusterSearch(const Kernels& kernels, const Mixture<float>& mixture, const MixtureClusters& clusters)
      : kernels_(kernels), mixture_(mixture), clusters_(clusters) {}

  // The items with the largest expanded scores, in increasing order of position: result has room for positions only.
  // Looks into the most promising clusters until they hold `scanned` items that are not excluded.
  // Exclusions are places in the order of the clusters.
  void candidates(const MixtureQueries<float>& queries, const Exclusions& excluded, int64_t scanned, int64_t threads,
                  const Ranking& result) const;

 private:
  // The clusters that a query looks into, and the expansion of its score in each of them.
  struct Route {
    std::vector<int64_t> clusters;
    std::vector<float> scores;  // of the centres
    std::vector<float> slopes;  // (clusters, rank)
  };
  // One query in one of its clusters.
  struct Stop {
    int64_t query, place;  // in the route of the query
  };
  struct Workspace;

  std::vector<float> slopes_of_logits(const MixtureQueries<float>& queries, int64_t q) const;
  void expand(const MixtureQueries<float>& queries, int64_t q, const std::vector<float>& logit_slopes,
              Workspace& work) const;
  void weigh_promise(int64_t first, int64_t count, Workspace& work) const;
  Route route(const MixtureQueries<float>& queries, int64_t q, const std::vector<float>& logit_slopes,
              const float* promise, const Exclusions& excluded, int64_t scanned, Workspace& work) const;
  std::vector<Route> all_routes(const MixtureQueries<float>& queries, const Exclusions& excluded, int64_t scanned,
                                int64_t threads) const;
  void scan(int64_t cluster, const std::vector<Stop>& stops, const std::vector<Route>& routes,
            const Exclusions& excluded, Workspace& work, std::vector<Selection>& selections) const;

  const Kernels& kernels_;
  const Mixture<float>& mixture_;
  const MixtureClusters& clusters_;
};

}  // namespace softindex
