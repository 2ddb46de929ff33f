// The inner loops that are compiled once per instruction set, and the table that holds one set of them.
#pragma once

#include <cstdint>

#include "base/layout.h"

namespace softindex {

// Unnormalised weights: the log of their sum is reference * inverse_temperature + peak + log(total).
struct Mass {
  float reference;  // the largest dot product
  double peak;      // the largest (dot - reference) * inverse_temperature + bias
  double total;     // the sum of exp(... - peak)
};

// The same for clusters: the log of their sum is peak + log_total. The two are kept apart, as a large peak would
// swallow the digits of the other.
struct Total {
  double peak;
  double log_total;
};

// What is known of each row after some pulls: see pull.cpp.
struct Pulled {
  double *sums, *first, *second, *third, *noise;
};

// A mixture of logits: see mixture.cpp. Matrices are packed by four rows, column after column, padded with zeros.
template <class Real>
struct Mixture {
  int64_t query_parts, item_parts, d;
  int64_t hidden;                    // a multiple of four
  bool gated;                        // otherwise the score is the mean over the query's parts of the largest logit
  const Real *first, *first_bias;    // (hidden, pairs)
  const Real *second, *second_bias;  // (pairs, hidden)
};

struct Kernels {
  const char* name;
  void (*scan)(Rows rows, const float* query, float* dots);
  void (*scan_group)(Rows rows, const float* const* queries, float* dots, int64_t stride);
  void (*scan_int8)(Matrix<int8_t> rows, const int16_t* queries, int64_t count, int32_t* dots, int64_t stride);
  void (*scan_int16)(Matrix<int16_t> rows, const float* queries, int64_t count, float* dots, int64_t stride);
  float (*largest)(const float* values, int64_t count);
  Mass (*weigh)(const float* dots, int64_t count, double inverse_temperature, const float* bias, float* weights,
                double* prefix);
  Total (*weigh_masses)(const double* log_masses, int64_t count, float* weights, double* prefix);
  int64_t (*pick)(const float* weights, const double* prefix, int64_t count, double uniform);
  void (*outer_product)(const float* query, int64_t d, float* packed);
  void (*square_sums)(const int32_t* dots, const float* scales, int64_t count, int64_t rank, double* sums);
  void (*decode)(const int32_t* dots, const float* scales, int64_t count, double base, double step, float* scores);
  void (*screen)(Matrix<int8_t> rows, const int16_t* queries, int64_t count, int64_t* dots, int64_t stride);
  void (*screen_nibbles)(const uint8_t* rows, int64_t n, int64_t chunks, const int8_t* queries, int64_t count,
                         int64_t* dots, int64_t stride);
  double (*double_dot)(const float* row, const double* query, int64_t d);
  void (*pull)(const float* blocks, int64_t n, const int64_t* which, const float* queries, const double* scales,
               const double* weights, int64_t rounds, const int64_t* arms, int64_t count, Pulled pulled);
  int64_t (*mixture_tile)();
  int64_t (*mixture_tile_double)();
  void (*mixture_gather)(const float* rows, int64_t length, const int64_t* which, int64_t count, float* columns);
  void (*mixture_gather_double)(const float* rows, int64_t length, const int64_t* which, int64_t count,
                                double* columns);
  void (*mixture_logits)(const Mixture<float>& mixture, const float* query, const float* columns, float* logits);
  void (*mixture_largest)(const Mixture<float>& mixture, const float* logits, float* largest);
  void (*mixture_scores)(const Mixture<float>& mixture, const float* query, const float* query_gates,
                         const float* columns, const float* item_gates, float* work, float* scores);
  void (*mixture_scores_double)(const Mixture<double>& mixture, const double* query, const double* query_gates,
                                const double* columns, const double* item_gates, double* work, double* scores);
  uint64_t (*mixture_reaching)(const float* scores, float threshold);
};

#define SOFTINDEX_DECLARE(target)                                                                                      \
  namespace target {                                                                                                   \
  void scan(Rows rows, const float* query, float* dots);                                                               \
  void scan_group(Rows rows, const float* const* queries, float* dots, int64_t stride);                                \
  void scan_int8(Matrix<int8_t> rows, const int16_t* queries, int64_t count, int32_t* dots, int64_t stride);           \
  void scan_int16(Matrix<int16_t> rows, const float* queries, int64_t count, float* dots, int64_t stride);             \
  float largest(const float* values, int64_t count);                                                                   \
  Mass weigh(const float* dots, int64_t count, double inverse_temperature, const float* bias, float* weights,          \
             double* prefix);                                                                                          \
  Total weigh_masses(const double* log_masses, int64_t count, float* weights, double* prefix);                         \
  int64_t pick(const float* weights, const double* prefix, int64_t count, double uniform);                             \
  void outer_product(const float* query, int64_t d, float* packed);                                                    \
  void square_sums(const int32_t* dots, const float* scales, int64_t count, int64_t rank, double* sums);               \
  void decode(const int32_t* dots, const float* scales, int64_t count, double base, double step, float* scores);       \
  void screen(Matrix<int8_t> rows, const int16_t* queries, int64_t count, int64_t* dots, int64_t stride);              \
  void screen_nibbles(const uint8_t* rows, int64_t n, int64_t chunks, const int8_t* queries, int64_t count,            \
                      int64_t* dots, int64_t stride);                                                                  \
  double double_dot(const float* row, const double* query, int64_t d);                                                 \
  void pull(const float* blocks, int64_t n, const int64_t* which, const float* queries, const double* scales,          \
            const double* weights, int64_t rounds, const int64_t* arms, int64_t count, Pulled pulled);                 \
  int64_t mixture_tile();                                                                                              \
  int64_t mixture_tile_double();                                                                                       \
  void mixture_gather(const float* rows, int64_t length, const int64_t* which, int64_t count, float* columns);         \
  void mixture_gather_double(const float* rows, int64_t length, const int64_t* which, int64_t count, double* columns); \
  void mixture_logits(const Mixture<float>& mixture, const float* query, const float* columns, float* logits);         \
  void mixture_largest(const Mixture<float>& mixture, const float* logits, float* largest);                            \
  void mixture_scores(const Mixture<float>& mixture, const float* query, const float* query_gates,                     \
                      const float* columns, const float* item_gates, float* work, float* scores);                      \
  void mixture_scores_double(const Mixture<double>& mixture, const double* query, const double* query_gates,           \
                             const double* columns, const double* item_gates, double* work, double* scores);           \
  uint64_t mixture_reaching(const float* scores, float threshold);                                                     \
  }

SOFTINDEX_DECLARE(baseline)
#ifdef SOFTINDEX_X86
SOFTINDEX_DECLARE(avx2)
SOFTINDEX_DECLARE(avx512)
#endif
#undef SOFTINDEX_DECLARE

// The best set this CPU runs, or the named one; nullptr if the CPU cannot run it or there is none of that name.
const Kernels* find_kernels(const char* name);

}  // namespace softindex
