// Items that a query lists as the only ones that it may draw: scored one by one, and no others.
#pragma once

#include "index/listed.h"

namespace softindex {

// The exact softmax of the listed items, or of the k best of them, or of their nucleus, as the restriction asks.
struct Allowed {
  Listed items;          // in no order, unless only some are left
  double log_partition;  // of all that are listed
  double left_out;       // probability of those that are not among the k best
  int64_t scored;
};
Allowed allowed_items(const Query& query);

// The k best of the listed items, with proof.
void best_allowed(const Query& query, const BestResults& results);

}  // namespace softindex
