// What is proven about the log mass of each cluster of one query, from bounds, codes and scans.
#pragma once

#include "index/bounds.h"
#include "index/codes.h"

namespace softindex {

// log Z between two bounds, and how many items were scanned for them.
struct Bracket {
  double value, low, high;
  int64_t scored;
};

// All log masses are relative to pivot / temperature.
class Certificate {
 public:
  enum class State : uint8_t { bounded, coded, scanned };

  // Of a query whose log masses are estimated.
  explicit Certificate(Query& query);

  State state(int64_t cluster) const { return (State)states_[cluster]; }
  double lower(int64_t cluster) const { return lower_[cluster]; }
  double upper(int64_t cluster) const { return upper_[cluster]; }
  double width(int64_t cluster) const { return upper_[cluster] - lower_[cluster] + 2 * error(cluster); }
  int64_t scored() const { return scored_; }

  // The cluster's log mass from its float32 scores, which stay in the workspace with their weights and prefix sums.
  double scan(int64_t cluster);
  // Bounds of the cluster's log mass from its codes: the coded scores, weights and prefix sums stay in the workspace.
  void code(int64_t cluster);
  // Whether the codes of a cluster are precise enough to be of use within this error.
  bool codes_serve(int64_t cluster, double error) const {
    return view_.codes != nullptr && coded_.norm * view_.code_errors[cluster] * inverse_ <= error;
  }
  // The cluster that will probably be scanned next: memory brings it while the weights of this one are computed.
  void expect(int64_t cluster) { next_ = cluster; }

  // Sum of the weights in the workspace, which are those of this cluster.
  double total(int64_t cluster) const { return workspace_.prefix[blocks(view_.size(cluster)) - 1]; }
  double logit(int64_t position, float score) const {
    return ((double)score - query_.pivot) * inverse_ + (view_.bias == nullptr ? 0.0 : (double)view_.bias[position]);
  }
  float score(int64_t position) const;

  // log Z between bounds that allow for the rounding of what was scanned.
  Bracket bracket() const;
  // The same, no longer relative to the pivot.
  Bracket absolute(const Bracket& relative) const;

  // What rounding may add to the log mass of a cluster that was scanned or coded.
  double error(int64_t cluster) const {
    return state(cluster) == State::bounded ? 0.0 : scan_error(query_, length_, view_.summed_lengths[cluster]);
  }
  // The same for any cluster.
  double largest_error() const { return scan_error(query_, length_, view_.longest_sum); }
  // The same for the logit of one item.
  double item_error(int64_t cluster) const {
    return inverse_ * (length_.rounding * length_.norm * view_.summed_lengths[cluster] + length_.vanished);
  }

 private:
  double between(int64_t cluster) const;
  double weigh(int64_t cluster, const float* dots);

  Query& query_;
  const Kernels& kernels_;
  const View& view_;
  Workspace& workspace_;
  const QueryLength length_;
  const double inverse_;  // temperature
  std::vector<double>&lower_, &upper_;
  std::vector<uint8_t>& states_;
  CodedQuery coded_ = {};
  int64_t scored_ = 0, next_ = 0;
};

}  // namespace softindex
