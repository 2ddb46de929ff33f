// Binds single kernels, the random generator and the hash: tests compare each with its float64 reference.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/streams.h"
#include "bindings/arrays.h"
#include "index/masses.h"

using namespace nanobind::literals;

namespace softindex {
namespace {

template <class Element>
Matrix<Element> view(const In<Element, 2>& rows) {
  const int64_t n = rows.shape(0), d = rows.shape(1);
  return {rows.data(), n, d, rows.data() + n * d};
}

// queries (b, d), each padded with zeros.
template <class Element>
std::vector<Element> pad(const Element* queries, int64_t b, int64_t d) {
  std::vector<Element> result(b * padded(d), Element(0));
  for (int64_t g = 0; g < b; ++g) std::copy(queries + g * d, queries + (g + 1) * d, &result[g * padded(d)]);
  return result;
}

std::vector<std::string> targets() {
  std::vector<std::string> names;
  for (const char* name : {"avx512vnni", "avx512", "avx2", "baseline"})
    if (find_kernels(name) != nullptr) names.emplace_back(name);
  return names;
}

void scan(In<float, 2> rows, In<float, 1> query, Out<float, 1> dots, const std::string& target) {
  const int64_t n = rows.shape(0), d = rows.shape(1);
  expect(fits(query, d) && fits(dots, n), shapes_disagree);
  kernels_named(target).scan(view(rows), pad(query.data(), 1, d).data(), dots.data());
}

std::vector<const float*> pointers(const std::vector<float>& padded_queries, int64_t b, int64_t d) {
  std::vector<const float*> result(b);
  for (int64_t g = 0; g < b; ++g) result[g] = &padded_queries[g * padded(d)];
  return result;
}

void scan_many(In<float, 2> rows, In<float, 2> queries, Out<float, 2> dots, const std::string& target) {
  const int64_t n = rows.shape(0), d = rows.shape(1), b = queries.shape(0);
  expect(fits(queries, b, d) && fits(dots, b, n) && b >= 1, shapes_disagree);
  const std::vector<float> padded_queries = pad(queries.data(), b, d);
  kernels_named(target).scan_many(view(rows), pointers(padded_queries, b, d).data(), b, dots.data(), n);
}

void scan_int16(In<int16_t, 2> rows, In<float, 2> queries, Out<float, 2> dots, const std::string& target) {
  const int64_t n = rows.shape(0), d = rows.shape(1), b = queries.shape(0);
  expect(fits(queries, b, d) && fits(dots, b, n) && b <= group_size, shapes_disagree);
  kernels_named(target).scan_int16(view(rows), pad(queries.data(), b, d).data(), b, dots.data(), n);
}

void scan_int8(In<int8_t, 2> rows, In<int16_t, 2> queries, Out<int32_t, 2> dots, const std::string& target) {
  const int64_t n = rows.shape(0), d = rows.shape(1), b = queries.shape(0);
  expect(fits(queries, b, d) && fits(dots, b, n), shapes_disagree);
  kernels_named(target).scan_int8(view(rows), pad(queries.data(), b, d).data(), b, dots.data(), n);
}

template <class Element>
void scan_residuals(In<Element, 2> integers, In<float, 1> scales, std::optional<In<float, 1>> bias,
                    In<float, 2> queries, In<float, 1> centre_dots, Out<float, 2> dots, const std::string& target) {
  const int64_t n = integers.shape(0), d = integers.shape(1), b = queries.shape(0);
  expect(fits(scales, n) && (!bias || fits(*bias, n)) && fits(queries, b, d), shapes_disagree);
  expect(fits(centre_dots, b) && fits(dots, b, n) && b >= 1, shapes_disagree);
  const std::vector<float> padded_queries = pad(queries.data(), b, d);
  const std::vector<const float*> some = pointers(padded_queries, b, d);
  const Residuals<Element> rows = {view(integers), scales.data(), bias ? bias->data() : nullptr};
  const Kernels& kernels = kernels_named(target);
  if constexpr (sizeof(Element) == 1)
    kernels.scan_residuals_int8(rows, some.data(), centre_dots.data(), b, dots.data(), n);
  else
    kernels.scan_residuals_int16(rows, some.data(), centre_dots.data(), b, dots.data(), n);
}

double weigh(In<float, 1> dots, double temperature, std::optional<In<float, 1>> bias, Out<float, 1> weights,
             Out<double, 1> prefix, const std::string& target) {
  const int64_t n = dots.shape(0);
  expect(n >= 1 && fits(weights, n) && fits(prefix, blocks(n)) && (!bias || fits(*bias, n)), shapes_disagree);
  const Mass mass = kernels_named(target).weigh(dots.data(), n, 1.0 / temperature, bias ? bias->data() : nullptr,
                                                weights.data(), prefix.data());
  return log_mass(mass, temperature, 0.0);
}

double weigh_masses(In<double, 1> log_masses, Out<float, 1> weights, Out<double, 1> prefix, const std::string& target) {
  const int64_t n = log_masses.shape(0);
  expect(n >= 1 && fits(weights, n) && fits(prefix, blocks(n)), shapes_disagree);
  const Total total = kernels_named(target).weigh_masses(log_masses.data(), n, weights.data(), prefix.data());
  return total.peak + total.log_total;
}

int64_t pick(In<float, 1> weights, In<double, 1> prefix, double uniform, const std::string& target) {
  const int64_t n = weights.shape(0);
  expect(n >= 1 && fits(prefix, blocks(n)), shapes_disagree);
  return kernels_named(target).pick(weights.data(), prefix.data(), n, uniform);
}

void outer_product(In<float, 1> query, Out<float, 1> packed, const std::string& target) {
  const int64_t d = query.shape(0);
  expect(fits(packed, d * (d + 1) / 2), shapes_disagree);
  kernels_named(target).outer_product(query.data(), d, packed.data());
}

void square_sums(In<int32_t, 2> dots, In<float, 2> scales, Out<double, 1> sums, const std::string& target) {
  const int64_t count = dots.shape(0), rank = dots.shape(1);
  expect(fits(scales, count, rank) && fits(sums, count), shapes_disagree);
  kernels_named(target).square_sums(dots.data(), scales.data(), count, rank, sums.data());
}

void decode(In<int32_t, 1> dots, In<float, 1> scales, double base, double step, Out<float, 1> scores,
            const std::string& target) {
  const int64_t count = dots.shape(0);
  expect(fits(scales, count) && fits(scores, count), shapes_disagree);
  kernels_named(target).decode(dots.data(), scales.data(), count, base, step, scores.data());
}

void sketch_masks(In<uint8_t, 3> values, In<float, 2> scales, In<int8_t, 2> queries, In<float, 2> limits,
                  Out<uint16_t, 2> masks, const std::string& target) {
  const int64_t blocks = values.shape(0), groups = values.shape(1), b = queries.shape(0);
  expect(values.shape(2) == 64 && fits(scales, blocks, 16) && fits(queries, b, 8 * groups), shapes_disagree);
  expect(fits(limits, b, 2) && fits(masks, b, blocks), shapes_disagree);
  std::vector<SketchQuery> aims;
  aims.reserve(b);
  for (int64_t g = 0; g < b; ++g)
    aims.push_back({queries.data() + g * 8 * groups, limits.data()[2 * g], limits.data()[2 * g + 1]});
  kernels_named(target).sketch_masks({values.data(), scales.data(), blocks, groups}, aims.data(), b, masks.data(),
                                     blocks);
}

std::vector<uint32_t> philox_words(uint64_t key, uint64_t low, uint64_t high) {
  const PhiloxBlock block = philox(key, low, high);
  return {block.word, block.word + 4};
}

std::vector<double> uniform_pair(uint64_t key, uint64_t stream, uint64_t draw) {
  const Uniforms pair = uniforms(key, stream, draw);
  return {pair.first, pair.second};
}

uint64_t hash_of_bytes(nb::bytes data) { return hash_bytes(data.c_str(), (int64_t)data.size()); }

void bind_scans(nb::module_& m) {
  m.def("scan", &scan, "rows"_a, "query"_a, "dots"_a, "target"_a = "",
        "Fill dots (n,) with the dot products of rows (n, d) and the query (d,).");
  m.def("scan_many", &scan_many, "rows"_a, "queries"_a, "dots"_a, "target"_a = "",
        "Fill dots (b, n) with the dot products of rows (n, d) and one query or more (b, d).");
  m.def("scan_int16", &scan_int16, "rows"_a, "queries"_a, "dots"_a, "target"_a = "",
        "Fill dots (b, n) with the dot products of 16-bit rows (n, d) and one to four queries (b, d).");
  m.def("scan_int8", &scan_int8, "rows"_a, "queries"_a, "dots"_a, "target"_a = "",
        "Fill dots (b, n) with exact dot products of 8-bit rows (n, d) and 16-bit queries (b, d).");
  m.def("scan_residuals_int8", &scan_residuals<int8_t>, "integers"_a, "scales"_a, "bias"_a.none(), "queries"_a,
        "centre_dots"_a, "dots"_a, "target"_a = "",
        "Fill dots (b, n) with the dot products of items kept in 8 bits and one query or more (b, d).");
  m.def("scan_residuals_int16", &scan_residuals<int16_t>, "integers"_a, "scales"_a, "bias"_a.none(), "queries"_a,
        "centre_dots"_a, "dots"_a, "target"_a = "",
        "Fill dots (b, n) with the dot products of items kept in 16 bits and one query or more (b, d).");
  m.def("sketch_masks", &sketch_masks, "values"_a, "scales"_a, "queries"_a, "limits"_a, "masks"_a, "target"_a = "",
        "Fill masks (b, blocks) with a bit for every item of a sketch that reaches its query's limits (b, 2).");
  m.def("outer_product", &outer_product, "query"_a, "packed"_a, "target"_a = "",
        "Fill packed (d (d + 1) / 2,) with the products q_i q_j, i <= j, of the query (d,).");
  m.def("square_sums", &square_sums, "dots"_a, "scales"_a, "sums"_a, "target"_a = "",
        "Fill sums (k,) with the sums of squares of dots * scales, both (k, r).");
  m.def("decode", &decode, "dots"_a, "scales"_a, "base"_a, "step"_a, "scores"_a, "target"_a = "",
        "Fill scores (m,) with base + step * scales * dots.");
}

void bind_weights(nb::module_& m) {
  m.def("weigh", &weigh, "dots"_a, "temperature"_a, "bias"_a.none(), "weights"_a, "prefix"_a, "target"_a = "",
        "Fill weights (n,) and prefix (ceil(n / 64),) of a softmax over dots (n,); return the log of its sum.");
  m.def("weigh_masses", &weigh_masses, "log_masses"_a, "weights"_a, "prefix"_a, "target"_a = "",
        "Fill weights (k,) and prefix (ceil(k / 64),) from log masses (k,); return the log of their sum.");
  m.def("pick", &pick, "weights"_a, "prefix"_a, "uniform"_a, "target"_a = "",
        "Return the position whose share of the total weight contains the point uniform in [0, 1).");
}

void bind_random(nb::module_& m) {
  m.def("philox", &philox_words, "key"_a, "low"_a, "high"_a,
        "Return the four 32-bit words of Philox 4x32-10 for a 64-bit key and a 128-bit counter.");
  m.def("uniforms", &uniform_pair, "key"_a, "stream"_a, "draw"_a, "Return the two uniforms in [0, 1) of one draw.");
  m.def("hash_bytes", &hash_of_bytes, "data"_a, "Return the 64-bit hash of bytes.");
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("targets", &targets, "Return the names of the instruction sets that this CPU runs, best first.");
  bind_scans(m);
  bind_weights(m);
  bind_random(m);
  m.def(
      "dot_error", [](int64_t d) { return dot_error(d); }, "d"_a,
      "Return a bound on the error of a float32 dot product of d numbers, relative to the product of the norms.");
  m.attr("BLOCK") = block_size;
  m.attr("LANES") = lanes;
}

}  // namespace softindex
