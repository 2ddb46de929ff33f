// Binds single kernels, the random generator and the hash to Python, for tests that compare each with its float64 twin.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/philox.h"
#include "bindings/arrays.h"
#include "index/masses.h"

using namespace nanobind::literals;

namespace softindex {
namespace {

template <class Array>
auto pointer(const std::optional<Array>& array) -> decltype(array->data()) {
  return array ? array->data() : nullptr;
}

template <class Element>
std::vector<Element> pad_all(const Element* queries, int64_t count, int64_t d) {
  std::vector<Element> result(count * padded(d), Element(0));
  for (int64_t g = 0; g < count; ++g) std::copy(queries + g * d, queries + (g + 1) * d, &result[g * padded(d)]);
  return result;
}

// The kernels one by one, for the tests that hold each against its float64 twin.
}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("targets", [] {
    std::vector<std::string> names;
    for (const char* name : {"avx512", "avx2", "baseline"})
      if (find_kernels(name) != nullptr) names.emplace_back(name);
    return names;
  });
  m.def(
      "scan",
      [](In<float, 2> rows, In<float, 1> query, Out<float, 1> dots, const std::string& target) {
        expect(rows.shape(1) == query.shape(0) && rows.shape(0) == dots.shape(0), "shapes disagree");
        const int64_t n = rows.shape(0), d = rows.shape(1);
        const std::vector<float> staged = pad_all(query.data(), 1, d);
        kernels_named(target).scan({rows.data(), n, d, rows.data() + n * d}, staged.data(), dots.data());
      },
      "rows"_a, "query"_a, "dots"_a, "target"_a = "");
  m.def(
      "scan_group",
      [](In<float, 2> rows, In<float, 2> queries, Out<float, 2> dots, const std::string& target) {
        expect(rows.shape(1) == queries.shape(1) && rows.shape(0) == dots.shape(1) && queries.shape(0) == group_size &&
                   dots.shape(0) == group_size,
               "shapes disagree");
        const int64_t n = rows.shape(0), d = rows.shape(1);
        const std::vector<float> staged = pad_all(queries.data(), group_size, d);
        const float* four[group_size];
        for (int64_t g = 0; g < group_size; ++g) four[g] = &staged[g * padded(d)];
        kernels_named(target).scan_group({rows.data(), n, d, rows.data() + n * d}, four, dots.data(), n);
      },
      "rows"_a, "queries"_a, "dots"_a, "target"_a = "");
  m.def(
      "weigh",
      [](In<float, 1> dots, double temperature, std::optional<In<float, 1>> bias, Out<float, 1> weights,
         Out<double, 1> prefix, const std::string& target) {
        const int64_t n = dots.shape(0);
        expect(n >= 1 && (int64_t)weights.shape(0) == n && (int64_t)prefix.shape(0) == blocks(n) &&
                   (!bias || (int64_t)bias->shape(0) == n),
               "shapes disagree");
        const Mass mass = kernels_named(target).weigh(dots.data(), n, 1.0 / temperature, pointer(bias), weights.data(),
                                                      prefix.data());
        return log_mass(mass, temperature, 0.0);
      },
      "dots"_a, "temperature"_a, "bias"_a.none(), "weights"_a, "prefix"_a, "target"_a = "");
  m.def(
      "weigh_masses",
      [](In<double, 1> log_masses, Out<float, 1> weights, Out<double, 1> prefix, const std::string& target) {
        const int64_t n = log_masses.shape(0);
        expect(n >= 1 && (int64_t)weights.shape(0) == n && (int64_t)prefix.shape(0) == blocks(n), "shapes disagree");
        const Total total = kernels_named(target).weigh_masses(log_masses.data(), n, weights.data(), prefix.data());
        return total.peak + total.log_total;
      },
      "log_masses"_a, "weights"_a, "prefix"_a, "target"_a = "");
  m.def(
      "pick",
      [](In<float, 1> weights, In<double, 1> prefix, double uniform, const std::string& target) {
        const int64_t n = weights.shape(0);
        expect(n >= 1 && (int64_t)prefix.shape(0) == blocks(n), "shapes disagree");
        return kernels_named(target).pick(weights.data(), prefix.data(), n, uniform);
      },
      "weights"_a, "prefix"_a, "uniform"_a, "target"_a = "");
  m.def(
      "outer_product",
      [](In<float, 1> query, Out<float, 1> packed, const std::string& target) {
        const int64_t d = query.shape(0);
        expect((int64_t)packed.shape(0) == d * (d + 1) / 2, "shapes disagree");
        kernels_named(target).outer_product(query.data(), d, packed.data());
      },
      "query"_a, "packed"_a, "target"_a = "");
  m.def(
      "square_sums",
      [](In<int32_t, 2> dots, In<float, 2> scales, Out<double, 1> sums, const std::string& target) {
        expect(dots.shape(0) == sums.shape(0) && dots.shape(0) == scales.shape(0) && dots.shape(1) == scales.shape(1),
               "shapes disagree");
        kernels_named(target).square_sums(dots.data(), scales.data(), dots.shape(0), dots.shape(1), sums.data());
      },
      "dots"_a, "scales"_a, "sums"_a, "target"_a = "");
  m.def(
      "scan_int16",
      [](In<int16_t, 2> rows, In<float, 2> queries, Out<float, 2> dots, const std::string& target) {
        const int64_t n = rows.shape(0), d = rows.shape(1), b = queries.shape(0);
        expect(rows.shape(1) == queries.shape(1) && rows.shape(0) == dots.shape(1) && b == (int64_t)dots.shape(0) &&
                   b <= group_size,
               "shapes disagree");
        const std::vector<float> staged = pad_all(queries.data(), b, d);
        kernels_named(target).scan_int16({rows.data(), n, d, rows.data() + n * d}, staged.data(), b, dots.data(), n);
      },
      "rows"_a, "queries"_a, "dots"_a, "target"_a = "");
  m.def(
      "scan_int8",
      [](In<int8_t, 2> rows, In<int16_t, 2> queries, Out<int32_t, 2> dots, const std::string& target) {
        const int64_t n = rows.shape(0), d = rows.shape(1), b = queries.shape(0);
        expect(rows.shape(1) == queries.shape(1) && rows.shape(0) == dots.shape(1) && b == (int64_t)dots.shape(0),
               "shapes disagree");
        const std::vector<int16_t> staged = pad_all(queries.data(), b, d);
        kernels_named(target).scan_int8({rows.data(), n, d, rows.data() + n * d}, staged.data(), b, dots.data(), n);
      },
      "rows"_a, "queries"_a, "dots"_a, "target"_a = "");
  m.def(
      "decode",
      [](In<int32_t, 1> dots, In<float, 1> scales, double base, double step, Out<float, 1> scores,
         const std::string& target) {
        expect(dots.shape(0) == scales.shape(0) && dots.shape(0) == scores.shape(0), "shapes disagree");
        kernels_named(target).decode(dots.data(), scales.data(), dots.shape(0), base, step, scores.data());
      },
      "dots"_a, "scales"_a, "base"_a, "step"_a, "scores"_a, "target"_a = "");
  m.def(
      "philox",
      [](uint64_t key, uint64_t low, uint64_t high) {
        const PhiloxBlock block = philox(key, low, high);
        return std::vector<uint32_t>(block.word, block.word + 4);
      },
      "key"_a, "low"_a, "high"_a);
  m.def(
      "uniforms",
      [](uint64_t key, uint64_t stream, uint64_t draw) {
        const Uniforms u = uniforms(key, stream, draw);
        return std::vector<double>{u.first, u.second};
      },
      "key"_a, "stream"_a, "draw"_a);
  m.def("hash_bytes", [](nb::bytes data) { return hash_bytes(data.c_str(), (int64_t)data.size()); }, "data"_a);
  m.def(
      "hash_strings",
      [](In<uint8_t, 1> text, In<int64_t, 1> ends, Out<uint64_t, 1> hashes) {
        expect(ends.shape(0) == hashes.shape(0), "shapes disagree");
        int64_t begin = 0;
        for (size_t i = 0; i < ends.shape(0); ++i) {
          const int64_t end = ends.data()[i];
          expect(end >= begin && end <= (int64_t)text.shape(0), "string ends are out of order");
          hashes.data()[i] = hash_bytes(text.data() + begin, end - begin);
          begin = end;
        }
      },
      "text"_a, "ends"_a, "hashes"_a);
  m.def("dot_error", &dot_error, "d"_a);
  m.attr("BLOCK") = block_size;
  m.attr("LANES") = lanes;
}

}  // namespace softindex
