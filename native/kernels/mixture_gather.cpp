// Gathers rows of items into the columns of a tile.
#include "kernels/mixture_tile.h"

namespace softindex {
namespace SOFTINDEX_TARGET {
namespace {

typedef float UnalignedQuad __attribute__((vector_size(16), aligned(4), may_alias));
typedef double DoubleQuad __attribute__((vector_size(32)));
typedef double UnalignedDoubleQuad __attribute__((vector_size(32), aligned(8), may_alias));

SOFTINDEX_INLINE Quad read_quad(const float* from) { return *(const UnalignedQuad*)from; }
SOFTINDEX_INLINE void write_quad(float* to, Quad value) { *(UnalignedQuad*)to = value; }
SOFTINDEX_INLINE void write_quad(double* to, Quad value) {
  *(UnalignedDoubleQuad*)to = __builtin_convertvector(value, DoubleQuad);
}

// Four numbers of each of four rows become four columns.
template <class Real>
SOFTINDEX_INLINE void transpose(const float* a, const float* b, const float* c, const float* e, Real* to) {
  const Quad qa = read_quad(a), qb = read_quad(b), qc = read_quad(c), qe = read_quad(e);
  const Quad low_ab = __builtin_shufflevector(qa, qb, 0, 4, 1, 5), low_ce = __builtin_shufflevector(qc, qe, 0, 4, 1, 5);
  const Quad high_ab = __builtin_shufflevector(qa, qb, 2, 6, 3, 7),
             high_ce = __builtin_shufflevector(qc, qe, 2, 6, 3, 7);
  write_quad(to, __builtin_shufflevector(low_ab, low_ce, 0, 1, 4, 5));
  write_quad(to + tile<Real>, __builtin_shufflevector(low_ab, low_ce, 2, 3, 6, 7));
  write_quad(to + 2 * tile<Real>, __builtin_shufflevector(high_ab, high_ce, 0, 1, 4, 5));
  write_quad(to + 3 * tile<Real>, __builtin_shufflevector(high_ab, high_ce, 2, 3, 6, 7));
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

}  // namespace

// The number of items in a tile.
int64_t mixture_tile() { return tile<float>; }
int64_t mixture_tile_double() { return tile<double>; }

// columns (length, tile): rows which[0 .. count) as columns, or the first `count` rows if `which` is null; zeros after
// them.
void mixture_gather(const float* rows, int64_t length, const int64_t* which, int64_t count, float* columns) {
  gather(rows, length, which, count, columns);
}
void mixture_gather_double(const float* rows, int64_t length, const int64_t* which, int64_t count, double* columns) {
  gather(rows, length, which, count, columns);
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
