// How many items of a cluster score far above its mean: measured at build, in standard deviations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace softindex {

// The share of all items that lie more than z standard deviations above the mean of their cluster, along a query:
// straight lines between z = 0, 1/2, 1, ...
class TailCurve {
 public:
  static constexpr int64_t points = 49;
  static constexpr double step = 0.5;
  // Where nothing was measured: between the curves of word vectors and of sentence vectors.
  static constexpr double usual_start = 3.0, usual_share = 1.6e-3, usual_fall = 2.2;

  // Where it was measured, the curve is raised by this rate beyond so many deviations: a user's queries may single out
  // items more than those that it was measured with.
  static constexpr double lean = 0.5, lean_from = 5.0;

  TailCurve() {
    for (int64_t i = 0; i < points; ++i)
      shares_[i] = raised_[i] = std::min(1.0, usual_share * std::exp(-usual_fall * ((double)i * step - usual_start)));
    tabulate();
  }
  explicit TailCurve(const double* measured) {
    double least = 1.0, raised = 1.0;
    for (int64_t i = 0; i < points; ++i) {
      shares_[i] = least = std::min(least, std::max(0.0, measured[i]));
      raised = std::min(raised, least * std::exp(lean * std::max(0.0, (double)i * step - lean_from)));
      raised_[i] = raised;
    }
    tabulate();
  }

  double beyond(double z) const {
    if (!(z > 0)) return 1.0;
    const double place = z / step;
    if (!(place < (double)(points - 1))) return 0.0;
    const int64_t i = (int64_t)place;
    return raised_[i] + (raised_[i + 1] - raised_[i]) * (place - (double)i);
  }
  // The mean of exp(deviation * z) over the items as measured, where those beyond `end` count nothing.
  double moment(double deviation, double end) const {
    const double reach = end / step, place = deviation / table_step;
    const int64_t last = reach < 1 ? 1 : reach < (double)(points - 1) ? (int64_t)reach : points - 1;
    if (!(place < (double)(table_rows - 1))) return sum_to(deviation, last);
    const int64_t i = (int64_t)place;
    const double below = moments_[i * points + last], above = moments_[(i + 1) * points + last];
    return below + (above - below) * (place - (double)i);
  }
  // No item lies farther out than this, but for so small a share.
  double end(double share) const {
    int64_t i = points - 1;
    while (i > 0 && raised_[i - 1] < share) --i;
    return (double)i * step;
  }

 private:
  // Moments of deviations 0, 1/16, 1/8, ...: a probe asks for one of each cluster.
  static constexpr int64_t table_rows = 129;
  static constexpr double table_step = 1.0 / 16;

  // About half of the items lie below the mean, and hardly count.
  double below_mean(double deviation) const { return (1.0 - shares_[1]) * std::exp(-deviation * step); }
  double between(double deviation, int64_t i) const {
    return (shares_[i] - shares_[i + 1]) * std::exp(deviation * ((double)i + 0.5) * step);
  }
  double sum_to(double deviation, int64_t last) const {
    double sum = below_mean(deviation);
    for (int64_t i = 1; i < last; ++i) sum += between(deviation, i);
    return sum;
  }
  // Each moment of a row continues the one before it: every index that is opened makes this table.
  void tabulate() {
    moments_.resize(table_rows * points);
    for (int64_t row = 0; row < table_rows; ++row) {
      const double deviation = (double)row * table_step;
      double* const moments = &moments_[row * points];
      moments[0] = moments[1] = below_mean(deviation);
      for (int64_t i = 1; i + 1 < points; ++i) moments[i + 1] = moments[i] + between(deviation, i);
    }
  }

  double shares_[points], raised_[points];
  std::vector<double> moments_;
};

}  // namespace softindex
