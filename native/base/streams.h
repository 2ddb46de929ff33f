// Random streams named by the content of a query, so that draws do not depend on how queries are batched or ordered.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/hash.h"
#include "base/interrupt.h"
#include "base/philox.h"

namespace softindex {

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
