// How many items of a cluster score far above its mean: measured at build, in standard deviations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace softindex {

// The share of all items that lie more than z standard deviations above the mean of their cluster, along a query:
// straight lines between z = 0, 1/2, 1, ...
class TailCurve {
 public:
  static constexpr int64_t points = 49;
  static constexpr double step = 0.5;
  // Where nothing was measured: between the curves of word vectors and of sentence vectors.
  static constexpr double usual_start = 3.0, usual_share = 1.6e-3, usual_fall = 2.2;

  TailCurve() {
    for (int64_t i = 0; i < points; ++i)
      shares_[i] = std::min(1.0, usual_share * std::exp(-usual_fall * ((double)i * step - usual_start)));
  }
  explicit TailCurve(const double* measured) {
    double least = 1.0;
    for (int64_t i = 0; i < points; ++i) shares_[i] = least = std::min(least, std::max(0.0, measured[i]));
  }

  double beyond(double z) const {
    if (!(z > 0)) return 1.0;
    const double place = z / step;
    if (!(place < (double)(points - 1))) return 0.0;
    const int64_t i = (int64_t)place;
    return shares_[i] + (shares_[i + 1] - shares_[i]) * (place - (double)i);
  }
  // No item lies farther out than this, but for so small a share.
  double end(double share) const {
    int64_t i = points - 1;
    while (i > 0 && shares_[i - 1] < share) --i;
    return (double)i * step;
  }

 private:
  double shares_[points];
};

}  // namespace softindex
