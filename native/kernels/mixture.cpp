// A mixture of logits for a few items at a time: dot products of all pairs of components, the gate, the weighted sum.
//
// The items of a tile lie side by side in the lanes, three registers of them; four rows of a matrix are multiplied at
// once, which makes twelve running sums: enough to hide the latency of an addition, few enough for sixteen registers.
// An item's score does not depend on its place in a tile nor on its neighbours. Where the CPU has a fused
// multiplication and addition it is used, so scores differ between CPUs in their last digits: this is most of the work,
// and twice as fast so. The bound on the error in softindex.mol.rounding covers both.
#include "base/simd.h"
#include "kernels/kernels.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

constexpr int registers = 3, block = 4;

typedef double DoubleVector __attribute__((vector_size(width * 4)));
typedef double LooseDoubleVector __attribute__((vector_size(width * 4), aligned(8), may_alias));
typedef int64_t LongVector __attribute__((vector_size(width * 4)));

template <class Real>
struct Register;
template <>
struct Register<float> {
  using Type = Vector;
  using Loose = LooseVector;
};
template <>
struct Register<double> {
  using Type = DoubleVector;
  using Loose = LooseDoubleVector;
};
template <class Real>
using Reals = typename Register<Real>::Type;
template <class Real>
constexpr int reals = width * 4 / (int)sizeof(Real);  // in one register
template <class Real>
constexpr int tile = registers * reals<Real>;

// x - 0 is x for every x, and compilers know it; of 0 + x they must fear that x is -0.
template <class Real>
SOFTINDEX_INLINE Reals<Real> broadcast(Real value) {
  return value - Reals<Real>{};
}
template <class Real>
SOFTINDEX_INLINE Reals<Real> read(const Real* from) {
  return *(const typename Register<Real>::Loose*)from;
}
SOFTINDEX_INLINE void write(float* to, Vector value) { *(LooseVector*)to = value; }
SOFTINDEX_INLINE void write(double* to, DoubleVector value) { *(LooseDoubleVector*)to = value; }

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

// exp(sign * x) for sign 1 or -1, |x| <= 86: off by eight half units in the last place, and two for each unit of x.
SOFTINDEX_INLINE Vector exponential(Vector x, float sign) {
  const Vector log2_e = broadcast(sign * 1.44269504f), shift = broadcast(12582912.0f);
  const Vector shifted = multiply_add(x, log2_e, shift);  // adding 1.5 * 2^23 rounds to the nearest integer
  const Vector f = multiply_add(x, log2_e, shift - shifted);
  // The polynomial nearest to 2^f for |f| <= 1/2, off by 2.6 half units in the last place.
  Vector value = broadcast(0.00132764724f);
  const float lower[] = {0.00967554096f, 0.0555071309f, 0.240221202f, 0.693146944f, 1.00000012f};
  for (float next : lower) value = multiply_add(value, f, broadcast(next));
  return (Vector)((IntVector)value + ((IntVector)shifted << 23));
}

// The same in double.
SOFTINDEX_INLINE DoubleVector exponential(DoubleVector x, double sign) {
  const DoubleVector log2_e = broadcast(sign * 1.4426950408889634), shift = broadcast(6755399441055744.0);
  const DoubleVector shifted = multiply_add(x, log2_e, shift), n = shifted - shift;
  // ln 2 in two parts: the first has so few digits that its product with an integer is exact.
  DoubleVector r = multiply_add(n, broadcast(-0.693147180369123816490), sign * x);
  r = multiply_add(n, broadcast(-1.90821492927058770002e-10), r);
  // Taylor to degree 13: |r| <= ln(2)/2, so the first term left out is below 1e-17.
  DoubleVector value = broadcast(1.0 / 6227020800.0);
  const double factorials[] = {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0,
                               120.0,       24.0,       6.0,       2.0,      1.0,     1.0};
  for (double factorial : factorials) value = multiply_add(value, r, broadcast(1.0 / factorial));
  return (DoubleVector)((LongVector)value + ((LongVector)shifted << 52));
}

// x times its sigmoid. Beyond the limits the sigmoid is 0 or 1 to all digits that matter.
template <class Type, class Real>
SOFTINDEX_INLINE Type silu(Type x, Real limit) {
  const Type clamped = greater(lesser(x, broadcast(limit)), broadcast(-limit));
  return x / (exponential(clamped, (Real)-1) + (Real)1);
}

template <class Real>
struct Block {
  Reals<Real> sum[block][registers];
};

// Four rows of a matrix, packed column by column, times the columns (length, tile); starts from the four biases.
template <class Real>
SOFTINDEX_INLINE Block<Real> product(const Real* packed, const Real* bias, const Real* columns, int64_t length) {
  Block<Real> result;
  for (int r = 0; r < block; ++r)
    for (int i = 0; i < registers; ++i) result.sum[r][i] = bias == nullptr ? Reals<Real>{} : broadcast(bias[r]);
  for (int64_t j = 0; j < length; ++j) {
    Reals<Real> column[registers];
    for (int i = 0; i < registers; ++i) column[i] = read(columns + j * tile<Real> + i * reals<Real>);
    for (int r = 0; r < block; ++r) {
      const Reals<Real> weight = broadcast(packed[j * block + r]);
      for (int i = 0; i < registers; ++i) result.sum[r][i] = multiply_add(weight, column[i], result.sum[r][i]);
    }
  }
  return result;
}

