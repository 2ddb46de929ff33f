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

  // query: d numbers.
  double dot(const Kernels& kernels, int64_t row, const float* query);
  // The same for the rows begin <= row < end, at the speed of memory. found: what a survey finds in the query, for
  // float32 rows that are not short; or nullptr.
  void scan(const Kernels& kernels, int64_t begin, int64_t end, const float* query, double* dots, Survey* found);

 private:
  void add_up(const Kernels& kernels, int64_t row, int64_t count, const float* query, double* dots);
  const float* converted(int64_t row, int64_t count, int64_t begin, int64_t end, int64_t& stride);

  const PacLayer& layer_;
  AlignedVector<float> memory_;
};

}  // namespace softindex
