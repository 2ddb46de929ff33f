// Prints a hash of what each kernel computes from fixed numbers, for a set of kernels: bits [SET]. The hashes of two
// machines agree where their results agree bit for bit; `make test-arm` compares x86-64 with aarch64. All kernels but
// those of learned similarities, which use fused multiply-add where there is one: see mixture_tile.h.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/kernels.h"

using namespace softindex;

namespace {

// Numbers that depend on nothing but the order in which they are asked for.
class Numbers {
 public:
  uint64_t integer() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return state_ >> 33;
  }
  float real() { return (float)((double)integer() / (double)(1ull << 30) - 1.0); }
  template <class Element>
  std::vector<Element> integers(int64_t count, int64_t low, int64_t high) {
    std::vector<Element> result(count);
    for (Element& value : result) value = (Element)(low + (int64_t)(integer() % (uint64_t)(high - low + 1)));
    return result;
  }
  template <class Element>
  std::vector<Element> reals(int64_t count) {
    std::vector<Element> result(count);
    for (Element& value : result) value = (Element)real();
    return result;
  }

 private:
  uint64_t state_ = 42;
};

class Hash {
 public:
  template <class Element>
  Hash& add(const std::vector<Element>& values) {
    return add(values.data(), values.size() * sizeof(Element));
  }
  template <class Number>
  Hash& add(Number value) {
    return add(&value, sizeof(value));
  }
  void print(const char* name) const { std::printf("%-24s %016llx\n", name, (unsigned long long)state_); }

 private:
  Hash& add(const void* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) state_ = (state_ ^ ((const unsigned char*)bytes)[i]) * 1099511628211ull;
    return *this;
  }
  uint64_t state_ = 14695981039346656037ull;
};

template <class Element>
Matrix<Element> matrix(const std::vector<Element>& values, int64_t count, int64_t d) {
  return {values.data(), count, d, values.data() + values.size()};
}

constexpr int64_t rows = 133, d = 37;  // neither is a multiple of anything

std::vector<float> padded_query(Numbers& numbers, int64_t length) {
  std::vector<float> query = numbers.reals<float>(length);
  query.resize(padded(length), 0.0f);
  return query;
}

void scans(const Kernels& kernels, Numbers& numbers) {
  const std::vector<float> items = numbers.reals<float>(rows * d);
  std::vector<std::vector<float>> queries;
  for (int g = 0; g < 4; ++g) queries.push_back(padded_query(numbers, d));
  const float* const four[4] = {queries[0].data(), queries[1].data(), queries[2].data(), queries[3].data()};
  std::vector<float> dots(rows), all(4 * rows);
  kernels.scan(matrix(items, rows, d), four[0], dots.data());
  Hash().add(dots).print("scan");
  kernels.scan_many(matrix(items, rows, d), four, 4, all.data(), rows);
  Hash().add(all).print("scan_many");
  // Eleven queries: two groups of four, and three that are left.
  const float* many[11];
  for (int g = 0; g < 11; ++g) many[g] = four[g * g % 4];
  std::vector<float> dots_of_many(11 * rows);
  kernels.scan_many(matrix(items, rows, d), many, 11, dots_of_many.data(), rows);
  Hash().add(dots_of_many).print("scan_many, eleven");
  Hash().add(kernels.largest(dots.data(), rows)).print("largest");

  const std::vector<float> scales = numbers.reals<float>(rows), centres = numbers.reals<float>(4);
  const auto bytes = numbers.integers<int8_t>(rows * d, -127, 127);
  kernels.scan_residuals_int8({matrix(bytes, rows, d), scales.data(), nullptr}, four, centres.data(), 4, all.data(),
                              rows);
  Hash().add(all).print("scan_residuals_int8");
  const std::vector<float> centres_of_many = numbers.reals<float>(11);
  kernels.scan_residuals_int8({matrix(bytes, rows, d), scales.data(), nullptr}, many, centres_of_many.data(), 11,
                              dots_of_many.data(), rows);
  Hash().add(dots_of_many).print("scan_residuals_int8, eleven");
  const auto shorts = numbers.integers<int16_t>(rows * d, -32767, 32767);
  std::vector<float> joined;
  for (const std::vector<float>& query : queries) joined.insert(joined.end(), query.begin(), query.end());
  for (int64_t count : {3, 4}) {
    kernels.scan_int16(matrix(shorts, rows, d), joined.data(), count, all.data(), rows);
    Hash().add(all).print("scan_int16");
  }
  kernels.scan_residuals_int16({matrix(shorts, rows, d), scales.data(), nullptr}, four, centres.data(), 4, all.data(),
                               rows);
  Hash().add(all).print("scan_residuals_int16");
}

