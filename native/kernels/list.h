// The list of all kernels. To add one, write native/kernels/<name>.cpp and add its entry here.
#pragma once

// KERNEL(result, name, (parameters)). The comment above a kernel's definition says what it computes.
#define SOFTINDEX_KERNELS(KERNEL)                                                                                      \
  KERNEL(void, scan, (Rows rows, const float* query, float* dots))                                                     \
  KERNEL(void, scan_many, (Rows rows, const float* const* queries, int64_t count, float* dots, int64_t stride))        \
  KERNEL(void, scan_int16, (Matrix<int16_t> rows, const float* queries, int64_t count, float* dots, int64_t stride))   \
  KERNEL(void, scan_int8, (Matrix<int8_t> rows, const int16_t* queries, int64_t count, int32_t* dots, int64_t stride)) \
  KERNEL(void, scan_residuals_int8,                                                                                    \
         (const Residuals<int8_t>& rows, const float* const* queries, const float* centre_dots, int64_t count,         \
          float* dots, int64_t stride))                                                                                \
  KERNEL(void, scan_residuals_int16,                                                                                   \
         (const Residuals<int16_t>& rows, const float* const* queries, const float* centre_dots, int64_t count,        \
          float* dots, int64_t stride))                                                                                \
  KERNEL(float, largest, (const float* values, int64_t count))                                                         \
  KERNEL(Mass, weigh,                                                                                                  \
         (const float* dots, int64_t count, double inverse_temperature, const float* bias, float* weights,             \
          double* prefix))                                                                                             \
  KERNEL(Total, weigh_masses, (const double* log_masses, int64_t count, float* weights, double* prefix))               \
  KERNEL(int64_t, pick, (const float* weights, const double* prefix, int64_t count, double uniform))                   \
  KERNEL(void, outer_product, (const float* query, int64_t d, float* packed))                                          \
  KERNEL(void, square_sums, (const int32_t* dots, const float* scales, int64_t count, int64_t rank, double* sums))     \
  KERNEL(void, decode,                                                                                                 \
         (const int32_t* dots, const float* scales, int64_t count, double base, double step, float* scores))           \
  KERNEL(void, screen, (Matrix<int8_t> rows, const int16_t* queries, int64_t count, int64_t* dots, int64_t stride))    \
  KERNEL(void, screen_nibbles,                                                                                         \
         (const uint8_t* rows, int64_t n, int64_t chunks, const int8_t* queries, int64_t count, int64_t* dots,         \
          int64_t stride))                                                                                             \
  KERNEL(void, sketch_masks,                                                                                           \
         (const SketchBlocks& blocks, const SketchQuery* queries, int64_t count, uint16_t* masks, int64_t stride))     \
  KERNEL(double, double_dot, (const float* row, const double* query, int64_t d))                                       \
  KERNEL(void, pull, (const Pulls& pulls, const int64_t* groups, int64_t count, double* state))                        \
  KERNEL(void, add_columns, (const ListedColumns& listed, int64_t rows, double* dots))                                 \
  KERNEL(Survey, survey, (const float* numbers, int64_t count))                                                        \
  KERNEL(Survey, list_numbers, (const float* numbers, int64_t count, int64_t first, int32_t* which))                   \
  KERNEL(void, scan_double, (Rows rows, int64_t stride, const float* query, double* sums))                             \
  KERNEL(void, scan_all_double, (Rows rows, const float* query, double* dots, Survey* found))                          \
  KERNEL(double, make_logits, (double* dots, int64_t count, const LogitTerms& terms))                                  \
  KERNEL(double, sum_exponentials, (const double* logits, int64_t count, double peak))                                 \
  KERNEL(void, weigh_columns,                                                                                          \
         (const float* query, const float* scales, int64_t tiles, double* sums, ColumnMoments& moments))               \
  KERNEL(int64_t, mixture_tile, ())                                                                                    \
  KERNEL(int64_t, mixture_tile_double, ())                                                                             \
  KERNEL(void, mixture_gather,                                                                                         \
         (const float* rows, int64_t length, const int64_t* which, int64_t count, float* columns))                     \
  KERNEL(void, mixture_gather_double,                                                                                  \
         (const float* rows, int64_t length, const int64_t* which, int64_t count, double* columns))                    \
  KERNEL(void, mixture_logits,                                                                                         \
         (const Mixture<float>& mixture, const float* query, const float* columns, float* logits))                     \
  KERNEL(void, mixture_largest, (const Mixture<float>& mixture, const float* logits, float* largest))                  \
  KERNEL(void, mixture_scores,                                                                                         \
         (const Mixture<float>& mixture, const float* query, const float* query_gates, const float* columns,           \
          const float* item_gates, float* work, float* scores))                                                        \
  KERNEL(bool, mixture_screen_pays, ())                                                                                \
  KERNEL(void, mixture_screen,                                                                                         \
         (const Mixture<float>& mixture, const MixtureScreen& screen, const float* query, const float* query_gates,    \
          const float* columns, const float* item_gates, float* work, float* bounds))                                  \
  KERNEL(                                                                                                              \
      void, mixture_slopes,                                                                                            \
      (const Mixture<float>& mixture, const float* query_gates, const float* item_gates, float* work, float* slopes))  \
  KERNEL(void, mixture_scores_double,                                                                                  \
         (const Mixture<double>& mixture, const double* query, const double* query_gates, const double* columns,       \
          const double* item_gates, double* work, double* scores))                                                     \
  KERNEL(uint64_t, mixture_threshold_mask, (const float* scores, float threshold))
