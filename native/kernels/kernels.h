// Kernels: inner loops that are compiled once per instruction set, and the table of pointers to one compiled set.
#pragma once

#include <cstdint>

#include "base/layout.h"
#include "kernels/list.h"

namespace softindex {

// Unnormalised weights: the log of their sum is reference * inverse_temperature + peak + log(total).
struct Mass {
  float reference;  // the largest dot product
  double peak;      // the largest (dot - reference) * inverse_temperature + bias
  double total;     // the sum of exp(... - peak)
};

// The same for clusters: the log of their sum is peak + log_total. The two stay apart: added to a large peak, log_total
// would lose its digits.
struct Total {
  double peak;
  double log_total;
};

// Items kept as small integers: the centre of their cluster, plus a scale of their own times the integers. See
// scan_residuals.h.
template <class Element>
struct Residuals {
  Matrix<Element> integers;
  const float* scales;  // (count)
  const float* bias;    // (count) the last coordinate, whose integers and centre are zero; null where it is like others
};

// Items in four bits per number, and a query that is compared with them: see sketch_masks.cpp.
struct SketchBlocks {
  const uint8_t* codes;  // (count, groups, 64)
  const float* scales;   // (count, 16)
  int64_t count;         // of blocks of sixteen items
  int64_t groups;        // of eight coordinates
};
struct SketchQuery {
  const int8_t* integers;  // (groups, 8), within -127 .. 127
  float shift, least;
};

// The columns that `pull` reads, sixteen rows at a time: see there.
struct Pulls {
  const float* columns;                    // (any, stride): one column of all rows after the other
  int64_t stride;                          // a multiple of sixteen
  const int64_t* which;                    // (rounds)
  const double *query, *scales, *weights;  // (rounds)
  int64_t rounds;
};

// The columns that `add_columns` reads.
struct ListedColumns {
  const float* columns;  // as above
  int64_t stride;
  const int32_t* which;  // (count)
  int64_t count;
  const float* query;  // (any): what each column is multiplied by
};

// Rows of up to so many numbers are short for `scan_all_double`.
constexpr int64_t short_row = 1536;

// What `make_logits` does to dot products: both biases may be null.
struct LogitTerms {
  double inverse;  // of the temperature
  const float *bias, *log_bias;
};

// What `survey` finds in a query: the sum of its squares, and its numbers that are not zero.
struct Survey {
  double squares;
  int64_t numbers;
};

// Sums over the columns of a query, lane by lane: see weigh_columns.cpp.
struct ColumnMoments {
  double squares[lanes], squared_weights[lanes];
  int64_t numbers, used;
};

// A mixture of logits: see mixture_scores.cpp. Matrices are packed by four rows, column after column, padded with
// zeros.
template <class Real>
struct Mixture {
  int64_t query_parts, item_parts, d;
  int64_t hidden;                        // a multiple of four
  bool gated;                            // if not, the score is the mean over the query's parts of the largest logit
  const Real *first, *first_bias;        // (hidden, pairs)
  const Real *second, *second_bias;      // (pairs, hidden)
  const Real *first_back, *second_back;  // transposed: (pairs, hidden), (hidden, pairs)
};

// The layers of a gate in sixteen bits: see mixture_screen.cpp. Matrices are packed by four rows, two columns in one
// integer, padded with zeros.
constexpr int screen_pieces = 32;
struct MixtureScreen {
  int64_t columns;                    // of the first layer: half of the pairs, rounded up
  int64_t hidden;                     // a multiple of four
  const int32_t *first, *first_bias;  // (hidden, columns), (hidden)
  const int32_t* second;              // (pairs, hidden / 2)
  const float* second_bias;           // (pairs)
  const int16_t *bases, *slopes;      // (screen_pieces) of the activation
  int32_t factor, width;              // of a piece: width times factor is about 2^16
  float logit_scale, output_scale;    // integers per unit of a logit; units per integer of the second layer
  float slack, slack_per_length;      // of the range of the logits: for a query, and for each unit of their length
};

#define SOFTINDEX_POINTER(result, name, parameters) result(*name) parameters;
struct Kernels {
  const char* name;
  SOFTINDEX_KERNELS(SOFTINDEX_POINTER)
};
#undef SOFTINDEX_POINTER

#define SOFTINDEX_DECLARATION(result, name, parameters) result name parameters;
namespace baseline {
SOFTINDEX_KERNELS(SOFTINDEX_DECLARATION)
}
#ifdef SOFTINDEX_X86
namespace avx2 {
SOFTINDEX_KERNELS(SOFTINDEX_DECLARATION)
}
namespace avx512 {
SOFTINDEX_KERNELS(SOFTINDEX_DECLARATION)
}
namespace avx512vnni {
SOFTINDEX_KERNELS(SOFTINDEX_DECLARATION)
}
#endif
#undef SOFTINDEX_DECLARATION

// The named set of kernels, or the best one for this CPU if the name is empty. Returns nullptr if the CPU cannot run
// the set or no set has this name.
const Kernels* find_kernels(const char* name);

}  // namespace softindex