typedef float LooseQuad __attribute__((vector_size(16), aligned(4), may_alias));
typedef double WideQuad __attribute__((vector_size(32)));
typedef double LooseWideQuad __attribute__((vector_size(32), aligned(8), may_alias));

SOFTINDEX_INLINE void put(float* to, Quad value) { *(LooseQuad*)to = value; }
SOFTINDEX_INLINE void put(double* to, Quad value) { *(LooseWideQuad*)to = __builtin_convertvector(value, WideQuad); }

// Four numbers of each of four rows become four columns.
template <class Real>
SOFTINDEX_INLINE void transpose(const float* a, const float* b, const float* c, const float* e, Real* to) {
  const Quad qa = *(const LooseQuad*)a, qb = *(const LooseQuad*)b, qc = *(const LooseQuad*)c, qe = *(const LooseQuad*)e;
  const Quad low_ab = __builtin_shufflevector(qa, qb, 0, 4, 1, 5), low_ce = __builtin_shufflevector(qc, qe, 0, 4, 1, 5);
  const Quad high_ab = __builtin_shufflevector(qa, qb, 2, 6, 3, 7),
             high_ce = __builtin_shufflevector(qc, qe, 2, 6, 3, 7);
  put(to, __builtin_shufflevector(low_ab, low_ce, 0, 1, 4, 5));
  put(to + tile<Real>, __builtin_shufflevector(low_ab, low_ce, 2, 3, 6, 7));
  put(to + 2 * tile<Real>, __builtin_shufflevector(high_ab, high_ce, 0, 1, 4, 5));
  put(to + 3 * tile<Real>, __builtin_shufflevector(high_ab, high_ce, 2, 3, 6, 7));
}

template <class Real>
SOFTINDEX_INLINE void gather(const float* rows, int64_t length, const int64_t* which, int64_t count, Real* columns) {
  if (count < tile<Real>)
    for (int64_t j = 0; j < length * tile<Real>; ++j) columns[j] = 0;
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const float* row[4];
    for (int r = 0; r < 4; ++r) row[r] = rows + (which == nullptr ? i + r : which[i + r]) * length;
    int64_t j = 0;
    for (; j + 4 <= length; j += 4)
      transpose(row[0] + j, row[1] + j, row[2] + j, row[3] + j, columns + j * tile<Real> + i);
    for (; j < length; ++j)
      for (int r = 0; r < 4; ++r) columns[j * tile<Real> + i + r] = row[r][j];
  }
  for (; i < count; ++i) {
    const float* row = rows + (which == nullptr ? i : which[i]) * length;
    for (int64_t j = 0; j < length; ++j) columns[j * tile<Real> + i] = row[j];
  }
}

template <class Real>
SOFTINDEX_INLINE void all_logits(const Mixture<Real>& mixture, const Real* query, const Real* columns, Real* logits) {
  const int64_t d = mixture.d, parts_q = mixture.query_parts, parts_x = mixture.item_parts;
  for (int64_t x = 0; x < parts_x; ++x)
    for (int64_t q = 0; q < parts_q; q += block) {
      const Block<Real> dots = product<Real>(query + q * d, nullptr, columns + x * d * tile<Real>, d);
      for (int r = 0; r < block && q + r < parts_q; ++r)
        for (int i = 0; i < registers; ++i)
          write(logits + ((q + r) * parts_x + x) * tile<Real> + i * reals<Real>, dots.sum[r][i]);
    }
}

// The mean over the query's parts of the largest logit.
template <class Real>
SOFTINDEX_INLINE void take_largest(const Mixture<Real>& mixture, const Real* logits, Real* scores) {
  for (int i = 0; i < registers; ++i) {
    Reals<Real> total = {};
    for (int64_t q = 0; q < mixture.query_parts; ++q) {
      const Real* row = logits + q * mixture.item_parts * tile<Real> + i * reals<Real>;
      Reals<Real> top = read(row);
      for (int64_t x = 1; x < mixture.item_parts; ++x) top = greater(top, read(row + x * tile<Real>));
      total += top;
    }
    write(scores + i * reals<Real>, total / (Real)mixture.query_parts);
  }
}

// scores (tile) from logits (pairs, tile) and what the gate makes of them (pairs, tile): the softmax of the gate weighs
// the logits.
template <class Real>
SOFTINDEX_INLINE void combine(int64_t pairs, const Real* logits, const Real* gate, Real limit, Real* scores) {
  for (int i = 0; i < registers; ++i) {
    Reals<Real> top = read(gate + i * reals<Real>), total = {}, weighted = {};
    for (int64_t p = 1; p < pairs; ++p) top = greater(top, read(gate + p * tile<Real> + i * reals<Real>));
    for (int64_t p = 0; p < pairs; ++p) {
      const int64_t at = p * tile<Real> + i * reals<Real>;
      const Reals<Real> weight = exponential(greater(read(gate + at) - top, broadcast(-limit)), (Real)1);
      total += weight;
      weighted = multiply_add(weight, read(logits + at), weighted);
    }
    write(scores + i * reals<Real>, weighted / total);
  }
}

