// Scores of a cluster from the 8-bit codes of its items, with a bound on how far they are from the float32 ones.
#pragma once

#include "index/view.h"

namespace softindex {

struct CodedQuery {
  double unit;  // what an integer of the rounded query stands for
  double norm;  // |q|, rounded up
  double lost;  // no less than |q - rounded q|
};

// Rounds a query to integers. query and integers are padded(d) long; what lies past d is left as it is, zero.
CodedQuery stage_coded_query(const View& view, const float* query, int16_t* integers);

// Fills scores with those of the cluster's items and returns the slack: none differs by more from what kernels.scan
// gives for the item itself. mean_dot is what kernels.scan gave for the cluster's mean. integer_dots and scores hold as
// many numbers as the cluster has items.
double coded_scores(const Kernels& kernels, const View& view, int64_t cluster, const CodedQuery& coded,
                    const int16_t* integers, double mean_dot, int32_t* integer_dots, float* scores);

}  // namespace softindex
