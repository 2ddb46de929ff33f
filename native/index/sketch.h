// Bounds on the scores of items from four bits per number.
#pragma once

#include "index/bounds.h"
#include "index/query.h"

namespace softindex {

constexpr int64_t sketch_items = 16;  // in a block

// A query rounded to eight bits, for the sketch.
struct SketchedQuery {
  const int8_t* integers;  // (8 * groups)
  double unit;             // the value of one integer step
  double lost;             // at least |q - rounded q|
  double sum, size;        // of the integers, and of their absolute values
};

// Rounds the query into integers (8 * groups), the last of which are zero.
SketchedQuery sketch_query(const Query& query, int8_t* integers);

// How far a score may be from what the sketch of an item gives, per step of its scale, in units of the query's steps.
double sketch_slack(const View& view, const SketchedQuery& sketched, const QueryLength& length, int64_t cluster);

// What kernels.sketch_masks needs to find the items of a cluster that may reach a score. It finds every one whose
// float32 score is at least this, if `trust` is 1; a smaller one takes this share of the largest error possible.
SketchQuery aim(const Query& query, const SketchedQuery& sketched, const QueryLength& length, int64_t cluster,
                double score, double trust);

}  // namespace softindex
