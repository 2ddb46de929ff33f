// Dot products of consecutive float32 rows with a float32 query, in double, at the speed of memory.
#include "base/simd_double.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

// Short rows are read one by one, which the CPU's own prefetching follows best. Longer ones are read together, as many
// as there are registers for: each sum would have to wait for its own additions.
constexpr int together = width == 16 ? 8 : 2;

SOFTINDEX_INLINE DoubleLanes load_wide(const double* from) { return load_double_lanes(from); }
SOFTINDEX_INLINE DoubleLanes load_wide(const float* from) {
  DoubleLanes result;
  for (int p = 0; p < double_parts; ++p) result.part[p] = load_doubles(from + p * double_width);
  return result;
}

SOFTINDEX_INLINE void add_products(DoubleLanes& total, const float* row, const DoubleLanes& numbers) {
  for (int p = 0; p < double_parts; ++p)
    total.part[p] = add_exact_product(total.part[p], load_doubles(row + p * double_width), numbers.part[p]);
}

// length: a multiple of sixteen.
template <int count, class Number>
SOFTINDEX_INLINE void dot_some(const float* rows, int64_t d, int64_t length, const Number* query, double* dots) {
  DoubleLanes total[count] = {};
  for (int64_t j = 0; j < length; j += lanes) {
    const DoubleLanes numbers = load_wide(query + j);
    for (int r = 0; r < count; ++r) add_products(total[r], rows + r * d + j, numbers);
  }
  for (int r = 0; r < count; ++r) dots[r] = fold(total[r]);
}

void dot_long(const float* rows, int64_t count, int64_t d, const float* query, double* dots) {
  const int64_t length = padded(d);
  int64_t r = 0;
  for (; r + together <= count; r += together) dot_some<together>(rows + r * d, d, length, query, dots + r);
  if (together > 4 && r + 4 <= count) {
    dot_some<4>(rows + r * d, d, length, query, dots + r);
    r += 4;
  }
  for (; r + 2 <= count; r += 2) dot_some<2>(rows + r * d, d, length, query, dots + r);
  if (r < count) dot_some<1>(rows + r * d, d, length, query, dots + r);
}

void dot_short(const float* rows, int64_t count, int64_t d, const float* query, double* dots) {
  const int64_t length = padded(d);
  alignas(64) double wide[short_row];
  for (int64_t j = 0; j < length; ++j) wide[j] = (double)query[j];
  for (int64_t r = 0; r < count; ++r) dot_some<1>(rows + r * d, d, length, (const double*)wide, dots + r);
}

}  // namespace

// dots[r] = the sum that `double_dot` has for row r. query: padded(d) numbers, zeros after the first d. A row is read
// to the next multiple of sixteen: what follows it is multiplied by zero, and adds nothing. Only the last row before
// rows.limit is not followed by others.
void scan_all_double(Rows rows, const float* query, double* dots) {
  const bool ends = rows.first + (rows.count - 1) * rows.d + padded(rows.d) > rows.limit;
  const int64_t safe = rows.count - (ends ? 1 : 0);
  (rows.d <= short_row ? dot_short : dot_long)(rows.first, safe, rows.d, query, dots);
  if (!ends) return;
  const float* const row = rows.first + safe * rows.d;
  const int64_t whole = rows.d / lanes * lanes;
  float rest[lanes] = {};
  for (int64_t j = whole; j < rows.d; ++j) rest[j - whole] = row[j];
  DoubleLanes total = {};
  for (int64_t j = 0; j < whole; j += lanes) add_products(total, row + j, load_wide(query + j));
  add_products(total, rest, load_wide(query + whole));
  dots[safe] = fold(total);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
