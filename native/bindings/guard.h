// A guard with the arrays that it points into.
#pragma once

#include <string>

#include "base/guard.h"
#include "bindings/arrays.h"

namespace softindex {

struct BoundGuard {
  In<uint8_t, 1> data;
  In<uint64_t, 1> sums;
  Guard guard;

  BoundGuard(In<uint8_t, 1> data, In<uint64_t, 1> sums, int64_t block_bytes, const std::string& name)
      : data(data), sums(sums), guard(data.data(), checked(data, sums, block_bytes), sums.data(), block_bytes, name) {}

 private:
  // The number of bytes.
  static int64_t checked(const In<uint8_t, 1>& data, const In<uint64_t, 1>& sums, int64_t block_bytes) {
    const int64_t bytes = data.shape(0);
    expect(block_bytes >= 64 && block_bytes % 64 == 0 && bytes % 64 == 0, "blocks are multiples of 64 bytes");
    expect((int64_t)sums.shape(0) == (bytes + block_bytes - 1) / block_bytes, "there is one checksum per block");
    return bytes;
  }
};

}  // namespace softindex
