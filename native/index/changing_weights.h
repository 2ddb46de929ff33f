// Weights that change one at a time, and draws in proportion to them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "base/layout.h"

namespace softindex {

// Sums of blocks are kept, so that a change costs one block.
class ChangingWeights {
 public:
  // logs: of the weights; weights and sums: memory to use. All are the caller's.
  ChangingWeights(std::vector<double>& logs, std::vector<double>& weights, std::vector<double>& sums)
      : logs_(logs), weights_(weights), sums_(sums) {
    weights_.resize(logs.size());
    sums_.resize(blocks((int64_t)logs.size()));
    reset();
  }

  // In units of exp(peak).
  double operator[](int64_t i) const { return weights_[i]; }
  double peak() const { return peak_; }

  void lower(int64_t i, double log_weight) {
    logs_[i] = log_weight;
    weights_[i] = std::exp(log_weight - peak_);
    sum_block(i / block_size);
    // Bounds may fall by hundreds of powers of e when a cluster is scanned: keep the rest away from underflow.
    if (total() < 1e-200) reset();
  }

  // Below zero if there is no weight.
  int64_t pick(double uniform) const {
    double rest = uniform * total();
    for (int64_t block = 0; block < (int64_t)sums_.size(); ++block) {
      if (rest >= sums_[block]) {
        rest -= sums_[block];
        continue;
      }
      const int64_t begin = block * block_size, end = std::min(begin + block_size, (int64_t)weights_.size());
      for (int64_t i = begin; i < end; ++i) {
        rest -= weights_[i];
        if (rest < 0) return i;
      }
    }
    // Rounding may leave a rest behind the last weight.
    int64_t last = (int64_t)weights_.size() - 1;
    while (last >= 0 && !(weights_[last] > 0)) --last;
    return last;
  }

 private:
  double total() const { return std::accumulate(sums_.begin(), sums_.end(), 0.0); }
  void sum_block(int64_t block) {
    const auto begin = weights_.begin() + block * block_size;
    const auto end = std::min(begin + block_size, weights_.end());
    sums_[block] = std::accumulate(begin, end, 0.0);
  }
  void reset() {
    peak_ = *std::max_element(logs_.begin(), logs_.end());
    if (!std::isfinite(peak_)) throw std::runtime_error("no cluster holds any weight");
    for (size_t i = 0; i < logs_.size(); ++i) weights_[i] = std::exp(logs_[i] - peak_);
    for (size_t block = 0; block < sums_.size(); ++block) sum_block((int64_t)block);
  }

  std::vector<double>&logs_, &weights_, &sums_;
  double peak_ = 0.0;
};

}  // namespace softindex
