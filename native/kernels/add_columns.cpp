// Adds columns times numbers to the dot products of all rows.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// dots (16 groups) += columns which[r], each times its number of the query, in this order. In double every product is
// exact.
void add_columns(const ListedColumns& listed, int64_t groups, double* dots) {
  constexpr int64_t columns_at_once = 32, fetched_groups = 8;
  for (int64_t begin = 0; begin < listed.count; begin += columns_at_once) {
    const int64_t end = begin + columns_at_once < listed.count ? begin + columns_at_once : listed.count;
    // Columns lie far apart, where the CPU's own prefetching does not follow.
    for (int64_t r = end; r < end + columns_at_once && r < listed.count; ++r)
      for (int64_t g = 0; g < groups && g < fetched_groups; ++g)
        __builtin_prefetch(listed.columns + listed.which[r] * listed.stride + g * lanes, 0, 3);
    for (int64_t g = 0; g < groups; ++g) {
      DoubleLanes sums = load_double_lanes(dots + g * lanes);
      for (int64_t r = begin; r < end; ++r) {
        const float* const column = listed.columns + listed.which[r] * listed.stride + g * lanes;
        const Doubles value = Doubles{} + (double)listed.query[listed.which[r]];
        for (int p = 0; p < double_parts; ++p)
          sums.part[p] = add_exact_product(sums.part[p], load_doubles(column + p * double_width), value);
      }
      store_double_lanes(dots + g * lanes, sums);
    }
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
