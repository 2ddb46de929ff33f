// Dot products of consecutive float32 rows with a float32 query, in double, at the speed of memory.
#include "base/simd_few.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

// Short rows are read one by one, which the CPU's own prefetching follows best. Longer ones are read together, as many
// as there are registers for: each sum would have to wait for its own additions.
#if defined(__AVX512F__)
constexpr int64_t together = 7;
#elif defined(__AVX2__)
constexpr int64_t together = 3;
#else
constexpr int64_t together = 1;
#endif

// Numbers of a row that are fetched before they are read.
constexpr int64_t fetched_ahead = 512;
// Registers of sixteen numbers.
constexpr int steps = lanes / few;

// Adds sixteen numbers of each row, from `rows` on and d apart, times those of the query; and, if there is one sum more
// than rows, the squares of the query.
template <int count, int sums>
SOFTINDEX_INLINE void add_sixteen(Few (&total)[sums][steps], const float* rows, int64_t d, const float* query) {
  for (int p = 0; p < steps; ++p) {
    const Few numbers = load_few(query + few * p);
    for (int r = 0; r < count; ++r) total[r][p] = add_few(total[r][p], load_few(rows + r * d + few * p), numbers);
    if (sums > count) total[sums - 1][p] = add_few(total[sums - 1][p], numbers, numbers);
  }
}

// 16 -> 8 -> 4 -> 2 -> 1, as `fold` in simd_double.h.
SOFTINDEX_INLINE double fold_few(const Few (&total)[steps]) {
  double sums[lanes];
  for (int l = 0; l < lanes; ++l) sums[l] = total[l / few][l % few];
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  return sums[0];
}

// The numbers from `begin` to d, then zeros.
SOFTINDEX_INLINE void copy_rest(const float* numbers, int64_t begin, int64_t d, float* rest) {
  for (int l = 0; l < lanes; ++l) rest[l] = begin + l < d ? numbers[begin + l] : 0.0f;
}

SOFTINDEX_INLINE void count_numbers(IntVector& counts, const float* query) {
  const Lanes numbers = load(query);
  for (int p = 0; p < parts; ++p) counts -= numbers.part[p] != 0.0f;
}

SOFTINDEX_INLINE int64_t sum_counts(const IntVector& counts) {
  int64_t sum = 0;
  for (int l = 0; l < width; ++l) sum += counts[l];
  return sum;
}

// surveyed: 1 to look at the query on the way, or 0.
template <int count, int surveyed>
void dot_some(const float* rows, int64_t d, const float* query, double* dots, Survey* found) {
  Few total[count + surveyed][steps] = {};
  IntVector counts = {};
  const int64_t whole = d / lanes * lanes;
  for (int64_t j = 0; j < whole; j += lanes) {
    // The CPU's own prefetching falls behind where rows are read together. After a row comes one of the next group.
    const int64_t ahead = j + fetched_ahead;
    const float* const next = rows + (ahead < d ? ahead : ahead + (count - 1) * d);
    for (int r = 0; r < count; ++r) __builtin_prefetch(next + r * d, 0, 3);
    add_sixteen<count>(total, rows + j, d, query + j);
    if (surveyed) count_numbers(counts, query + j);
  }
  if (whole < d) {
    float rest[lanes];
    copy_rest(query, whole, d, rest);
    add_sixteen<count>(total, rows + whole, d, rest);
    if (surveyed) count_numbers(counts, rest);
  }
  for (int r = 0; r < count; ++r) dots[r] = fold_few(total[r]);
  if (surveyed) *found = {fold_few(total[count + surveyed - 1]), sum_counts(counts)};
}

using DotSome = void (*)(const float* rows, int64_t d, const float* query, double* dots, Survey* found);
constexpr DotSome dot_some_of[2][8] = {{nullptr, dot_some<1, 0>, dot_some<2, 0>, dot_some<3, 0>, dot_some<4, 0>,
                                        dot_some<5, 0>, dot_some<6, 0>, dot_some<7, 0>},
                                       {nullptr, dot_some<1, 1>, dot_some<2, 1>, dot_some<3, 1>, dot_some<4, 1>,
                                        dot_some<5, 1>, dot_some<6, 1>, dot_some<7, 1>}};

void dot_long(const float* rows, int64_t count, int64_t d, const float* query, double* dots, Survey* found) {
  // Ten rows are twice five: three would be read slowly.
  int64_t groups = (count + together - 1) / together;
  for (; groups > 0; --groups) {
    const int64_t size = (count + groups - 1) / groups;
    dot_some_of[found == nullptr ? 0 : 1][size](rows, d, query, dots, found);
    found = nullptr;
    rows += size * d;
    dots += size;
    count -= size;
  }
}

void dot_short(const float* rows, int64_t count, int64_t d, const float* query, double* dots) {
  const int64_t length = padded(d);
  alignas(64) double wide[short_row];
  for (int64_t j = 0; j < length; ++j) wide[j] = j < d ? (double)query[j] : 0.0;
  for (int64_t r = 0; r < count; ++r) {
    DoubleLanes total = {};
    for (int64_t j = 0; j < length; j += lanes) {
      const DoubleLanes numbers = load_double_lanes(wide + j);
      for (int p = 0; p < double_parts; ++p) {
        const Doubles these = load_doubles(rows + r * d + j + p * double_width);
        total.part[p] = add_exact_product(total.part[p], these, numbers.part[p]);
      }
    }
    dots[r] = fold(total);
  }
}

}  // namespace

// dots[r] = the sum that `double_dot` has for row r. A row is read to the next multiple of sixteen: what follows it is
// multiplied by zero, and adds nothing. Only the last row before rows.limit is not followed by others. found: what
// `survey` finds in the query, or nullptr, as for short rows.
void scan_all_double(Rows rows, const float* query, double* dots, Survey* found) {
  const int64_t d = rows.d, whole = d / lanes * lanes;
  const bool ends = rows.first + (rows.count - 1) * d + padded(d) > rows.limit;
  const int64_t safe = rows.count - (ends ? 1 : 0);
  if (d <= short_row)
    dot_short(rows.first, safe, d, query, dots);
  else
    dot_long(rows.first, safe, d, query, dots, found);
  if (!ends) return;
  const float* const row = rows.first + safe * d;
  float rest[lanes], rest_of_query[lanes];
  copy_rest(row, whole, d, rest);
  copy_rest(query, whole, d, rest_of_query);
  Few total[2][steps] = {};
  IntVector counts = {};
  for (int64_t j = 0; j < whole; j += lanes) {
    add_sixteen<1>(total, row + j, 0, query + j);
    count_numbers(counts, query + j);
  }
  add_sixteen<1>(total, rest, 0, rest_of_query);
  count_numbers(counts, rest_of_query);
  dots[safe] = fold_few(total[0]);
  if (found != nullptr) *found = {fold_few(total[1]), sum_counts(counts)};
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
