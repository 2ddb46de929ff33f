// Scans of items by position, wherever their vectors lie: dot products, -infinity for an item that was removed.
#pragma once

#include "index/view.h"

namespace softindex {

// An item that was removed, or excluded, has this dot product: no weight, and a score below all others.
constexpr float gone = -std::numeric_limits<float>::infinity();

// Dot products (to - from) of the items at these positions with one padded query.
void scan_items(const Kernels& kernels, const View& view, int64_t from, int64_t to, const float* query, float* dots);

// Queries that are scanned together, up to most_at_once, and where their dot products go: those of query g begin at
// dots + g * stride.
struct Scan {
  const float* const* queries;
  int64_t count;
  float* dots;
  int64_t stride;
};

// The same for these queries, each row of memory being read once.
void scan_items_together(const Kernels& kernels, const View& view, int64_t from, int64_t to, const Scan& scan);

// Marks the removed items among scores of the positions from .. to.
void mark_removed(const View& view, int64_t from, int64_t to, float* scores);

// Where the item at a position is kept, to be fetched ahead of time; it may be kept as integers.
struct StoredItem {
  const void* first;
  int64_t bytes;
};
StoredItem stored_at(const View& view, int64_t position);

}  // namespace softindex
