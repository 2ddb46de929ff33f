// Compares mapped memory with the checksums of its blocks, each block before it is read for the first time.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace softindex {

// A 64-bit checksum of bytes, a multiple of 64, at memory speed. Every step maps states to states one to one, and words
// to states one to one: damage inside one aligned word of eight bytes never goes unnoticed, other damage with
// probability 2^-64.
inline uint64_t block_sum(const void* data, int64_t bytes) {
  constexpr uint64_t multiplier = 0x9E3779B97F4A7C15ull;
  constexpr int lanes = 8;  // as a multiplication takes several cycles, and eight can be under way at the same time
  const auto mix = [](uint64_t state, uint64_t word) {
    state ^= word;
    return (state << 29 | state >> 35) * multiplier;
  };
  uint64_t states[lanes] = {1, 2, 3, 4, 5, 6, 7, 8};
  const char* place = static_cast<const char*>(data);
  for (const char* end = place + bytes; place < end; place += lanes * sizeof(uint64_t)) {
    uint64_t words[lanes];
    std::memcpy(words, place, sizeof(words));
    for (int i = 0; i < lanes; ++i) states[i] = mix(states[i], words[i]);
  }
  uint64_t sum = (uint64_t)bytes;
  for (uint64_t state : states) sum = mix(sum, state ^ state >> 32);
  return sum ^ sum >> 32;
}

class Guard {
 public:
  // sums: one per block of block_bytes, the last block being shorter.
  Guard(const void* data, int64_t bytes, const uint64_t* sums, int64_t block_bytes, std::string name)
      : data_(static_cast<const char*>(data)), bytes_(bytes), sums_(sums), block_(block_bytes), name_(std::move(name)),
        checked_((bytes + block_bytes - 1) / block_bytes) {}

  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // std::runtime_error unless the bytes from begin to end are those that were written. Any number of threads may check:
  // two that check the same block for the first time come to the same result.
  void check(int64_t begin, int64_t end) const {
    for (int64_t block = begin / block_; block * block_ < end; ++block)
      if (!checked_[block].load(std::memory_order_relaxed)) check_block(block);
  }
  void check_all() const { check(0, bytes_); }

  int64_t bytes() const { return bytes_; }

 private:
  void check_block(int64_t block) const {
    const int64_t begin = block * block_, size = begin + block_ < bytes_ ? block_ : bytes_ - begin;
    if (block_sum(data_ + begin, size) != sums_[block])
      throw std::runtime_error(name_ + " differs from what was saved, in the " + std::to_string(size) +
                               " bytes from byte " + std::to_string(begin) + " on");
    checked_[block].store(1, std::memory_order_relaxed);
  }

  const char* data_;
  int64_t bytes_;
  const uint64_t* sums_;
  int64_t block_;
  std::string name_;
  mutable std::vector<std::atomic<uint8_t>> checked_;
};

}  // namespace softindex
