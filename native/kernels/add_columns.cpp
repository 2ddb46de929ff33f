// Adds columns times numbers to the dot products of all rows.
#include "base/simd_few.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

constexpr int64_t columns_at_once = 32, fetched_rows = 8 * lanes, most_fetched = 128;

// sums += sixteen rows of a column or fewer, times its number of the query. In double every product is exact.
template <int registers>
SOFTINDEX_INLINE void add_column(Few (&sums)[registers], const float* column, float number) {
  const Few value = splat_few(number);
  for (int p = 0; p < registers; ++p) sums[p] = add_few(sums[p], load_few(column + p * few), value);
}

// dots += up to sixteen rows, from `first` on, of `count` columns; every other column in a sum of its own, since one
// sum would wait for every addition. ahead: how many columns later is the one to fetch. They lie far apart, where the
// CPU's own prefetching does not follow.
template <int registers>
SOFTINDEX_INLINE void add_stretch(const ListedColumns& listed, const int32_t* which, int64_t count, int64_t ahead,
                                  int64_t first, double* dots) {
  const float* const columns = listed.columns + first;
  Few sums[2][registers] = {};
  for (int p = 0; p < registers; ++p) sums[0][p] = *(const LooseFew*)(dots + p * few);
  int64_t r = 0;
  for (; r + 2 <= count; r += 2)
    for (int s = 0; s < 2; ++s) {
      __builtin_prefetch(columns + which[r + s + ahead] * listed.stride, 0, 3);
      add_column(sums[s], columns + which[r + s] * listed.stride, listed.query[which[r + s]]);
    }
  if (r < count) add_column(sums[0], columns + which[r] * listed.stride, listed.query[which[r]]);
  for (int p = 0; p < registers; ++p) *(LooseFew*)(dots + p * few) = sums[0][p] + sums[1][p];
}

using AddStretch = void (*)(const ListedColumns& listed, const int32_t* which, int64_t count, int64_t ahead,
                            int64_t first, double* dots);
// By quarters of sixteen rows: to convert numbers takes longest, and those of the padding are not wanted.
constexpr AddStretch add_stretch_of[4] = {add_stretch<4 / few>, add_stretch<8 / few>, add_stretch<12 / few>,
                                          add_stretch<16 / few>};

}  // namespace

// dots (rows) += columns which[r], each times its number of the query; up to three numbers after the last row are not
// defined.
void add_columns(const ListedColumns& listed, int64_t rows, double* dots) {
  // As far ahead as the first cache has room for.
  const int64_t farthest = rows <= 2 * lanes ? most_fetched : columns_at_once;
  for (int64_t begin = 0; begin < listed.count; begin += columns_at_once) {
    const int64_t left = listed.count - begin, count = left < columns_at_once ? left : columns_at_once;
    const int64_t next = left >= columns_at_once + farthest ? farthest : 0;
    for (int64_t first = 0; first < rows; first += lanes) {
      const int64_t quarters = rows - first < lanes ? (rows - first + 3) / 4 : 4;
      // What is fetched of many rows would be gone from the cache before it is read.
      const int64_t ahead = first < fetched_rows ? next : 0;
      add_stretch_of[quarters - 1](listed, listed.which + begin, count, ahead, first, dots + first);
    }
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
