// Dot products of all rows, coded in few bits, with a batch of queries.
#include "adaptive/screens.h"

#include <algorithm>

#include "base/parallel.h"

namespace softindex {
namespace {

// Calls work(row, rows, place) for stretches of rows, each a few pages long: `rows` rows from `row` on, whose dot
// products go to `place` and after. Named rows are stretches of one.
template <class Work>
void for_each_stretch(Chosen chosen, int64_t row_bytes, int64_t threads, const Work& work) {
  const int64_t step = std::max<int64_t>(16, (1 << 18) / row_bytes) / 4 * 4;
  parallel((chosen.count + step - 1) / step, threads, [&](const auto& next) {
    for (int64_t task = next(); task >= 0; task = next()) {
      const int64_t begin = task * step, end = std::min(chosen.count, begin + step);
      if (chosen.which == nullptr) {
        work(begin, end - begin, begin);
      } else {
        for (int64_t i = begin; i < end; ++i) work(chosen.which[i], 1, i);
      }
    }
  });
}

}  // namespace

void screen_rows(const Kernels& kernels, Matrix<int8_t> rows, Chosen chosen, const int16_t* queries, int64_t count,
                 int64_t threads, int64_t* dots) {
  const int64_t d = rows.d, stride = chosen.count;
  for_each_stretch(chosen, d, threads, [&](int64_t row, int64_t length, int64_t place) {
    const Matrix<int8_t> stretch = {rows.first + row * d, length, d, rows.limit};
    for (int64_t g = 0; g < count; g += group_size)
      kernels.screen(stretch, queries + g * padded(d), std::min(group_size, count - g), dots + g * stride + place,
                     stride);
  });
}

void screen_nibble_rows(const Kernels& kernels, const NibbleRows& rows, Chosen chosen, const int8_t* queries,
                        int64_t count, int64_t threads, int64_t* dots) {
  const int64_t chunks = rows.chunks, row_bytes = 32 * chunks, stride = chosen.count;
  for_each_stretch(chosen, row_bytes, threads, [&](int64_t row, int64_t length, int64_t place) {
    for (int64_t g = 0; g < count; g += group_size)
      kernels.screen_nibbles(rows.first + row * row_bytes, length, chunks, queries + g * 64 * chunks,
                             std::min(group_size, count - g), dots + g * stride + place, stride);
  });
}

}  // namespace softindex
