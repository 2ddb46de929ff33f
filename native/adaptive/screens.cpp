// Dot products of all rows, coded in few bits, with a batch of queries.
#include "adaptive/screens.h"

#include <algorithm>

#include "base/parallel.h"

namespace softindex {
namespace {

// Calls work(begin, end) for stretches of rows, each a few pages long.
template <class Work>
void for_each_stretch(int64_t n, int64_t row_bytes, int64_t threads, const Work& work) {
  const int64_t step = std::max<int64_t>(16, (1 << 18) / row_bytes) / 4 * 4;
  parallel((n + step - 1) / step, threads, [&](const auto& next) {
    for (int64_t task = next(); task >= 0; task = next()) work(task * step, std::min(n, (task + 1) * step));
  });
}

}  // namespace

void screen_rows(const Kernels& kernels, Matrix<int8_t> rows, const int16_t* queries, int64_t count, int64_t threads,
                 int64_t* dots) {
  const int64_t n = rows.count, d = rows.d;
  for_each_stretch(n, d, threads, [&](int64_t begin, int64_t end) {
    const Matrix<int8_t> stretch = {rows.first + begin * d, end - begin, d, rows.limit};
    for (int64_t g = 0; g < count; g += group_size)
      kernels.screen(stretch, queries + g * padded(d), std::min(group_size, count - g), dots + g * n + begin, n);
  });
}

void screen_nibble_rows(const Kernels& kernels, const NibbleRows& rows, const int8_t* queries, int64_t count,
                        int64_t threads, int64_t* dots) {
  const int64_t n = rows.count, chunks = rows.chunks, row_bytes = 32 * chunks;
  for_each_stretch(n, row_bytes, threads, [&](int64_t begin, int64_t end) {
    for (int64_t g = 0; g < count; g += group_size)
      kernels.screen_nibbles(rows.first + begin * row_bytes, end - begin, chunks, queries + g * 64 * chunks,
                             std::min(group_size, count - g), dots + g * n + begin, n);
  });
}

}  // namespace softindex
