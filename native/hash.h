// A 64-bit hash of bytes: names the random stream of a query by its content, and finds string ids.
#pragma once

#include <cstdint>
#include <cstring>

#include "philox.h"

namespace softindex {

// Multiply-and-fold over eight bytes at a time (the multiplier is 2^64 over the golden ratio), finished by one
// Philox block, which leaves no structure of the input behind.
inline uint64_t hash_bytes(const void* data, int64_t size) {
  const uint64_t multiplier = 0x9E3779B97F4A7C15ull;
  const char* bytes = static_cast<const char*>(data);
  uint64_t state = multiplier ^ (uint64_t)size;
  while (size > 0) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, size < 8 ? (size_t)size : 8);
    state = (state ^ word) * multiplier;
    state ^= state >> 29;
    bytes += 8;
    size -= 8;
  }
  const PhiloxBlock block = philox(state, state, 0);
  return ((uint64_t)block.word[1] << 32) | block.word[0];
}

}  // namespace softindex
