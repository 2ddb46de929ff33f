// Dot products in double with rows as the caller has them: float32, float16 or bfloat16.
#pragma once

#include <cstdint>
#include <vector>

#include "adaptive/pac_layer.h"
#include "base/aligned.h"

namespace softindex {

// Reads rows of one layer; the memory is for numbers that must be converted first. The order of additions is the same
// for one row and for all: that of double_dot.cpp.
class RowReader {
 public:
  explicit RowReader(const PacLayer& layer) : layer_(layer) {}

  // query: padded(d) numbers.
  double dot(const Kernels& kernels, int64_t row, const float* query);
  // The rows begin <= row < end, at the speed of float32: off by `scan_error` times the lengths of row and query.
  void scan(const Kernels& kernels, int64_t begin, int64_t end, const float* query, double* dots);

  // Every number of a row is in one product, and in as many additions as its lane has in a stretch. The few that follow
  // are in double.
  static constexpr double scan_error = (float_stretch / lanes + 8) * 0x1p-24;
  // What products too small for float32 may lose.
  static constexpr double tiny = 1e-33;

 private:
  using Scan = void (*)(Rows rows, int64_t stride, const float* query, double* sums);
  void add_up(Scan add, int64_t row, int64_t count, const float* query, double* dots);
  const float* converted(int64_t row, int64_t count, int64_t begin, int64_t end, int64_t& stride);

  const PacLayer& layer_;
  AlignedVector<float> memory_;
};

}  // namespace softindex
