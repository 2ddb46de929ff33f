// Scores of a cluster from the 8-bit codes of its items, with a bound on how far they are from the float32 ones.
#include "index/codes.h"

#include <cmath>

#include "index/scan.h"
#include "kernels/round_query.h"

namespace softindex {
namespace {

// Write q for the query, p for the rounded one, m for the stored mean, c for an item's code times its scale, and
// x = m + c + e for the item. The score is float(dot(q, m) + p.c), to be compared with dot(q, x), where dot is the
// float32 product of the kernels. As q.x = q.m + p.c + (q - p).c + q.e, they differ by no more than
//   |q.m - dot(q, m)| + |q.x - dot(q, x)|   the rounding of two float32 products,
//   |q - p| |c| + |q| |e|                   the loss from rounding query and item (Cauchy and Schwarz), and
//   |score - (dot(q, m) + p.c)|             the rounding of the score itself.
double slack_of(const View& view, int64_t cluster, const CodedQuery& coded, double mean_dot) {
  const double length = view.code_lengths[cluster];
  const double lost = coded.norm * view.code_errors[cluster] + coded.lost * length;
  // The mean is within the radius of every member, so it is no longer than the longest and the radius together.
  const double norms = 2.0 * view.norm_max[cluster] + view.radii[cluster];
  const double products = dot_error(view.d) * coded.norm * norms;
  // |p| <= |q| + |q - p| bounds p.c. The score rounds once to float32, and before that three times in double.
  const double stored = (0x1.0p-24 + 0x1.0p-50) * (std::fabs(mean_dot) + (coded.norm + coded.lost) * length);
  // Absolute errors: a product too small for float32 loses up to 2^-150, or 2^-126 where the caller has denormals
  // flushed to zero, and so does each sum. There are two dot products and a score.
  const double tiny = (4.0 * (double)padded(view.d) + 8.0) * 0x1.0p-126;
  // The sum above is itself rounded a dozen times; all its terms are positive.
  return (lost + products + stored + tiny) * (1.0 + 0x1.0p-45);
}

}  // namespace

CodedQuery stage_coded_query(Query& query) {
  const int64_t d = query.view.d;
  std::vector<int16_t>& integers = query.workspace.coded_query;
  integers.resize(padded(d));  // the padding stays zero, as only the first d are ever written
  const double unit = round_query(query.vector, d, integers.data());
  double missed = 0;
  for (int64_t j = 0; j < d; ++j) {
    const double away = query.vector[j] - unit * integers[j];
    missed += away * away;
  }
  // A sum of d squares rounds d times, its root once; and unit * integer rounds by 2^-53 of a coordinate.
  const double up = 1.0 + (double)(d + 4) * 0x1.0p-52;
  const double norm = std::sqrt(query.squared_norm()) * up;
  return {integers.data(), unit, norm, std::sqrt(missed) * up + norm * 0x1.0p-51};
}

double coded_scores(const Query& query, const CodedQuery& coded, int64_t cluster, double mean_dot, float* scores) {
  const View& view = query.view;
  const int64_t from = view.offsets[cluster], to = view.offsets[cluster + 1];
  int32_t* dots = query.workspace.code_dots.data();
  query.kernels.scan_int8(view.code_rows(from, to), coded.integers, 1, dots, to - from);
  query.kernels.decode(dots, view.code_scales + from, to - from, mean_dot, coded.unit, scores);
  mark_removed(view, from, to, scores);
  return slack_of(view, cluster, coded, mean_dot);
}

}  // namespace softindex
