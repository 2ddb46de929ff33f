// A 64-bit hash of bytes: names the random stream of a query by its content.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/philox.h"

namespace softindex {

// Multiply-and-fold over eight bytes at a time (the multiplier is 2^64 over the golden ratio), finished by one
// Philox block, which leaves no structure of the input behind.
class Hash {
 public:
  explicit Hash(int64_t size) : state_(multiplier ^ (uint64_t)size) {}

  void add(uint64_t word) {
    state_ = (state_ ^ word) * multiplier;
    state_ ^= state_ >> 29;
  }

  uint64_t value() const {
    const PhiloxBlock block = philox(state_, state_, 0);
    return ((uint64_t)block.word[1] << 32) | block.word[0];
  }

 private:
  static constexpr uint64_t multiplier = 0x9E3779B97F4A7C15ull;
  uint64_t state_;
};

inline uint64_t hash_bytes(const void* data, int64_t size) {
  const char* bytes = static_cast<const char*>(data);
  Hash hash(size);
  for (; size > 0; size -= 8, bytes += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, size < 8 ? (size_t)size : 8);
    hash.add(word);
  }
  return hash.value();
}

// The hash of a query's numbers. -0 and 0 are the same number and hash to the same value.
inline uint64_t hash_query(const float* query, int64_t d) {
  Hash hash(d * (int64_t)sizeof(float));
  for (int64_t j = 0; j < d; j += 2) {
    const float pair[2] = {query[j] + 0.0f, j + 1 < d ? query[j + 1] + 0.0f : 0.0f};
    uint64_t word;
    std::memcpy(&word, pair, sizeof(word));
    hash.add(word);
  }
  return hash.value();
}

}  // namespace softindex
