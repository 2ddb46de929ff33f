// Dot products of consecutive long float32 rows with a float32 query: stretches are added in float32, their sums in
// double.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

// As many as there are registers for: each sum has to wait for its own additions.
constexpr int together = width == 4 ? 2 : 8 / (16 / width);

SOFTINDEX_INLINE void add_doubles(DoubleLanes& total, const Lanes& more) {
  float numbers[lanes];
  store(numbers, more);
  for (int p = 0; p < double_parts; ++p) total.part[p] += load_doubles(numbers + p * double_width);
}

template <int count>
SOFTINDEX_INLINE void scan_some(const float* rows, int64_t d, const float* query, double* dots) {
  const int64_t whole = d / lanes * lanes;
  DoubleLanes total[count] = {};
  for (int64_t begin = 0; begin < whole; begin += float_stretch) {
    const int64_t end = begin + float_stretch < whole ? begin + float_stretch : whole;
    Lanes sums[count] = {};
    for (int64_t j = begin; j < end; j += lanes) {
      const Lanes numbers = load(query + j);
      for (int r = 0; r < count; ++r) add_product(sums[r], load(rows + r * d + j), numbers);
    }
    for (int r = 0; r < count; ++r) add_doubles(total[r], sums[r]);
  }
  for (int r = 0; r < count; ++r) {
    dots[r] = fold(total[r]);
    for (int64_t j = whole; j < d; ++j) dots[r] += (double)rows[r * d + j] * (double)query[j];
  }
}

}  // namespace

// A lane has float_stretch / 16 additions in float32 before they go on in double.
void scan_stretches(Rows rows, const float* query, double* dots) {
  int64_t r = 0;
  for (; r + together <= rows.count; r += together)
    scan_some<together>(rows.first + r * rows.d, rows.d, query, dots + r);
  if (together > 4 && r + 4 <= rows.count) {
    scan_some<4>(rows.first + r * rows.d, rows.d, query, dots + r);
    r += 4;
  }
  for (; r + 2 <= rows.count; r += 2) scan_some<2>(rows.first + r * rows.d, rows.d, query, dots + r);
  if (r < rows.count) scan_some<1>(rows.first + r * rows.d, rows.d, query, dots + r);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
