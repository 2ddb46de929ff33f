// Positions of ids: integers by their sorted values, strings by their sorted keyed hashes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/siphash.h"
#include "ids/sorted_keys.h"

namespace softindex {

// Position of an id that is not there.
constexpr int64_t not_there = -1;

// Positions as a file has them, in one of two widths.
struct StoredPositions {
  const int32_t* narrow = nullptr;
  const int64_t* wide = nullptr;

  int64_t operator[](int64_t rank) const { return narrow != nullptr ? narrow[rank] : wide[rank]; }
  const void* at(int64_t rank) const { return narrow != nullptr ? (const void*)(narrow + rank) : wide + rank; }
};

// std::runtime_error where an id of a damaged file points to no item.
class IntegerTable {
 public:
  IntegerTable(const int64_t* keys, const StoredPositions& positions, int64_t n)
      : keys_(keys, n), positions_(positions), n_(n) {}

  // found (m): the positions of the wanted ids (m). Returns how many are not there.
  int64_t find(const int64_t* wanted, int64_t m, int64_t* found) const;

 private:
  SortedKeys<int64_t> keys_;
  StoredPositions positions_;
  int64_t n_;
};

struct Text {
  const char* bytes;
  int64_t size;
};

// Strings one after the other.
struct Strings {
  const char* text;
  int64_t length;       // of all text
  const int64_t* ends;  // (n)
  int64_t n;

  // std::runtime_error where a damaged file has no such text.
  Text at(int64_t position) const;
};

class StringTable {
 public:
  StringTable(const Strings& strings, const uint64_t* hashes, const StoredPositions& positions, const HashKey& key)
      : strings_(strings), hashes_(hashes, strings.n), positions_(positions), key_(key) {}

  // found (m): the positions of the wanted ids (m). Returns how many are not there.
  int64_t find(const Text* wanted, int64_t m, int64_t* found) const;

 private:
  void find_some(const Text* wanted, int64_t m, int64_t* found) const;

  Strings strings_;
  SortedKeys<uint64_t> hashes_;
  StoredPositions positions_;
  HashKey key_;
};

}  // namespace softindex
