// Dot products of all rows, coded in few bits, with a batch of queries.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace softindex {

// Which rows to multiply: the first `count`, or those that are named.
struct Chosen {
  int64_t count;
  const int64_t* which;  // null for the first ones
};

// rows (n, d); queries (count, padded(d)), padded with zeros, within -16383 .. 16383; dots (count, chosen.count).
void screen_rows(const Kernels& kernels, Matrix<int8_t> rows, Chosen chosen, const int16_t* queries, int64_t count,
                 int64_t threads, int64_t* dots);

// Rows of 4-bit integers, two in a byte, in chunks of 32 bytes: see screen_nibbles.cpp.
struct NibbleRows {
  const uint8_t* first;
  int64_t count, chunks;
};

// queries (count, 64 chunks), within -127 .. 127; dots (count, chosen.count).
void screen_nibble_rows(const Kernels& kernels, const NibbleRows& rows, Chosen chosen, const int8_t* queries,
                        int64_t count, int64_t threads, int64_t* dots);

}  // namespace softindex
