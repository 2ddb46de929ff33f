// The excluded items of one query, found in stretches of positions.
#pragma once

#include <algorithm>
#include <limits>

#include "index/query.h"

namespace softindex {

// Those at positions from .. to.
inline Positions excluded_within(const Positions& excluded, int64_t from, int64_t to) {
  const int64_t* end = excluded.first + excluded.count;
  const int64_t* first = std::lower_bound(excluded.first, end, from);
  return {first, std::lower_bound(first, end, to) - first};
}

// Replaces the dot products of excluded items by -infinity; dots are those of the items from position `begin` on.
inline void hide(const Positions& excluded, int64_t begin, float* dots) {
  for (int64_t i = 0; i < excluded.count; ++i)
    dots[excluded.first[i] - begin] = -std::numeric_limits<float>::infinity();
}

}  // namespace softindex
