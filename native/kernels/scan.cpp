// Dot products of one query, or of four, with every row of a float32 matrix.
#include "kernels/scan_rows.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// query (padded(d)), padded with zeros; dots (rows.count).
void scan(Rows rows, const float* query, float* dots) { scan_rows(rows, query, dots); }

// queries (group_size) pointers to padded queries; dots (group_size, stride).
void scan_group(Rows rows, const float* const* queries, float* dots, int64_t stride) {
  scan_four(rows, queries, dots, stride);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
