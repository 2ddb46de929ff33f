// Bounds on the scores of items from four bits per number.
#include "index/sketch.h"

#include <algorithm>
#include <cmath>

namespace softindex {

SketchedQuery sketch_query(const Query& query, int8_t* integers) {
  const int64_t d = query.view.d;
  float peak = 0;
  for (int64_t j = 0; j < d; ++j) peak = std::max(peak, std::fabs(query.vector[j]));
  // A query of zeros stays one, in steps of any size.
  SketchedQuery result = {integers, peak > 0 ? (double)peak / 127 : 1.0, 0, 0, 0};
  const double inverse = 1.0 / result.unit;
  double missed = 0;
  for (int64_t j = 0; j < d; ++j) {
    const double integer = std::min(127.0, std::max(-127.0, std::nearbyint(query.vector[j] * inverse)));
    const double away = query.vector[j] - result.unit * integer;
    integers[j] = (int8_t)integer;
    missed += away * away;
    result.sum += integer;
    result.size += std::fabs(integer);
  }
  std::fill(integers + d, integers + 8 * query.view.sketch_groups, (int8_t)0);
  // A sum of d squares rounds d times, its root once; and unit * integer rounds by 2^-53 of a coordinate.
  result.lost = std::sqrt(missed) * (1.0 + (double)(d + 4) * 0x1.0p-52) + result.unit * result.size * 0x1.0p-51;
  return result;
}

// Write q for the query, u p for the rounded one, m for the stored mean, s c for an item's codes times its scale, and
// x = m + s c + e for the item. As q.x = q.m + s u p.c + s (q - u p).c + q.e, with |e| <= s errors and |c| <= lengths,
//   q.x <= q.m + u s (p.c + slack),  slack = (|q| errors + |q - u p| lengths) / u.
// The codes are numbers 0 .. 15 less 7.5, so p.c = dot - 7.5 sum. Float32 computes s (dot + shift) with an error of at
// most s 2^-17 size: the dot is at most 15 size, half of that is taken away, and there are four roundings.
double sketch_slack(const View& view, const SketchedQuery& sketched, const QueryLength& length, int64_t cluster) {
  return (length.norm * view.sketch_errors[cluster] + sketched.lost * view.sketch_lengths[cluster]) / sketched.unit;
}

SketchQuery aim(const Query& query, const SketchedQuery& sketched, const QueryLength& length, int64_t cluster,
                double score, double trust) {
  const View& view = query.view;
  const double slack = trust * sketch_slack(view, sketched, length, cluster) * (1 + 0x1.0p-20);
  const double shift = slack + 0x1.0p-17 * sketched.size - 7.5 * sketched.sum;
  // The rounding of two float32 products, with the mean (no longer than the longest item and the radius together) and
  // with the item itself.
  const double norms = view.summed_lengths[cluster] + view.norm_max[cluster] + view.radii[cluster];
  double rest = score - query.mean_dots[cluster];
  double rounding = length.rounding * length.norm * norms + 2 * length.vanished + 0x1.0p-50 * std::fabs(score);
  if (view.bias_max != nullptr) {
    const double bias = query.temperature * view.bias_max[cluster];
    rest -= bias;
    rounding += 0x1.0p-50 * std::fabs(bias);
  }
  const double least = (rest - rounding * (1 + 0x1.0p-20)) / sketched.unit - 0x1.0p-100;
  return {sketched.integers, (float)shift, std::nextafter((float)least, -std::numeric_limits<float>::infinity())};
}

}  // namespace softindex
