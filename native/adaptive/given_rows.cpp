// Dot products in double with rows as the caller has them: float32, float16 or bfloat16.
#include "adaptive/given_rows.h"

#include <algorithm>

#include "adaptive/rows.h"
#include "base/interrupt.h"

namespace softindex {
namespace {

constexpr int64_t rows_at_once = 4;  // as in scan_double.cpp
// Numbers of a row at a time: those that are converted stay in the first cache.
constexpr int64_t plain_stretch = 1 << 20, converted_stretch = 1 << 10;
// Numbers between two looks for an interrupt.
constexpr int64_t numbers_at_once = 1 << 23;

double fold(double* sums) {
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  return sums[0];
}

}  // namespace

// The numbers begin <= j < end of `count` rows, as float32, and how far apart the rows are.
const float* RowReader::converted(int64_t row, int64_t count, int64_t begin, int64_t end, int64_t& stride) {
  const int64_t length = end - begin;
  stride = converted_stretch;
  memory_.resize(rows_at_once * converted_stretch);
  for (int64_t r = 0; r < count; ++r) {
    const uint16_t* const from = (const uint16_t*)layer_.rows.first + (row + r) * layer_.d + begin;
    float* const to = memory_.data() + r * converted_stretch;
    (layer_.rows.number == Number::bfloat16 ? widen_bfloat16 : widen_float16)(from, length, to);
  }
  return memory_.data();
}

double RowReader::dot(const Kernels& kernels, int64_t row, const float* query) {
  double result;
  add_up(kernels, row, 1, query, &result);
  return result;
}

void RowReader::scan(const Kernels& kernels, int64_t begin, int64_t end, const float* query, double* dots,
                     Survey* found) {
  const int64_t d = layer_.d;
  if (layer_.rows.number == Number::float32) {
    const float* const first = (const float*)layer_.rows.first;
    const int64_t step = std::max<int64_t>(16, numbers_at_once / d);
    for (int64_t row = begin; row < end; row += step) {
      check_interrupt();
      const int64_t count = std::min(step, end - row);
      kernels.scan_all_double({first + row * d, count, d, first + layer_.n * d}, query, dots + (row - begin),
                              row == begin ? found : nullptr);
    }
    return;
  }
  for (int64_t row = begin; row < end; row += rows_at_once) {
    check_interrupt_every(1 << 4, (row - begin) / rows_at_once);
    add_up(kernels, row, std::min(rows_at_once, end - row), query, dots + (row - begin));
  }
}

// Up to four rows.
void RowReader::add_up(const Kernels& kernels, int64_t row, int64_t count, const float* query, double* dots) {
  const bool plain = layer_.rows.number == Number::float32;
  const int64_t d = layer_.d, stretch = plain ? plain_stretch : converted_stretch;
  double sums[rows_at_once * lanes] = {};
  for (int64_t j = 0; j < d; j += stretch) {
    if (j > 0 && j % plain_stretch == 0) check_interrupt();
    int64_t stride = d;
    const int64_t length = std::min(stretch, d - j), whole = length / lanes * lanes;
    const float* const first =
        plain ? (const float*)layer_.rows.first + row * d + j : converted(row, count, j, j + length, stride);
    kernels.scan_double({first, count, whole, nullptr}, stride, query + j, sums);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t l = 0; whole + l < length; ++l)
        sums[r * lanes + l] += (double)first[r * stride + whole + l] * (double)query[j + whole + l];
  }
  for (int64_t r = 0; r < count; ++r) dots[r] = fold(sums + r * lanes);
}

}  // namespace softindex
