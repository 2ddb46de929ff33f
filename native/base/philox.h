// Philox 4x32-10, a counter-based generator: a draw is a pure function of (seed, query, draw number).
//
// J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

namespace softindex {

struct Uniforms {
  double first, second;  // in [0, 1), 53 bits each
};

struct PhiloxBlock {
  uint32_t word[4];
};

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

}  // namespace softindex