void integer_scans(const Kernels& kernels, Numbers& numbers) {
  const auto bytes = numbers.integers<int8_t>(rows * d, -127, 127);
  auto query = numbers.integers<int16_t>(2 * padded(d), -2000, 2000);
  for (int64_t j = 0; j < 2 * padded(d); ++j)
    if (j % padded(d) >= d) query[j] = 0;
  std::vector<int32_t> dots(2 * rows);
  kernels.scan_int8(matrix(bytes, rows, d), query.data(), 2, dots.data(), rows);
  Hash().add(dots).print("scan_int8");
  const std::vector<float> scales = numbers.reals<float>(rows);
  std::vector<float> scores(rows);
  kernels.decode(dots.data(), scales.data(), rows, 0.1, 0.3, scores.data());
  Hash().add(scores).print("decode");
  std::vector<double> sums(rows / 7);
  kernels.square_sums(dots.data(), scales.data(), rows / 7, 7, sums.data());
  Hash().add(sums).print("square_sums");

  constexpr int64_t groups = 5, count = 9;
  const auto codes = numbers.integers<uint8_t>(count * groups * 64, 0, 255);
  const auto integers = numbers.integers<int8_t>(2 * groups * 8, -127, 127);
  const std::vector<float> sketch_scales = numbers.reals<float>(count * 16);
  const SketchQuery asked[2] = {{integers.data(), 11.5f, 3.0f}, {integers.data() + groups * 8, -40.0f, -2.0f}};
  std::vector<uint16_t> masks(2 * count);
  kernels.sketch_masks({codes.data(), sketch_scales.data(), count, groups}, asked, 2, masks.data(), count);
  Hash().add(masks).print("sketch_masks");
}

// Long rows, as AdaptiveSoftmax screens them: chunks of 64 numbers, and more of them than one sum holds.
void screens(const Kernels& kernels, Numbers& numbers) {
  constexpr int64_t count = 21, chunks = 19, length = 64 * chunks;
  const auto bytes = numbers.integers<int8_t>(count * length, -127, 127);
  const auto query = numbers.integers<int16_t>(2 * length, -16383, 16383);
  std::vector<int64_t> dots(2 * count);
  kernels.screen(matrix(bytes, count, length), query.data(), 2, dots.data(), count);
  Hash().add(dots).print("screen");
  const auto nibbles = numbers.integers<uint8_t>(count * length / 2, 0, 255);
  const auto short_query = numbers.integers<int8_t>(2 * length, -127, 127);
  kernels.screen_nibbles(nibbles.data(), count, chunks, short_query.data(), 2, dots.data(), count);
  Hash().add(dots).print("screen_nibbles");
}

void columns(const Kernels& kernels, Numbers& numbers) {
  constexpr int64_t stride = 5 * lanes, width = 40, rounds = 29, tiles = 37;
  const std::vector<float> matrix_columns = numbers.reals<float>(width * stride);
  const auto which = numbers.integers<int64_t>(rounds, 0, width - 1);
  const std::vector<double> query = numbers.reals<double>(rounds), scales = numbers.reals<double>(rounds);
  const std::vector<double> weights = numbers.reals<double>(rounds);
  const Pulls pulls{matrix_columns.data(), stride, which.data(), query.data(), scales.data(), weights.data(), rounds};
  const int64_t groups[] = {3, 0, 4};
  std::vector<double> state(stride * 4), dots(stride);
  kernels.pull(pulls, groups, 3, state.data());
  Hash().add(state).print("pull");
  const std::vector<float> numbers_of_query = numbers.reals<float>(width);
  const auto listed = numbers.integers<int32_t>(rounds, 0, width - 1);
  kernels.add_columns({matrix_columns.data(), stride, listed.data(), rounds, numbers_of_query.data()}, 5, dots.data());
  Hash().add(dots).print("add_columns");
  const std::vector<float> wide = numbers.reals<float>(tiles * lanes),
                           wide_scales = numbers.reals<float>(tiles * lanes);
  std::vector<double> sums(padded(tiles) * lanes);
  ColumnMoments moments{};
  kernels.weigh_columns(wide.data(), wide_scales.data(), tiles, sums.data(), moments);
  Hash().add(sums).add(moments).print("weigh_columns");
}

