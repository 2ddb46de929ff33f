// Dot products of one query or more with items kept in 16 bits per number.
#include "kernels/scan_residuals.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

void scan_residuals_int16(const Residuals<int16_t>& rows, const float* const* queries, const float* centre_dots,
                          int64_t count, float* dots, int64_t stride) {
  scan_residual_rows(rows, queries, centre_dots, count, dots, stride);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
