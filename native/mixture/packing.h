// The layout that the mixture kernels read: four rows of a matrix at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "mixture/views.h"

namespace softindex {

inline int64_t round_up_to_four(int64_t count) { return (count + 3) / 4 * 4; }

// A matrix (rows, length), packed: four rows at a time, column after column, padded with zero rows. The queries of a
// call come packed like this, as an array (count, rows / 4 rounded up, length, 4).
template <class Real>
std::vector<Real> pack(const Real* matrix, int64_t rows, int64_t length) {
  std::vector<Real> packed(round_up_to_four(rows) * length, Real(0));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < length; ++j) packed[r / 4 * 4 * length + j * 4 + r % 4] = matrix[r * length + j];
  return packed;
}

// A matrix (rows, length) as (length, rows).
template <class Real>
std::vector<Real> transpose(const std::vector<Real>& matrix, int64_t rows, int64_t length) {
  std::vector<Real> turned(matrix.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < length; ++j) turned[j * rows + r] = matrix[r * length + j];
  return turned;
}

// The packed weights of a gate, and the mixture that points to them.
template <class Real>
class PackedMixture {
 public:
  PackedMixture(const MixtureShape& shape, const GateWeights& gate)
      : mixture_{shape.query_parts, shape.item_parts, shape.d, 0,       false,  nullptr,
                 nullptr,           nullptr,          nullptr, nullptr, nullptr} {
    if (gate.first != nullptr) add_gate(shape.pairs(), gate);
  }
  PackedMixture(const PackedMixture&) = delete;
  PackedMixture& operator=(const PackedMixture&) = delete;

  const Mixture<Real>& mixture() const { return mixture_; }

 private:
  void add_gate(int64_t pairs, const GateWeights& gate) {
    const int64_t rows = gate.hidden, hidden = round_up_to_four(rows);
    std::vector<Real> first(hidden * pairs, 0), second(pairs * hidden, 0);
    std::copy_n(gate.first, rows * pairs, first.begin());
    for (int64_t p = 0; p < pairs; ++p) std::copy_n(gate.second + p * rows, rows, second.begin() + p * hidden);
    first_ = pack(first.data(), hidden, pairs);
    second_ = pack(second.data(), pairs, hidden);
    first_bias_.assign(hidden, 0);
    second_bias_.assign(round_up_to_four(pairs), 0);
    std::copy_n(gate.first_bias, rows, first_bias_.begin());
    std::copy_n(gate.second_bias, pairs, second_bias_.begin());
    mixture_.hidden = hidden;
    mixture_.gated = true;
    mixture_.first = first_.data();
    mixture_.first_bias = first_bias_.data();
    mixture_.second = second_.data();
    mixture_.second_bias = second_bias_.data();
    first_back_ = pack(transpose(first, hidden, pairs).data(), pairs, hidden);
    second_back_ = pack(transpose(second, pairs, hidden).data(), hidden, pairs);
    mixture_.first_back = first_back_.data();
    mixture_.second_back = second_back_.data();
  }

  std::vector<Real> first_, first_bias_, second_, second_bias_, first_back_, second_back_;
  Mixture<Real> mixture_;
};

// The packed weights of a screen, and the screen that points to them.
class PackedScreen {
 public:
  PackedScreen(const MixtureShape& shape, const GateWeights& gate, const ScreenWeights& screen) {
    if (screen.first == nullptr) return;
    const int64_t pairs = shape.pairs(), hidden = round_up_to_four(gate.hidden);
    screen_.columns = (pairs + 1) / 2;
    screen_.hidden = hidden;
    first_ = join_columns(screen.first, gate.hidden, pairs, screen_.columns);
    second_ = join_columns(screen.second, pairs, gate.hidden, hidden / 2);
    first_bias_.assign(hidden, 0);
    second_bias_.assign(round_up_to_four(pairs), 0);
    std::copy_n(screen.first_bias, gate.hidden, first_bias_.begin());
    std::copy_n(gate.second_bias, pairs, second_bias_.begin());
    std::copy_n(screen.bases, screen_pieces, bases_);
    std::copy_n(screen.slopes, screen_pieces, slopes_);
    screen_.first = first_.data();
    screen_.first_bias = first_bias_.data();
    screen_.second = second_.data();
    screen_.second_bias = second_bias_.data();
    screen_.bases = bases_;
    screen_.slopes = slopes_;
    screen_.factor = (int32_t)screen.steps[0];
    screen_.width = (int32_t)screen.steps[1];
    screen_.logit_scale = screen.scales[0];
    screen_.output_scale = screen.scales[1];
    screen_.slack_per_length = screen.scales[2];
  }
  PackedScreen(const PackedScreen&) = delete;
  PackedScreen& operator=(const PackedScreen&) = delete;

  bool empty() const { return first_.empty(); }
  // The screen for a query.
  MixtureScreen with(float slack) const {
    MixtureScreen screen = screen_;
    screen.slack = slack;
    return screen;
  }

 private:
  // Two neighbouring columns of a matrix (rows, length) in each integer, packed with `columns` of these per row.
  static std::vector<int32_t> join_columns(const int16_t* matrix, int64_t rows, int64_t length, int64_t columns) {
    std::vector<int32_t> joined(rows * columns, 0);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < length; ++j)
        joined[r * columns + j / 2] |= (int32_t)((uint32_t)(uint16_t)matrix[r * length + j] << (j % 2 * 16));
    return pack(joined.data(), rows, columns);
  }

  std::vector<int32_t> first_, second_, first_bias_;
  std::vector<float> second_bias_;
  int16_t bases_[screen_pieces], slopes_[screen_pieces];
  MixtureScreen screen_{};
};

}  // namespace softindex