template <class Real>
SOFTINDEX_INLINE void all_scores(const Mixture<Real>& mixture, const Real* query, const Real* query_gates,
                                 const Real* columns, const Real* item_gates, Real limit, Real* work, Real* scores) {
  const int64_t pairs = mixture.query_parts * mixture.item_parts, hidden = mixture.hidden;
  Real *logits = work, *middle = work + pairs * tile<Real>, *gate = middle + hidden * tile<Real>;
  all_logits(mixture, query, columns, logits);
  if (!mixture.gated) return take_largest(mixture, logits, scores);
  for (int64_t h = 0; h < hidden; h += block) {
    const Block<Real> sums = product(mixture.first + h * pairs, mixture.first_bias + h, logits, pairs);
    for (int r = 0; r < block; ++r)
      for (int i = 0; i < registers; ++i)
        write(middle + (h + r) * tile<Real> + i * reals<Real>, silu(sums.sum[r][i], limit));
  }
  for (int64_t p = 0; p < pairs; p += block) {
    const Block<Real> sums = product(mixture.second + p * hidden, mixture.second_bias + p, middle, hidden);
    for (int r = 0; r < block && p + r < pairs; ++r)
      for (int i = 0; i < registers; ++i) {
        const int64_t at = (p + r) * tile<Real> + i * reals<Real>;
        Reals<Real> z = sums.sum[r][i];
        if (query_gates != nullptr) z = multiply_add(broadcast(query_gates[p + r]), read(item_gates + at), z);
        write(gate + at, silu(z, limit));
      }
  }
  combine(pairs, logits, gate, limit, scores);
}

constexpr float float_limit = 86.0f;    // exp(-86) is the least that float32 holds to all its digits
constexpr double double_limit = 700.0;  // and this nearly so in double

}  // namespace

int64_t mixture_tile() { return tile<float>; }
int64_t mixture_tile_double() { return tile<double>; }

// columns (length, tile): the rows named by `which`, or the first `count` ones, side by side; zeros after them.
void mixture_gather(const float* rows, int64_t length, const int64_t* which, int64_t count, float* columns) {
  gather(rows, length, which, count, columns);
}
void mixture_gather_double(const float* rows, int64_t length, const int64_t* which, int64_t count, double* columns) {
  gather(rows, length, which, count, columns);
}

// logits (pairs, tile) of a packed query with columns (item_parts * d, tile): pair (q, x) is row q * item_parts + x.
void mixture_logits(const Mixture<float>& mixture, const float* query, const float* columns, float* logits) {
  all_logits(mixture, query, columns, logits);
}

// (tile) the largest of the logits of each item.
void mixture_largest(const Mixture<float>& mixture, const float* logits, float* largest) {
  const int64_t pairs = mixture.query_parts * mixture.item_parts;
  for (int i = 0; i < registers; ++i) {
    Vector top = read(logits + i * width);
    for (int64_t p = 1; p < pairs; ++p) top = greater(top, read(logits + p * tile<float> + i * width));
    write(largest + i * width, top);
  }
}

// scores (tile). query_gates (pairs) and item_gates (pairs, tile) may be null; work: (pairs + hidden + pairs, tile).
void mixture_scores(const Mixture<float>& mixture, const float* query, const float* query_gates, const float* columns,
                    const float* item_gates, float* work, float* scores) {
  all_scores(mixture, query, query_gates, columns, item_gates, float_limit, work, scores);
}
void mixture_scores_double(const Mixture<double>& mixture, const double* query, const double* query_gates,
                           const double* columns, const double* item_gates, double* work, double* scores) {
  all_scores(mixture, query, query_gates, columns, item_gates, double_limit, work, scores);
}

// Bit i tells whether score i of a tile reaches the threshold.
uint64_t mixture_reaching(const float* scores, float threshold) {
  uint64_t result = 0;
  for (int i = 0; i < registers; ++i) {
#if defined(__AVX512F__)
    const uint64_t bits = _mm512_cmp_ps_mask(read(scores + i * width), broadcast(threshold), _CMP_GE_OQ);
#elif defined(__AVX2__)
    const __m256 reached = _mm256_cmp_ps(read(scores + i * width), broadcast(threshold), _CMP_GE_OQ);
    const uint64_t bits = (uint64_t)(uint32_t)_mm256_movemask_ps(reached);
#else
    uint64_t bits = 0;
    for (int j = 0; j < width; ++j) bits |= (uint64_t)(scores[i * width + j] >= threshold) << j;
#endif
    result |= bits << (i * width);
  }
  return result;
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
