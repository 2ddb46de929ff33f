// Dot products of float32 rows with a float32 query: stretches are added in float32, and their sums in double.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

template <int count>
SOFTINDEX_INLINE void scan_some(const Rows& rows, int64_t stride, const float* query, double* sums) {
  for (int64_t begin = 0; begin < rows.d; begin += float_stretch) {
    const int64_t end = begin + float_stretch < rows.d ? begin + float_stretch : rows.d;
    Lanes total[count] = {};
    for (int64_t j = begin; j < end; j += lanes) {
      const Lanes numbers = load(query + j);
      for (int r = 0; r < count; ++r) {
        const float* const row = rows.first + r * stride + j;
        add_product(total[r], load(row), numbers);
      }
    }
    for (int r = 0; r < count; ++r) {
      float folded[lanes];
      store(folded, total[r]);
      for (int p = 0; p < double_parts; ++p) {
        double* const to = sums + r * lanes + p * double_width;
        store_doubles(to, load_doubles(to) + load_doubles(folded + p * double_width));
      }
    }
  }
}

}  // namespace

// sums (count, 16) += the products of one to four rows, which start `stride` numbers apart, with the query, lane by
// lane. rows.d: a multiple of sixteen. A lane has float_stretch / 16 additions in float32 before they go on in double.
void scan_stretches(Rows rows, int64_t stride, const float* query, double* sums) {
  if (rows.count == 4) return scan_some<4>(rows, stride, query, sums);
  for (int64_t r = 0; r < rows.count; ++r)
    scan_some<1>({rows.first + r * stride, 1, rows.d, rows.limit}, 0, query, sums + r * lanes);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
