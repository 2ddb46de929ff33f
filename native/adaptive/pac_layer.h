// What the "pac" guarantee reads of a layer: its columns, statistics of its rows, and the rows themselves.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace softindex {

enum class Number { float32, float16, bfloat16 };

// Weights as the caller has them.
struct GivenRows {
  const void* first;
  Number number;
};

struct PacLayer {
  int64_t n, d;
  int64_t stride;        // n below sixteen, else rounded up to a multiple of sixteen
  const float* columns;  // (d + spare(), stride): without the heavy numbers, which are zero here, as is the rest
  const float* scales;   // (padded(d)) root mean square of each column
  int64_t kept;          // heavy numbers of each row: those that stand out in their columns
  const int64_t* heavy_columns;  // (n, kept)
  const float* heavy;            // (n, kept)
  const double* energies;        // (n) mean over columns of the row's square over the column's mean square
  const double* excesses;        // (n) how far the variance of those ratios exceeds that of normal numbers
  const double* norms;           // (n) upper bounds on the lengths of the rows
  double longest;                // the largest of them
  const float *bias, *log_bias;  // (n), or nullptr where all are zero
  int64_t used;                  // columns that are not all zeros
  GivenRows rows;

  int64_t groups() const { return padded(n) / lanes; }
  // Columns of few rows are not padded, and read to sixteen numbers: so many others have to follow the last.
  int64_t spare() const { return stride < lanes ? (lanes + stride - 1) / stride : 0; }
  // Whether the weights are likely to stay in a cache from query to query.
  bool is_cached() const { return (double)n * (double)d * sizeof(float) <= 16 << 20; }
};

// One query's logits are inverse * (row . query + bias) + log_bias.
struct Temperature {
  double inverse;

  double logit(const PacLayer& layer, int64_t row, double dot) const {
    const double biased = layer.bias == nullptr ? dot : dot + (double)layer.bias[row];
    return layer.log_bias == nullptr ? inverse * biased : inverse * biased + (double)layer.log_bias[row];
  }
};

}  // namespace softindex
