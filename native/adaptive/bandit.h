// The k best rows and log Z from as few columns as a probability of error allows (AdaptiveSoftmax, for any k).
#pragma once

#include <cstdint>
#include <vector>

#include "adaptive/estimates.h"

namespace softindex {

// What is wanted, and the normal quantiles of the probabilities with which each step may fail.
struct Goal {
  int64_t k;
  double epsilon;      // relative error of the probabilities
  double elimination;  // for one row in one look
  double best;         // for the logit of one of the k best
  double total;        // for log Z
};

struct LogZ {
  double value, low, high;
};

class Bandit {
 public:
  explicit Bandit(const PacLayer& layer) : layer_(layer) {}

  // Eliminates rows until k are left, then pulls until their probabilities are within relative error epsilon. False
  // where scoring every row would cost about as much. candidates: the rows that may be returned, increasing.
  bool find(Estimates& estimates, const Goal& goal, const std::vector<int64_t>& candidates);

  const std::vector<int64_t>& best() const { return best_; }  // the highest first, equal ones in order
  LogZ log_z() const { return log_z_; }

 private:
  bool eliminate(Estimates& estimates, const Goal& goal);
  void drop_losers(Estimates& estimates, const Goal& goal);
  bool can_win(const Estimates& estimates, const Goal& goal);
  int64_t next_look(const Estimates& estimates, const Goal& goal, int64_t count);
  bool sharpen(Estimates& estimates, const Goal& goal, const std::vector<int64_t>& candidates);
  double bound_log_z(Estimates& estimates, double z, const std::vector<int64_t>& candidates);
  void list_doubtful(const std::vector<int64_t>& candidates, double enough);
  bool improve(Estimates& estimates, double ratio);
  void list_groups(const std::vector<int64_t>& rows);

  const PacLayer& layer_;
  std::vector<int64_t> active_, best_, doubtful_, groups_;
  std::vector<double> low_, high_, widths_, scratch_;
  double mean_width_ = 0;
  LogZ log_z_{};
};

}  // namespace softindex
