// How rows, lanes and blocks lie in memory: the sizes that kernels and their callers agree on.
#pragma once

#include <cstdint>

#ifndef SOFTINDEX_TARGET
#define SOFTINDEX_TARGET baseline
#endif

namespace softindex {

constexpr int lanes = 16;
constexpr int64_t group_size = 4;     // queries scored together in a batch: the rows are then read once for four
constexpr int64_t most_at_once = 64;  // queries that one scan of a cluster serves at most
constexpr int64_t block_size = 64;    // items per entry of a prefix sum

// Always inlined: a copy compiled for one instruction set must not serve another.
inline __attribute__((always_inline)) int64_t padded(int64_t d) { return (d + lanes - 1) / lanes * lanes; }
inline __attribute__((always_inline)) int64_t blocks(int64_t count) { return (count + block_size - 1) / block_size; }

// A matrix in memory: `limit` is one past its last element, so that a kernel knows where it may read ahead.
template <class Element>
struct Matrix {
  const Element* first;
  int64_t count;
  int64_t d;
  const Element* limit;
};
using Rows = Matrix<float>;

}  // namespace softindex
