// Array types of the bindings, and checks of the arrays that Python passes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "kernels/kernels.h"

namespace softindex {

namespace nb = nanobind;

template <class T, int dimensions>
using In = nb::ndarray<const T, nb::numpy, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;
template <class T, int dimensions>
using Out = nb::ndarray<T, nb::numpy, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

inline void expect(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

constexpr const char* unfit = "the result arrays do not fit the queries";
constexpr const char* shapes_disagree = "the array shapes disagree";

// Whether an array has this shape.
template <class Array, class... Lengths>
bool fits(const Array& array, Lengths... lengths) {
  if (array.ndim() != sizeof...(lengths)) return false;
  size_t axis = 0;
  return ((array.shape(axis++) == (size_t)lengths) && ...);
}

// Whether all positions are at least 0 and below n.
inline bool within(const In<int64_t, 1>& positions, int64_t n) {
  const int64_t count = positions.shape(0);
  for (int64_t i = 0; i < count; ++i)
    if (positions.data()[i] < 0 || positions.data()[i] >= n) return false;
  return true;
}

inline const Kernels& kernels_named(const std::string& name) {
  const Kernels* kernels = find_kernels(name.c_str());
  if (kernels == nullptr) throw std::invalid_argument("this CPU has no kernels named " + name);
  return *kernels;
}

}  // namespace softindex
