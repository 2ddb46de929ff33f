// What share of the k best a search misses where the moments of the clusters predict some share: measured at build.
#pragma once

#include <algorithm>
#include <cstdint>

namespace softindex {

// A line through (0, 0), the measured points and (1, 1), made to increase. Points of zeros make both shares the same.
class RecallCurve {
 public:
  static constexpr int64_t points = 9;

  RecallCurve() = default;
  // measured (points, 2): predicted and missed share, in the order of the first.
  explicit RecallCurve(const double* measured) : count_(points + 2) {
    for (int64_t i = 0; i < points; ++i) {
      predicted_[i + 1] = std::min(1.0, std::max(predicted_[i], measured[2 * i]));
      missed_[i + 1] = std::min(1.0, std::max(missed_[i], measured[2 * i + 1]));
    }
    predicted_[points + 1] = missed_[points + 1] = 1.0;
  }

  double missed(double predicted) const { return between(predicted_, missed_, predicted); }
  // The largest predicted share at which no more than this is missed.
  double allowed(double missed) const { return between(missed_, predicted_, missed); }

 private:
  double between(const double* from, const double* to, double at) const {
    int64_t i = count_ - 1;
    while (i > 0 && from[i] > at) --i;
    if (i == count_ - 1) return to[i];
    return to[i] + (to[i + 1] - to[i]) * (at - from[i]) / (from[i + 1] - from[i]);
  }

  int64_t count_ = 2;
  double predicted_[points + 2] = {0, 1}, missed_[points + 2] = {0, 1};
};

}  // namespace softindex
