// Memory that starts on a cache line.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace softindex {

// Allocates memory that starts on a cache line: a register read across two lines costs two reads.
template <class T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t line{64};

  CacheLineAllocator() = default;
  template <class Other>
  CacheLineAllocator(const CacheLineAllocator<Other>&) {}  // NOLINT(google-explicit-constructor): containers rely on it
  T* allocate(size_t count) { return (T*)::operator new(count * sizeof(T), line); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, line); }
  bool operator==(const CacheLineAllocator&) const { return true; }
  bool operator!=(const CacheLineAllocator&) const { return false; }
};

template <class T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;

}  // namespace softindex
