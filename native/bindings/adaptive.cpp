// Binds the native part of AdaptiveSoftmax: screens of rows in few bits, pulls of coordinates, exact dot products.
#include <nanobind/stl/string.h>

#include "adaptive/pulls.h"
#include "adaptive/rows.h"
#include "adaptive/screens.h"
#include "bindings/arrays.h"
#include "bindings/native_call.h"

using namespace nanobind::literals;

namespace softindex {
namespace {

void screen(In<int8_t, 2> codes, In<int16_t, 2> queries, Out<int64_t, 2> dots, int64_t threads,
            const std::string& target) {
  const int64_t n = codes.shape(0), d = codes.shape(1), b = queries.shape(0);
  expect(fits(queries, b, padded(d)) && fits(dots, b, n) && d >= 1, shapes_disagree);
  for (int64_t i = 0; i < b * padded(d); ++i)
    expect(queries.data()[i] >= -16383 && queries.data()[i] <= 16383, "queries must lie within -16383 .. 16383");
  const Kernels& kernels = kernels_named(target);
  call_native([&] {
    screen_rows(kernels, {codes.data(), n, d, codes.data() + n * d}, queries.data(), b, threads, dots.data());
  });
}

void screen_nibbles(In<uint8_t, 2> codes, In<int8_t, 2> queries, Out<int64_t, 2> dots, int64_t threads,
                    const std::string& target) {
  const int64_t n = codes.shape(0), width = codes.shape(1), b = queries.shape(0), chunks = width / 32;
  expect(width % 32 == 0 && chunks <= 1 << 14 && fits(queries, b, 2 * width) && fits(dots, b, n), shapes_disagree);
  for (int64_t i = 0; i < b * 2 * width; ++i) expect(queries.data()[i] != -128, "queries must lie within -127 .. 127");
  const Kernels& kernels = kernels_named(target);
  call_native([&] { screen_nibble_rows(kernels, {codes.data(), n, chunks}, queries.data(), b, threads, dots.data()); });
}

void widen(In<uint16_t, 2> rows, bool brain, Out<float, 2> wide) {
  expect(fits(wide, rows.shape(0), rows.shape(1)), shapes_disagree);
  call_native([&] { (brain ? widen_bfloat16 : widen_float16)(rows.data(), (int64_t)rows.size(), wide.data()); });
}

void double_dots(In<float, 2> rows, In<int64_t, 1> which, In<double, 1> query, Out<double, 1> dots,
                 const std::string& target) {
  const int64_t n = rows.shape(0), d = rows.shape(1), count = which.shape(0);
  expect(fits(query, d) && fits(dots, count), shapes_disagree);
  expect(within(which, n), "there is no such row");
  const Kernels& kernels = kernels_named(target);
  call_native([&] {
    dot_rows(kernels, {rows.data(), n, d, rows.data() + n * d}, which.data(), count, query.data(), dots.data());
  });
}

void pull(In<float, 3> blocks, In<int64_t, 1> which, In<float, 2> queries, In<int64_t, 1> arms, In<double, 1> scales,
          In<double, 1> weights, Out<double, 2> state, const std::string& target) {
  const int64_t count = blocks.shape(0), n = blocks.shape(1), rounds = which.shape(0);
  expect(fits(blocks, count, n, lanes) && fits(queries, rounds, lanes) && fits(scales, rounds) &&
             fits(weights, rounds) && fits(state, 5, n),
         shapes_disagree);
  expect(within(which, count), "there is no such block");
  expect(within(arms, n), "there is no such row");
  const Kernels& kernels = kernels_named(target);
  const Pulls pulls = {blocks.data(), n, which.data(), queries.data(), scales.data(), weights.data(), rounds};
  double* rows = state.data();
  const PullState sums = {rows, rows + n, rows + 2 * n, rows + 3 * n, rows + 4 * n};
  call_native([&] { pull_blocks(kernels, pulls, arms.data(), (int64_t)arms.shape(0), sums); });
}

}  // namespace

void bind_adaptive(nb::module_& m) {
  m.def("screen", &screen, "codes"_a, "queries"_a, "dots"_a, "threads"_a, "target"_a = "",
        "Fill dots (b, n) with exact dot products of 8-bit codes (n, d) and 16-bit queries (b, padded(d)).");
  m.def("screen_nibbles", &screen_nibbles, "codes"_a, "queries"_a, "dots"_a, "threads"_a, "target"_a = "",
        "Fill dots (b, n) with exact dot products of 4-bit codes (n, 32 c) and 8-bit queries (b, 64 c).");
  m.def("widen", &widen, "rows"_a, "brain"_a, "wide"_a,
        "Fill wide (n, d) with rows (n, d) of finite bfloat16 (brain) or float16 bits as float32.");
  m.def("double_dots", &double_dots, "rows"_a, "which"_a, "query"_a, "dots"_a, "target"_a = "",
        "Fill dots (m,) with the dot products, in double, of the rows which (m,) with the query (d,).");
  m.def("pull", &pull, "blocks"_a, "which"_a, "queries"_a, "arms"_a, "scales"_a, "weights"_a, "state"_a,
        "target"_a = "",
        "Add the blocks which (r,) of sixteen coordinates to the state (5, n) of the rows arms (m,), in place.");
}

}  // namespace softindex
