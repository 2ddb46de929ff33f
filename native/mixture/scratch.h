// The memory in which one thread scores a tile of items.
#pragma once

#include <cstdint>
#include <new>
#include <vector>

#include "kernels/kernels.h"

namespace softindex {

// Allocates memory that starts on a cache line: a register read across two lines costs two reads.
template <class T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t line{64};

  CacheLineAllocator() = default;
  template <class Other>
  CacheLineAllocator(const CacheLineAllocator<Other>&) {}
  T* allocate(size_t count) { return (T*)::operator new(count * sizeof(T), line); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, line); }
  bool operator==(const CacheLineAllocator&) const { return true; }
  bool operator!=(const CacheLineAllocator&) const { return false; }
};

template <class Real>
struct Scratch {
  std::vector<Real, CacheLineAllocator<Real>> columns, gates, work, scores;

  Scratch(const Mixture<Real>& mixture, bool gated_items, int64_t tile)
      : columns(mixture.item_parts * mixture.d * tile),
        gates(gated_items ? mixture.query_parts * mixture.item_parts * tile : 0),
        work((2 * mixture.query_parts * mixture.item_parts + mixture.hidden) * tile), scores(tile) {}
};

}  // namespace softindex
