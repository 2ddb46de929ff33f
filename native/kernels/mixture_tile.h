// Tiles of items for learned similarities: one item per lane, in float or in double.
//
// The items of a tile lie side by side in the lanes of three registers. Four rows of a matrix are multiplied at once,
// which makes twelve running sums: enough to hide the latency of an addition, few enough for sixteen registers. An
// item's score depends neither on its place in a tile nor on its neighbours. Where the CPU has fused multiply-add it is
// used, because these products are most of the work and it makes them twice as fast. Scores therefore differ between
// CPUs in their last digits; the error bounds of the Python package softindex.mol cover both cases.
#pragma once

#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

constexpr int registers = 3, block_rows = 4;

typedef float UnalignedFloats __attribute__((vector_size(width * 4), aligned(4), may_alias));
typedef double DoubleVector __attribute__((vector_size(width * 4)));
typedef double UnalignedDoubles __attribute__((vector_size(width * 4), aligned(8), may_alias));
typedef int64_t LongVector __attribute__((vector_size(width * 4)));

template <class Real>
struct Register;
template <>
struct Register<float> {
  using Type = Vector;
  using Unaligned = UnalignedFloats;
};
template <>
struct Register<double> {
  using Type = DoubleVector;
  using Unaligned = UnalignedDoubles;
};
template <class Real>
using Reals = typename Register<Real>::Type;
template <class Real>
constexpr int reals = width * 4 / (int)sizeof(Real);  // in one register
template <class Real>
constexpr int tile = registers * reals<Real>;

// x - 0 is x for every x, so compilers drop the subtraction. They cannot drop 0 + x, because x may be -0.
template <class Real>
SOFTINDEX_INLINE Reals<Real> broadcast(Real value) {
  return value - Reals<Real>{};
}
template <class Real>
SOFTINDEX_INLINE Reals<Real> read(const Real* from) {
  return *(const typename Register<Real>::Unaligned*)from;
}
SOFTINDEX_INLINE void write(float* to, Vector value) { *(UnalignedFloats*)to = value; }
SOFTINDEX_INLINE void write(double* to, DoubleVector value) { *(UnalignedDoubles*)to = value; }

#if defined(__AVX512F__)
SOFTINDEX_INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return (Vector)_mm512_fmadd_ps(a, b, c); }
SOFTINDEX_INLINE DoubleVector multiply_add(DoubleVector a, DoubleVector b, DoubleVector c) {
  return (DoubleVector)_mm512_fmadd_pd(a, b, c);
}
SOFTINDEX_INLINE Vector lesser(Vector a, Vector b) { return (Vector)_mm512_min_ps(a, b); }
SOFTINDEX_INLINE Vector greater(Vector a, Vector b) { return (Vector)_mm512_max_ps(a, b); }
SOFTINDEX_INLINE DoubleVector lesser(DoubleVector a, DoubleVector b) { return (DoubleVector)_mm512_min_pd(a, b); }
SOFTINDEX_INLINE DoubleVector greater(DoubleVector a, DoubleVector b) { return (DoubleVector)_mm512_max_pd(a, b); }
#elif defined(__AVX2__) && defined(__FMA__)
SOFTINDEX_INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return (Vector)_mm256_fmadd_ps(a, b, c); }
SOFTINDEX_INLINE DoubleVector multiply_add(DoubleVector a, DoubleVector b, DoubleVector c) {
  return (DoubleVector)_mm256_fmadd_pd(a, b, c);
}
SOFTINDEX_INLINE Vector lesser(Vector a, Vector b) { return (Vector)_mm256_min_ps(a, b); }
SOFTINDEX_INLINE Vector greater(Vector a, Vector b) { return (Vector)_mm256_max_ps(a, b); }
SOFTINDEX_INLINE DoubleVector lesser(DoubleVector a, DoubleVector b) { return (DoubleVector)_mm256_min_pd(a, b); }
SOFTINDEX_INLINE DoubleVector greater(DoubleVector a, DoubleVector b) { return (DoubleVector)_mm256_max_pd(a, b); }
#else
template <class Type>
SOFTINDEX_INLINE Type multiply_add(Type a, Type b, Type c) {
  return a * b + c;
}
SOFTINDEX_INLINE Vector lesser(Vector a, Vector b) { return select(a < b, a, b); }
SOFTINDEX_INLINE Vector greater(Vector a, Vector b) { return select(a > b, a, b); }
SOFTINDEX_INLINE DoubleVector lesser(DoubleVector a, DoubleVector b) {
  const LongVector mask = a < b;
  return (DoubleVector)((mask & (LongVector)a) | (~mask & (LongVector)b));
}
SOFTINDEX_INLINE DoubleVector greater(DoubleVector a, DoubleVector b) { return -lesser(-a, -b); }
#endif

template <class Real>
struct Block {
  Reals<Real> sum[block_rows][registers];
};

// Four rows of a matrix, packed column by column, times columns (length, tile); the sums start from the four biases.
template <class Real>
SOFTINDEX_INLINE Block<Real> product(const Real* packed, const Real* bias, const Real* columns, int64_t length) {
  Block<Real> result;
  for (int r = 0; r < block_rows; ++r)
    for (int i = 0; i < registers; ++i) result.sum[r][i] = bias == nullptr ? Reals<Real>{} : broadcast(bias[r]);
  for (int64_t j = 0; j < length; ++j) {
    Reals<Real> column[registers];
    for (int i = 0; i < registers; ++i) column[i] = read(columns + j * tile<Real> + i * reals<Real>);
    for (int r = 0; r < block_rows; ++r) {
      const Reals<Real> weight = broadcast(packed[j * block_rows + r]);
      for (int i = 0; i < registers; ++i) result.sum[r][i] = multiply_add(weight, column[i], result.sum[r][i]);
    }
  }
  return result;
}

// The logits (pairs, tile) of all pairs of parts: pair (q, x) is row q * item_parts + x.
template <class Real>
SOFTINDEX_INLINE void all_logits(const Mixture<Real>& mixture, const Real* query, const Real* columns, Real* logits) {
  const int64_t d = mixture.d, query_parts = mixture.query_parts, item_parts = mixture.item_parts;
  for (int64_t x = 0; x < item_parts; ++x)
    for (int64_t q = 0; q < query_parts; q += block_rows) {
      const Block<Real> dots = product<Real>(query + q * d, nullptr, columns + x * d * tile<Real>, d);
      for (int r = 0; r < block_rows && q + r < query_parts; ++r)
        for (int i = 0; i < registers; ++i)
          write(logits + ((q + r) * item_parts + x) * tile<Real> + i * reals<Real>, dots.sum[r][i]);
    }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
