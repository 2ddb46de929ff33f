// Random streams named by the content of a query, so that draws do not depend on how queries are batched or ordered:
// a counter-based generator, a hash of the query's numbers, and the stream of each query of a call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/interrupt.h"

namespace softindex {

struct Uniforms {
  double first, second;  // in [0, 1), 53 bits each
};

struct PhiloxBlock {
  uint32_t word[4];
};

// Philox 4x32-10: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
inline PhiloxBlock philox(uint64_t key, uint64_t low, uint64_t high) {
  PhiloxBlock x = {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t even = (uint64_t)0xD2511F53u * x.word[0], odd = (uint64_t)0xCD9E8D57u * x.word[2];
    x = {{(uint32_t)(odd >> 32) ^ x.word[1] ^ k0, (uint32_t)odd, (uint32_t)(even >> 32) ^ x.word[3] ^ k1,
          (uint32_t)even}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}

inline double to_uniform(uint32_t low, uint32_t high) {
  return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1.0p-53;
}

inline Uniforms uniforms(uint64_t key, uint64_t stream, uint64_t draw) {
  const PhiloxBlock x = philox(key, stream, draw);
  return {to_uniform(x.word[0], x.word[1]), to_uniform(x.word[2], x.word[3])};
}

// A 64-bit hash of bytes. Multiply-and-fold over eight bytes at a time (the multiplier is 2^64 over the golden ratio),
// finished by one Philox block, which leaves no structure of the input behind.
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

// Random numbers of one query under one seed: those of draw j are a pure function of (seed, name, j).
struct Stream {
  uint64_t seed, name;

  Uniforms operator()(uint64_t draw) const { return uniforms(seed, name, draw); }
  // Numbers for a further attempt at the same draws: the keys lie far apart.
  Stream attempt(uint64_t i) const { return {seed + i * 0x9E3779B97F4A7C15ull, name}; }
};

// What the queries of a call are called.
struct QueryNames {
  std::vector<uint64_t> contents;  // hash of the query's numbers
  std::vector<uint64_t> streams;   // the same, but later copies of a query in one call get other names
};

inline QueryNames name_queries(const float* queries, int64_t b, int64_t d) {
  QueryNames names;
  std::vector<uint64_t>& contents = names.contents;
  contents.resize(b);
  for (int64_t q = 0; q < b; ++q) {
    check_interrupt_every(1 << 10, q);
    contents[q] = hash_query(queries + q * d, d);
  }
  names.streams = contents;
  if (b == 1) return names;
  std::vector<int64_t> order(b);
  std::iota(order.begin(), order.end(), 0);
  sort_until_interrupted(order.data(), order.data() + b, [&](int64_t a, int64_t c) {
    return contents[a] != contents[c] ? contents[a] < contents[c] : a < c;
  });
  uint64_t copy = 0;
  for (int64_t i = 1; i < b; ++i) {
    copy = contents[order[i]] == contents[order[i - 1]] ? copy + 1 : 0;
    if (copy == 0) continue;
    const uint64_t name[2] = {contents[order[i]], copy};
    names.streams[order[i]] = hash_bytes(name, sizeof(name));
  }
  return names;
}

}  // namespace softindex
