// Turns a dict of NumPy arrays into plain named views, and keeps the arrays alive.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <vector>

#include "base/arrays.h"

namespace softindex {

class NamedArrays {
 public:
  explicit NamedArrays(const nanobind::dict& arrays) {
    for (const auto& [name, value] : arrays) add(nanobind::cast<std::string>(name), value);
  }

  const Arrays& views() const { return views_; }

 private:
  using Kept = nanobind::ndarray<nanobind::ro, nanobind::numpy, nanobind::c_contig, nanobind::device::cpu>;

  void add(const std::string& name, nanobind::handle value) {
    const Kept array = nanobind::cast<Kept>(value);
    Array view = {array.data(), element(array.dtype()), {}};
    for (size_t axis = 0; axis < array.ndim(); ++axis) view.shape.push_back((int64_t)array.shape(axis));
    views_.emplace(name, view);
    kept_.push_back(array);
  }

  static Element element(nanobind::dlpack::dtype type) {
    if (type == nanobind::dtype<uint8_t>()) return Element::uint8;
    if (type == nanobind::dtype<int8_t>()) return Element::int8;
    if (type == nanobind::dtype<int16_t>()) return Element::int16;
    if (type == nanobind::dtype<int64_t>()) return Element::int64;
    if (type == nanobind::dtype<float>()) return Element::float32;
    if (type == nanobind::dtype<double>()) return Element::float64;
    return Element::other;
  }

  std::vector<Kept> kept_;
  Arrays views_;
};

}  // namespace softindex
