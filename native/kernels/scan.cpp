// Dot products of one query, or of many, with every row of a float32 matrix.
#include "kernels/scan_together.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// query (padded(d)), padded with zeros; dots (rows.count).
void scan(Rows rows, const float* query, float* dots) { scan_rows(rows, query, dots); }

// queries (count) pointers to padded queries; dots (count, stride).
void scan_many(Rows rows, const float* const* queries, int64_t count, float* dots, int64_t stride) {
  if (count == 1) return scan_rows(rows, queries[0], dots);
  scan_together(rows, queries, count, dots, stride);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
