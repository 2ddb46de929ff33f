// Upper bounds on the scores of a tile of items under a gated mixture, with the gate's layers in sixteen bits.
//
// The two layers are most of the work of a score, and a product of integers takes half the time of one of floats. The
// logits, the last activation and the weighted sum are in float. How far the integers may move the score is known: see
// src/softindex/mol/screening.py, which makes the integers and the bound.
#include "kernels/mixture_gate.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

typedef uint32_t UnsignedVector __attribute__((vector_size(width * 4)));
typedef int32_t UnalignedIntegers __attribute__((vector_size(width * 4), aligned(4), may_alias));

SOFTINDEX_INLINE IntVector read_integers(const int32_t* from) { return *(const UnalignedIntegers*)from; }
SOFTINDEX_INLINE void write_integers(int32_t* to, IntVector value) { *(UnalignedIntegers*)to = value; }

// sum + the products of the lower halves and of the upper halves of a and b.
SOFTINDEX_INLINE IntVector add_pair_products(IntVector sum, IntVector a, IntVector b) {
#if defined(__AVX512VNNI__)
  return (IntVector)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512F__)
  return sum + (IntVector)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return sum + (IntVector)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// The integers nearest to x * scale, modulo 2^16: adding 1.5 * 2^23 rounds, and its bits end in sixteen zeros.
SOFTINDEX_INLINE IntVector round(Vector x, float scale) {
  return (IntVector)multiply_add(x, broadcast(scale), broadcast(12582912.0f));
}

SOFTINDEX_INLINE Vector to_floats(IntVector x) { return __builtin_convertvector(x, Vector); }

// Two numbers per lane: the lower halves of `low`, and those of `high` as upper halves.
SOFTINDEX_INLINE IntVector join(IntVector low, IntVector high) { return (low & 0xffff) | (high << 16); }
// The same of the upper halves.
SOFTINDEX_INLINE IntVector join_upper(IntVector low, IntVector high) {
  return (IntVector)((UnsignedVector)low >> 16) | (high & (int32_t)0xffff0000);
}

#if defined(__AVX512BW__)
struct Table {
  __m512i bases, slopes, factor, width;
  explicit Table(const MixtureScreen& screen)
      : bases(_mm512_loadu_si512(screen.bases)), slopes(_mm512_loadu_si512(screen.slopes)),
        factor(_mm512_set1_epi16((int16_t)screen.factor)), width(_mm512_set1_epi16((int16_t)screen.width)) {}
};

// silu of numbers in sixteen bits, two per lane: x / 2 plus a function of |x|, in linear pieces of the same width.
SOFTINDEX_INLINE IntVector silu_of_pairs(IntVector x, const Table& table) {
  const __m512i v = (__m512i)x, size = _mm512_abs_epi16(v), last = _mm512_set1_epi16(screen_pieces - 1);
  const __m512i piece = _mm512_min_epu16(_mm512_mulhi_epu16(size, table.factor), last);
  const __m512i rest = _mm512_sub_epi16(size, _mm512_mullo_epi16(piece, table.width));
  const __m512i rise = _mm512_mulhrs_epi16(_mm512_permutexvar_epi16(piece, table.slopes), rest);
  const __m512i base = _mm512_permutexvar_epi16(piece, table.bases);
  return (IntVector)_mm512_add_epi16(_mm512_srai_epi16(v, 1), _mm512_add_epi16(base, rise));
}
#else
using Table = const MixtureScreen&;

// The same in plain words.
SOFTINDEX_INLINE int16_t silu_of_one(int32_t x, const MixtureScreen& screen) {
  const int32_t size = x < 0 ? -x : x, steps = (size * screen.factor) >> 16;
  const int32_t piece = steps < screen_pieces ? steps : screen_pieces - 1, rest = size - piece * screen.width;
  return (int16_t)((x >> 1) + screen.bases[piece] + ((screen.slopes[piece] * rest + 0x4000) >> 15));
}
SOFTINDEX_INLINE IntVector silu_of_pairs(IntVector x, const MixtureScreen& screen) {
  for (int i = 0; i < width; ++i)
    x[i] = (silu_of_one((int16_t)x[i], screen) & 0xffff) | (int32_t)((uint32_t)silu_of_one(x[i] >> 16, screen) << 16);
  return x;
}
#endif

