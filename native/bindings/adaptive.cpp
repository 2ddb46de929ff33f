// Binds the native part of AdaptiveSoftmax: screens of rows in few bits, pulls of coordinates, exact dot products.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>

#include "adaptive/pac.h"
#include "adaptive/rows.h"
#include "adaptive/screens.h"
#include "base/array_reader.h"
#include "bindings/arrays.h"
#include "bindings/named_arrays.h"
#include "bindings/native_call.h"

using namespace nanobind::literals;

namespace softindex {
namespace {

using Named = std::optional<In<int64_t, 1>>;

Chosen chosen_of(const Named& which, int64_t n) {
  if (!which) return {n, nullptr};
  expect(within(*which, n), "there is no such row");
  return {(int64_t)which->shape(0), which->data()};
}

void screen(In<int8_t, 2> codes, In<int16_t, 2> queries, Out<int64_t, 2> dots, int64_t threads, const Named& which,
            const std::string& target) {
  const int64_t n = codes.shape(0), d = codes.shape(1), b = queries.shape(0);
  const Chosen chosen = chosen_of(which, n);
  expect(fits(queries, b, padded(d)) && fits(dots, b, chosen.count) && d >= 1, shapes_disagree);
  for (int64_t i = 0; i < b * padded(d); ++i)
    expect(queries.data()[i] >= -16383 && queries.data()[i] <= 16383, "queries must lie within -16383 .. 16383");
  const Kernels& kernels = kernels_named(target);
  call_native([&] {
    screen_rows(kernels, {codes.data(), n, d, codes.data() + n * d}, chosen, queries.data(), b, threads, dots.data());
  });
}

void screen_nibbles(In<uint8_t, 2> codes, In<int8_t, 2> queries, Out<int64_t, 2> dots, int64_t threads,
                    const Named& which, const std::string& target) {
  const int64_t n = codes.shape(0), width = codes.shape(1), b = queries.shape(0), chunks = width / 32;
  const Chosen chosen = chosen_of(which, n);
  expect(width % 32 == 0 && chunks <= 1 << 14 && fits(queries, b, 2 * width), shapes_disagree);
  expect(fits(dots, b, chosen.count), shapes_disagree);
  for (int64_t i = 0; i < b * 2 * width; ++i) expect(queries.data()[i] != -128, "queries must lie within -127 .. 127");
  const Kernels& kernels = kernels_named(target);
  call_native(
      [&] { screen_nibble_rows(kernels, {codes.data(), n, chunks}, chosen, queries.data(), b, threads, dots.data()); });
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

using Whatever = nb::ndarray<nb::ro, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Number number_of(const Whatever& weights) {
  if (weights.dtype() == nb::dtype<float>()) return Number::float32;
  if (weights.dtype() == nb::dtype<uint16_t>()) return Number::bfloat16;
  expect(weights.dtype().code == (uint8_t)nb::dlpack::dtype_code::Float && weights.dtype().bits == 16,
         "weights must be float32, float16, or bfloat16 as uint16");
  return Number::float16;
}

// What "pac" reads of a layer, with the arrays that it points into.
struct BoundPac {
  Whatever weights;
  NamedArrays kept;
  Pac pac;

  BoundPac(Whatever weights, const nb::dict& arrays, int64_t used)
      : weights(weights), kept(arrays), pac(layer(weights, kept.views(), used)) {}

  static PacLayer layer(const Whatever& weights, const Arrays& views, int64_t used) {
    ArrayReader arrays(views);
    PacLayer made = {};
    made.n = (int64_t)weights.shape(0);
    made.d = (int64_t)weights.shape(1);
    made.stride = made.n < lanes ? made.n : padded(made.n);
    made.columns = arrays.required<float>("columns", {made.d + made.spare(), made.stride});
    made.scales = arrays.required<float>("scales", {padded(made.d)});
    made.kept = arrays.at("heavy", 2).shape[1];
    made.heavy = arrays.required<float>("heavy", {made.n, made.kept});
    made.heavy_columns = arrays.required<int64_t>("heavy_columns", {made.n, made.kept});
    for (int64_t i = 0; i < made.n * made.kept; ++i)
      expect(made.heavy_columns[i] >= 0 && made.heavy_columns[i] < made.d, "there is no such column");
    made.energies = arrays.required<double>("energies", {made.n});
    made.excesses = arrays.required<double>("excesses", {made.n});
    made.norms = arrays.required<double>("norms", {made.n});
    made.longest = *std::max_element(made.norms, made.norms + made.n);
    made.bias = arrays.optional<float>("bias", {made.n});
    made.log_bias = arrays.optional<float>("log_bias", {made.n});
    made.used = used;
    made.rows = {weights.data(), number_of(weights)};
    arrays.expect_all_used();
    return made;
  }

  int64_t n() const { return (int64_t)weights.shape(0); }
  int64_t d() const { return (int64_t)weights.shape(1); }
};

// What is asked of all queries of a call.
struct PacGoal {
  Goal goal;
  Temperature temperature;
  uint64_t seed;

  PacGoal(int64_t k, double epsilon, const std::array<double, 3>& quantiles, double inverse, uint64_t seed)
      : goal{k, epsilon, quantiles[0], quantiles[1], quantiles[2]}, temperature{inverse}, seed(seed) {}
};

// The results, one row per query.
struct BoundAnswers {
  Out<int64_t, 2> rows;
  Out<double, 2> scores, log_prob, log_z;
  Out<int64_t, 2> costs;

  BoundAnswers(Out<int64_t, 2> rows, Out<double, 2> scores, Out<double, 2> log_prob, Out<double, 2> log_z,
               Out<int64_t, 2> costs)
      : rows(rows), scores(scores), log_prob(log_prob), log_z(log_z), costs(costs) {}

  PacAnswers answers(int64_t b, int64_t k) const {
    expect(fits(rows, b, k) && fits(scores, b, k) && fits(log_prob, b, k), unfit);
    expect(fits(log_z, b, 3) && fits(costs, b, 4), unfit);
    return {rows.data(), scores.data(), log_prob.data(), log_z.data(), costs.data()};
  }
};

// Rows to leave out, with the arrays that they are in.
struct BoundExclusions {
  In<int64_t, 1> offsets, rows;

  BoundExclusions(In<int64_t, 1> offsets, In<int64_t, 1> rows) : offsets(offsets), rows(rows) {
    expect(offsets.shape(0) >= 2, shapes_disagree);
  }

  PacExclusions exclusions(int64_t b, int64_t n, int64_t k) const {
    const int64_t lists = (int64_t)offsets.shape(0) - 1, count = (int64_t)rows.shape(0);
    expect((lists == 1 || lists == b) && within(rows, n), shapes_disagree);
    expect(offsets.data()[0] == 0 && offsets.data()[lists] == count, "exclusions do not fit their offsets");
    for (int64_t i = 0; i < lists; ++i) {
      const int64_t begin = offsets.data()[i], end = offsets.data()[i + 1];
      expect(begin <= end && end <= count && k <= n - (end - begin), "exclusions leave too few rows");
      for (int64_t j = begin + 1; j < end; ++j)
        expect(rows.data()[j - 1] < rows.data()[j], "exclusions do not increase");
    }
    return {offsets.data(), rows.data(), lists == 1};
  }
};

void answer(BoundPac& layer, const PacQueries& queries, const PacGoal& goal, const BoundExclusions* exclusions,
            int64_t threads, const BoundAnswers& results, const std::string& target) {
  const int64_t n = layer.n(), k = goal.goal.k;
  expect(k >= 1 && k <= n, "there are not as many rows");
  const PacAnswers answers = results.answers(queries.b, k);
  const PacExclusions out = exclusions ? exclusions->exclusions(queries.b, n, k) : PacExclusions{};
  const PacRequest request = {queries, goal.goal, goal.temperature, goal.seed, threads, out};
  const Kernels& kernels = kernels_named(target);
  call_native([&] { layer.pac.answer(kernels, request, answers); });
}

void answer_dense(BoundPac& layer, In<float, 2> queries, double limit, const PacGoal& goal,
                  const BoundExclusions* exclusions, int64_t threads, const BoundAnswers& results,
                  const std::string& target) {
  expect((int64_t)queries.shape(1) == layer.d(), shapes_disagree);
  const PacQueries all = {(int64_t)queries.shape(0), queries.data(), nullptr, nullptr, nullptr, limit};
  answer(layer, all, goal, exclusions, threads, results, target);
}

// The outcome, rows scored, multiplications, bytes read; log Z and its bounds.
using Summary = std::tuple<int64_t, int64_t, int64_t, int64_t, double, double, double>;

// One query takes microseconds: records and arrays around it would take as long.
Summary answer_one(BoundPac& layer, In<float, 1> query, double limit, const PacGoal& goal, int64_t threads,
                   Out<int64_t, 1> rows, Out<double, 1> scores, Out<double, 1> log_prob, Out<bool, 1> proven) {
  const int64_t k = goal.goal.k;
  expect(fits(query, layer.d()) && k >= 1 && k <= layer.n(), shapes_disagree);
  expect(fits(rows, k) && fits(scores, k) && fits(log_prob, k) && fits(proven, k), unfit);
  double log_z[3] = {};
  int64_t costs[4] = {};
  const PacQueries one = {1, query.data(), nullptr, nullptr, nullptr, limit};
  const PacRequest request = {one, goal.goal, goal.temperature, goal.seed, threads, {}};
  const PacAnswers answers = {rows.data(), scores.data(), log_prob.data(), log_z, costs};
  static const Kernels& kernels = kernels_named("");
  call_native([&] { layer.pac.answer(kernels, request, answers); });
  std::fill_n(proven.data(), k, costs[0] == (int64_t)Outcome::scanned);
  return {costs[0], costs[1], costs[2], costs[3], log_z[0], log_z[1], log_z[2]};
}

int64_t look(BoundPac& layer, In<float, 1> query, uint64_t seed, Out<int64_t, 1> which, Out<double, 2> found,
             const std::string& target) {
  const int64_t n = layer.n(), count = (int64_t)which.shape(0);
  expect(fits(query, layer.d()) && fits(found, 3, n) && count >= 1 && count <= layer.d(), shapes_disagree);
  const PacLook seen = {which.data(), found.data(), found.data() + n, found.data() + 2 * n};
  const Kernels& kernels = kernels_named(target);
  int64_t drawn = 0;
  call_native([&] { drawn = layer.pac.look(kernels, query.data(), seed, count, seen); });
  return drawn;
}

void answer_sparse(BoundPac& layer, In<int64_t, 1> offsets, In<int64_t, 1> columns, In<float, 1> values,
                   const PacGoal& goal, const BoundExclusions* exclusions, int64_t threads,
                   const BoundAnswers& results) {
  const int64_t b = (int64_t)offsets.shape(0) - 1, count = (int64_t)columns.shape(0);
  expect(b >= 1 && fits(values, count) && within(columns, layer.d()), shapes_disagree);
  expect(offsets.data()[0] == 0 && offsets.data()[b] == count, shapes_disagree);
  for (int64_t q = 0; q < b; ++q) {
    expect(offsets.data()[q] <= offsets.data()[q + 1], "offsets decrease");
    for (int64_t i = offsets.data()[q] + 1; i < offsets.data()[q + 1]; ++i)
      expect(columns.data()[i - 1] < columns.data()[i], "columns do not increase");
  }
  const PacQueries all = {b, nullptr, offsets.data(), columns.data(), values.data(), HUGE_VAL};
  answer(layer, all, goal, exclusions, threads, results, "");
}

}  // namespace

void bind_adaptive(nb::module_& m) {
  m.def("screen", &screen, "codes"_a, "queries"_a, "dots"_a, "threads"_a, "which"_a = nb::none(), "target"_a = "",
        "Fill dots (b, m) with exact dot products of 8-bit codes (n, d), all or some, and 16-bit queries (b, "
        "padded(d)).");
  m.def("screen_nibbles", &screen_nibbles, "codes"_a, "queries"_a, "dots"_a, "threads"_a, "which"_a = nb::none(),
        "target"_a = "",
        "Fill dots (b, m) with exact dot products of 4-bit codes (n, 32 c), all or some, and 8-bit queries (b, 64 "
        "c).");
  m.def("widen", &widen, "rows"_a, "brain"_a, "wide"_a,
        "Fill wide (n, d) with rows (n, d) of finite bfloat16 (brain) or float16 bits as float32.");
  m.def("double_dots", &double_dots, "rows"_a, "which"_a, "query"_a, "dots"_a, "target"_a = "",
        "Fill dots (m,) with the dot products, in double, of the rows which (m,) with the query (d,).");
  nb::class_<PacGoal>(m, "PacGoal", "What is asked of all queries of a call of Pac.")
      .def(nb::init<int64_t, double, const std::array<double, 3>&, double, uint64_t>(), "k"_a, "epsilon"_a,
           "quantiles"_a, "inverse_temperature"_a, "seed"_a)
      .def_prop_ro("k", [](const PacGoal& asked) { return asked.goal.k; });
  nb::class_<BoundExclusions>(m, "PacExclusions", "Rows that the queries of a call leave out.")
      .def(nb::init<In<int64_t, 1>, In<int64_t, 1>>(), "offsets"_a, "rows"_a);
  nb::class_<BoundAnswers>(m, "PacAnswers",
                           "Arrays to fill: rows, scores and log_prob (b, k), log_z (b, 3), costs (b, 4).")
      .def(nb::init<Out<int64_t, 2>, Out<double, 2>, Out<double, 2>, Out<double, 2>, Out<int64_t, 2>>(), "rows"_a,
           "scores"_a, "log_prob"_a, "log_z"_a, "costs"_a);
  nb::class_<BoundPac>(m, "Pac",
                       "Answers with the guarantee pac, for the weights (n, d) and what was computed of them.")
      .def(nb::init<Whatever, const nb::dict&, int64_t>(), "weights"_a, "arrays"_a, "used"_a,
           nb::sig("def __init__(self, weights: object, arrays: dict[str, object], used: int) -> None"))
      .def("answer", &answer_dense, "queries"_a, "limit"_a, "goal"_a, "exclusions"_a.none(), "threads"_a, "answers"_a,
           "target"_a = "", "Answer queries (b, d), or refuse those whose squared length exceeds the limit.")
      .def("answer_one", &answer_one, "query"_a, "limit"_a, "goal"_a, "threads"_a, "rows"_a, "scores"_a, "log_prob"_a,
           "proven"_a, "The same for one query (d,): fill arrays (k,), return its costs and log_z.")
      .def_prop_ro("n", &BoundPac::n)
      .def("look", &look, "query"_a, "seed"_a, "which"_a, "found"_a, "target"_a = "",
           "Draw columns of a query into which (m,), fill found (3, n) with estimates, variances and rare terms.")
      .def("answer_sparse", &answer_sparse, "offsets"_a, "columns"_a, "values"_a, "goal"_a, "exclusions"_a.none(),
           "threads"_a, "answers"_a, "Answer queries that have values at increasing columns, and zeros elsewhere.");
}

}  // namespace softindex
