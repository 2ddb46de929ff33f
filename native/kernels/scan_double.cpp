// Dot products of float32 rows with a float32 query, added in double.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

template <int count>
SOFTINDEX_INLINE void scan_some(const Rows& rows, int64_t stride, const float* query, double* sums) {
  DoubleLanes total[count];
  for (int r = 0; r < count; ++r) total[r] = load_double_lanes(sums + r * lanes);
  for (int64_t j = 0; j < rows.d; j += lanes) {
    DoubleLanes numbers;
    for (int p = 0; p < double_parts; ++p) numbers.part[p] = load_doubles(query + j + p * double_width);
    for (int r = 0; r < count; ++r) {
      const float* const row = rows.first + r * stride + j;
      __builtin_prefetch(row + 256, 0, 3);
      for (int p = 0; p < double_parts; ++p)
        total[r].part[p] = add_exact_product(total[r].part[p], load_doubles(row + p * double_width), numbers.part[p]);
    }
  }
  for (int r = 0; r < count; ++r) store_double_lanes(sums + r * lanes, total[r]);
}

}  // namespace

// sums (count, 16) += the products of one to four rows, which start `stride` numbers apart, with the query, lane by
// lane: what `double_dot` adds, in the same order, before it folds the lanes. rows.d: a multiple of sixteen.
void scan_double(Rows rows, int64_t stride, const float* query, double* sums) {
  if (rows.count == 4) return scan_some<4>(rows, stride, query, sums);
  for (int64_t r = 0; r < rows.count; ++r)
    scan_some<1>({rows.first + r * stride, 1, rows.d, rows.limit}, 0, query, sums + r * lanes);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