void weights(const Kernels& kernels, Numbers& numbers) {
  const std::vector<float> dots = numbers.reals<float>(rows), bias = numbers.reals<float>(rows);
  std::vector<float> weights(rows);
  std::vector<double> prefix(blocks(rows));
  for (const float* added : {(const float*)nullptr, bias.data()}) {
    const Mass mass = kernels.weigh(dots.data(), rows, 17.0, added, weights.data(), prefix.data());
    Hash().add(mass.reference).add(mass.peak).add(mass.total).add(weights).add(prefix).print("weigh");
  }
  Hash picked;
  for (double uniform = 0.001; uniform < 1; uniform += 0.0173)
    picked.add(kernels.pick(weights.data(), prefix.data(), rows, uniform));
  picked.print("pick");
  std::vector<double> masses = numbers.reals<double>(rows);
  for (double& value : masses) value *= 30;
  // Its result holds a logarithm of the C library, which is not ours to round: only the weights are compared.
  kernels.weigh_masses(masses.data(), rows, weights.data(), prefix.data());
  Hash().add(weights).add(prefix).print("weigh_masses");
  Hash().add(kernels.sum_exponentials(masses.data(), rows, 29.0)).print("sum_exponentials");
  kernels.make_logits(masses.data(), rows - 3, {0.7, weights.data(), weights.data() + 1});
  Hash().add(masses).print("make_logits");
}

void in_double(const Kernels& kernels, Numbers& numbers) {
  const std::vector<float> items = numbers.reals<float>(rows * d), query = padded_query(numbers, d);
  std::vector<double> wide(query.begin(), query.end()), dots(rows);
  Hash().add(kernels.double_dot(items.data(), wide.data(), d)).print("double_dot");
  kernels.scan_all_double(matrix(items, rows, d), query.data(), dots.data(), nullptr);
  Hash().add(dots).print("scan_all_double");
  const std::vector<float> long_rows = numbers.reals<float>(4 * 48), long_query = numbers.reals<float>(48);
  for (int64_t count = 1; count <= 4; ++count) {
    std::vector<double> sums(count * lanes);
    kernels.scan_double(matrix(long_rows, count, 48), 48, long_query.data(), sums.data());
    Hash().add(sums).print("scan_double");
  }
  const Survey found = kernels.survey(items.data(), rows * d);
  Hash().add(found.squares).add(found.numbers).print("survey");
  std::vector<float> some = items;
  for (size_t i = 0; i < some.size(); ++i)
    if (i % 5 < 3 || i % 100 > 60) some[i] = 0;
  std::vector<int32_t> which(some.size() + lanes);
  const Survey listed = kernels.list_numbers(some.data(), rows * d, 7, which.data());
  which.resize(listed.numbers);
  Hash().add(listed.squares).add(listed.numbers).add(which).print("list_numbers");
  std::vector<float> packed(d * (d + 1) / 2);
  kernels.outer_product(query.data(), d, packed.data());
  Hash().add(packed).print("outer_product");
}

}  // namespace

int main(int count, char** words) {
  const Kernels* kernels = find_kernels(count > 1 ? words[1] : "");
  if (kernels == nullptr) {
    std::fprintf(stderr, "this CPU has no such kernels\n");
    return 2;
  }
  std::fprintf(stderr, "%s\n", kernels->name);
  Numbers numbers;
  scans(*kernels, numbers);
  integer_scans(*kernels, numbers);
  screens(*kernels, numbers);
  columns(*kernels, numbers);
  weights(*kernels, numbers);
  in_double(*kernels, numbers);
}