SOFTINDEX_INLINE Vector root(Vector x) {
#if defined(__AVX512F__)
  return (Vector)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (Vector)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < width; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

struct Sums {
  IntVector sum[block_rows][registers];
};

// Four rows of a matrix, packed by pairs of columns, times numbers (pairs of columns, tile); the sums start from the
// biases, or from zero.
SOFTINDEX_INLINE Sums product(const int32_t* packed, const int32_t* bias, const int32_t* columns, int64_t length) {
  Sums result;
  for (int r = 0; r < block_rows; ++r)
    for (int i = 0; i < registers; ++i) result.sum[r][i] = bias == nullptr ? IntVector{} : IntVector{} + bias[r];
  for (int64_t j = 0; j < length; ++j) {
    IntVector column[registers];
    for (int i = 0; i < registers; ++i) column[i] = read_integers(columns + j * tile<float> + i * width);
    for (int r = 0; r < block_rows; ++r) {
      const IntVector weight = IntVector{} + packed[j * block_rows + r];
      for (int i = 0; i < registers; ++i) result.sum[r][i] = add_pair_products(result.sum[r][i], weight, column[i]);
    }
  }
  return result;
}

// pairs (pairs / 2 rounded up, tile): the logits in sixteen bits, two rows in one.
SOFTINDEX_INLINE void round_logits(int64_t pairs, float scale, const float* logits, int32_t* rounded) {
  for (int64_t p = 0; p < pairs; p += 2)
    for (int i = 0; i < registers; ++i) {
      const float* from = logits + p * tile<float> + i * width;
      const IntVector low = round(read(from), scale);
      const IntVector high = p + 1 < pairs ? round(read(from + tile<float>), scale) : IntVector{};
      write_integers(rounded + p / 2 * tile<float> + i * width, join(low, high));
    }
}

// hidden (hidden / 2, tile): the activations of the first layer in sixteen bits.
SOFTINDEX_INLINE void first_layer(const MixtureScreen& screen, const int32_t* logits, int32_t* hidden) {
  const Table table(screen);
  for (int64_t h = 0; h < screen.hidden; h += block_rows) {
    const Sums sums = product(screen.first + h * screen.columns, screen.first_bias + h, logits, screen.columns);
    for (int r = 0; r < block_rows; r += 2)
      for (int i = 0; i < registers; ++i)
        write_integers(hidden + (h + r) / 2 * tile<float> + i * width,
                       silu_of_pairs(join_upper(sums.sum[r][i], sums.sum[r + 1][i]), table));
  }
}

// gate (pairs, tile): the outputs of the gate.
SOFTINDEX_INLINE void second_layer(const MixtureScreen& screen, int64_t pairs, const int32_t* hidden,
                                   const float* query_gates, const float* item_gates, float* gate) {
  for (int64_t p = 0; p < pairs; p += block_rows) {
    const Sums sums = product(screen.second + p * screen.hidden / 2, nullptr, hidden, screen.hidden / 2);
    for (int r = 0; r < block_rows && p + r < pairs; ++r)
      for (int i = 0; i < registers; ++i) {
        const int64_t at = (p + r) * tile<float> + i * width;
        Vector z = multiply_add(to_floats(sums.sum[r][i]), broadcast(screen.output_scale),
                                broadcast(screen.second_bias[p + r]));
        if (query_gates != nullptr) z = multiply_add(broadcast(query_gates[p + r]), read(item_gates + at), z);
        write(gate + at, silu(z, float_limit));
      }
  }
}

// Adds the most by which the integers may have lowered a score: a share of the range of the logits, which is the slack
// and more for longer logits. A bound that overflowed is infinite.
SOFTINDEX_INLINE void add_slack(const MixtureScreen& screen, int64_t pairs, const float* logits, float* scores) {
  for (int i = 0; i < registers; ++i) {
    Vector top = read(logits + i * width), bottom = top, squares = {};
    for (int64_t p = 0; p < pairs; ++p) {
      const Vector logit = read(logits + p * tile<float> + i * width);
      top = greater(top, logit);
      bottom = lesser(bottom, logit);
      squares = multiply_add(logit, logit, squares);
    }
    const Vector share = multiply_add(root(squares), broadcast(screen.slack_per_length), broadcast(screen.slack));
    const Vector bound = multiply_add(share, top - bottom, read(scores + i * width));
    write(scores + i * width, select(bound == bound, bound, broadcast(__builtin_inff())));
  }
}

}  // namespace

// Upper bounds (tile) on the scores of a packed query with columns (item_parts * d, tile), up to the rounding errors of
// mixture_scores. The mixture must be gated. work: as for mixture_scores.
void mixture_screen(const Mixture<float>& mixture, const MixtureScreen& screen, const float* query,
                    const float* query_gates, const float* columns, const float* item_gates, float* work,
                    float* bounds) {
  const int64_t pairs = mixture.query_parts * mixture.item_parts;
  float *logits = work, *gate = logits + pairs * tile<float>;
  // The rounded logits are no longer needed when the gate's outputs take their place.
  int32_t *rounded = (int32_t*)gate, *hidden = (int32_t*)(gate + pairs * tile<float>);
  all_logits(mixture, query, columns, logits);
  round_logits(pairs, screen.logit_scale, logits, rounded);
  first_layer(screen, rounded, hidden);
  second_layer(screen, pairs, hidden, query_gates, item_gates, gate);
  weighted_mean(pairs, logits, gate, float_limit, bounds);
  add_slack(screen, pairs, logits, bounds);
}

// Whether the products of integers take less time than those of floats on this CPU.
bool mixture_screen_pays() {
#if defined(__AVX512VNNI__)
  return true;
#else
  return false;
#endif
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
