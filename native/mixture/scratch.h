// The memory in which one thread scores a tile of items.
#pragma once

#include <cstdint>

#include "base/aligned.h"
#include "kernels/kernels.h"

namespace softindex {

template <class Real>
struct Scratch {
  AlignedVector<Real> columns, gates, work, scores;

  Scratch(const Mixture<Real>& mixture, bool gated_items, int64_t tile)
      : columns(mixture.item_parts * mixture.d * tile),
        gates(gated_items ? mixture.query_parts * mixture.item_parts * tile : 0),
        work((2 * mixture.query_parts * mixture.item_parts + mixture.hidden) * tile), scores(tile) {}
};

}  // namespace softindex
