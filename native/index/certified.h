// Draws that are provably exact, from scanning only the clusters that bounds leave open.
#pragma once

#include "index/certificate.h"
#include "index/draw.h"

namespace softindex {

// Bounds on log_prob, by slot like the draws themselves.
struct ProvenSlots : Slots {
  double *low, *high;
};

// n draws from the softmax of the float32 scores, exactly: log_prob lies between low and high, which are proven of the
// true softmax. Draw j depends on the draws before it through the clusters they scanned, and so on nothing but the
// query's stream and j. Reads estimated log masses. Returns the bounds of log Z.
Bracket sample_certified(Query& query, int64_t n, const ProvenSlots& slots);

// Whether bounds are cheap enough to pay off.
bool worth_bounding(const View& view);

}  // namespace softindex
