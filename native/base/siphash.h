// SipHash-1-3: a hash under a secret key, so that nobody can choose strings that collide.
//
// J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012; with one round per word and three
// at the end, which is enough for hash tables.
#pragma once

#include <cstdint>
#include <cstring>

namespace softindex {

struct HashKey {
  uint64_t low, high;
};

class SipHash {
 public:
  explicit SipHash(const HashKey& key)
      : v0_(key.low ^ 0x736f6d6570736575ull), v1_(key.high ^ 0x646f72616e646f6dull),
        v2_(key.low ^ 0x6c7967656e657261ull), v3_(key.high ^ 0x7465646279746573ull) {}

  void add(uint64_t word) {
    v3_ ^= word;
    rounds(1);
    v0_ ^= word;
  }

  uint64_t value() {
    v2_ ^= 0xff;
    rounds(3);
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  static uint64_t rotate(uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0_ += v1_;
      v2_ += v3_;
      v1_ = rotate(v1_, 13) ^ v0_;
      v3_ = rotate(v3_, 16) ^ v2_;
      v0_ = rotate(v0_, 32) + v3_;
      v2_ += v1_;
      v3_ = rotate(v3_, 21) ^ v0_;
      v1_ = rotate(v1_, 17) ^ v2_;
      v2_ = rotate(v2_, 32);
    }
  }

  uint64_t v0_, v1_, v2_, v3_;
};

inline uint64_t keyed_hash(const HashKey& key, const void* data, int64_t size) {
  const char* bytes = static_cast<const char*>(data);
  SipHash hash(key);
  uint64_t word = 0;
  int64_t left = size;
  for (; left >= 8; left -= 8, bytes += 8) {
    std::memcpy(&word, bytes, 8);
    hash.add(word);
  }
  // The last word has the bytes left over, and the length in its highest byte.
  word = 0;
  if (left > 0) std::memcpy(&word, bytes, (size_t)left);
  hash.add(word | (uint64_t)size << 56);
  return hash.value();
}

}  // namespace softindex
