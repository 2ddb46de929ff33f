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

// The items from .. to that masks name; the first bit of the masks is that of item `origin`.
struct MaskedItems {
  const uint16_t* masks;
  int64_t origin, from, to;

  int64_t blocks() const { return (to - origin + sketch_items - 1) / sketch_items; }
  int64_t first_of(int64_t block) const { return origin + block * sketch_items; }
  uint32_t mask_of(int64_t block) const {
    const int64_t first = first_of(block);
    uint32_t mask = masks[block];
    if (first < from) mask &= ~0u << (from - first);
    if (to - first < sketch_items) mask &= (1u << (to - first)) - 1;
    return mask;
  }
  int64_t count() const {
    int64_t found = 0;
    for (int64_t block = 0; block < blocks(); ++block) found += __builtin_popcount(mask_of(block));
    return found;
  }
};

}  // namespace softindex
