// Binds what the adaptive softmax reads by: screens of rows in few bits, pulls of sixteen coordinates, whole products.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "bindings/arrays.h"

using namespace nanobind::literals;

namespace softindex {
namespace {

// Rows that one task takes: a few pages, whatever their length.
int64_t rows_per_task(int64_t d) { return std::max<int64_t>(16, (1 << 18) / d) / 4 * 4; }

template <class Work>
void over_rows(int64_t n, int64_t d, int64_t threads, const Work& work) {
  const int64_t step = rows_per_task(d);
  parallel((n + step - 1) / step, threads, [&](const auto& next) {
    for (int64_t task = next(); task >= 0; task = next()) work(task * step, std::min(n, (task + 1) * step));
  });
}

void screen(In<int8_t, 2> codes, In<int16_t, 2> queries, Out<int64_t, 2> dots, int64_t threads,
            const std::string& target) {
  const int64_t n = codes.shape(0), d = codes.shape(1), b = queries.shape(0);
  expect(fits(queries, b, padded(d)) && fits(dots, b, n) && d >= 1, "shapes disagree");
  for (int64_t i = 0; i < b * padded(d); ++i)
    expect(queries.data()[i] >= -16383 && queries.data()[i] <= 16383, "a query has more than 15 bits");
  const Kernels& kernels = kernels_named(target);
  nb::gil_scoped_release release;
  const int8_t* limit = codes.data() + n * d;
  over_rows(n, d, threads, [&](int64_t begin, int64_t end) {
    const Matrix<int8_t> rows = {codes.data() + begin * d, end - begin, d, limit};
    for (int64_t g = 0; g < b; g += group_size)
      kernels.screen(rows, queries.data() + g * padded(d), std::min(group_size, b - g), dots.data() + g * n + begin, n);
  });
}

void screen_nibbles(In<uint8_t, 2> codes, In<int8_t, 2> queries, Out<int64_t, 2> dots, int64_t threads,
                    const std::string& target) {
  const int64_t n = codes.shape(0), width = codes.shape(1), b = queries.shape(0), chunks = width / 32;
  expect(width % 32 == 0 && chunks <= 1 << 14 && fits(queries, b, 2 * width) && fits(dots, b, n), "shapes disagree");
  for (int64_t i = 0; i < b * 2 * width; ++i) expect(queries.data()[i] != -128, "a query has a number below -127");
  const Kernels& kernels = kernels_named(target);
  nb::gil_scoped_release release;
  over_rows(n, width, threads, [&](int64_t begin, int64_t end) {
    for (int64_t g = 0; g < b; g += group_size)
      kernels.screen_nibbles(codes.data() + begin * width, end - begin, chunks, queries.data() + g * 2 * width,
                             std::min(group_size, b - g), dots.data() + g * n + begin, n);
  });
}

// rows (n, d): bfloat16 if brain, else float16, finite; wide (n, d): the same numbers. Sign, exponent and fraction move
// to where float32 has them, which makes a float16 too small by 2^112. Two loops, so that the compiler makes vectors of
// them.
void widen(In<uint16_t, 2> rows, bool brain, Out<float, 2> wide) {
  expect(fits(wide, rows.shape(0), rows.shape(1)), "shapes disagree");
  const int64_t count = (int64_t)rows.size();
  const uint16_t* __restrict from = rows.data();
  float* __restrict to = wide.data();
  nb::gil_scoped_release release;
  if (brain) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = (uint32_t)from[i] << 16;
      std::memcpy(to + i, &bits, sizeof bits);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = ((uint32_t)from[i] & 0x8000) << 16 | ((uint32_t)from[i] & 0x7fff) << 13;
    float small;
    std::memcpy(&small, &bits, sizeof bits);
    to[i] = small * 0x1p112f;
  }
}

void double_dots(In<float, 2> rows, In<int64_t, 1> which, In<double, 1> query, Out<double, 1> dots,
                 const std::string& target) {
  const int64_t n = rows.shape(0), d = rows.shape(1), count = which.shape(0);
  expect(fits(query, d) && fits(dots, count), "shapes disagree");
  for (int64_t i = 0; i < count; ++i) expect(which.data()[i] >= 0 && which.data()[i] < n, "there is no such row");
  const Kernels& kernels = kernels_named(target);
  nb::gil_scoped_release release;
  for (int64_t i = 0; i < count; ++i)
    dots.data()[i] = kernels.double_dot(rows.data() + which.data()[i] * d, query.data(), d);
}

void pull(In<float, 3> blocks, In<int64_t, 1> which, In<float, 2> queries, In<int64_t, 1> arms, In<double, 1> scales,
          In<double, 1> weights, Out<double, 2> state, const std::string& target) {
  const int64_t count = blocks.shape(0), n = blocks.shape(1), rounds = which.shape(0);
  expect(fits(blocks, count, n, lanes) && fits(queries, rounds, lanes) && fits(scales, rounds) &&
             fits(weights, rounds) && fits(state, 5, n),
         "shapes disagree");
  for (int64_t r = 0; r < rounds; ++r)
    expect(which.data()[r] >= 0 && which.data()[r] < count, "there is no such block");
  for (size_t i = 0; i < arms.shape(0); ++i) expect(arms.data()[i] >= 0 && arms.data()[i] < n, "there is no such row");
  const Kernels& kernels = kernels_named(target);
  nb::gil_scoped_release release;
  double* held = state.data();
  const Pulled pulled = {held, held + n, held + 2 * n, held + 3 * n, held + 4 * n};
  // A few blocks at a time: memory follows so many places at once.
  constexpr int64_t together = 8;
  for (int64_t r = 0; r < rounds; r += together)
    kernels.pull(blocks.data(), n, which.data() + r, queries.data() + r * lanes, scales.data() + r, weights.data() + r,
                 std::min(together, rounds - r), arms.data(), (int64_t)arms.shape(0), pulled);
}

}  // namespace

void bind_adaptive(nb::module_& m) {
  m.def("screen", &screen, "codes"_a, "queries"_a, "dots"_a, "threads"_a, "target"_a = "");
  m.def("screen_nibbles", &screen_nibbles, "codes"_a, "queries"_a, "dots"_a, "threads"_a, "target"_a = "");
  m.def("widen", &widen, "rows"_a, "brain"_a, "wide"_a);
  m.def("double_dots", &double_dots, "rows"_a, "which"_a, "query"_a, "dots"_a, "target"_a = "");
  m.def("pull", &pull, "blocks"_a, "which"_a, "queries"_a, "arms"_a, "scales"_a, "weights"_a, "state"_a,
        "target"_a = "");
}

}  // namespace softindex
