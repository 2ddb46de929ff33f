// Named arrays in memory that somebody else keeps alive: what a data structure is filled from.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace softindex {

enum class Element { uint8, int8, int16, int64, float32, float64, other };

template <class T>
constexpr Element element_of = Element::other;
template <>
inline constexpr Element element_of<uint8_t> = Element::uint8;
template <>
inline constexpr Element element_of<int8_t> = Element::int8;
template <>
inline constexpr Element element_of<int16_t> = Element::int16;
template <>
inline constexpr Element element_of<int64_t> = Element::int64;
template <>
inline constexpr Element element_of<float> = Element::float32;
template <>
inline constexpr Element element_of<double> = Element::float64;

// A C-contiguous array.
struct Array {
  const void* data;
  Element element;
  std::vector<int64_t> shape;
};

using Arrays = std::map<std::string, Array>;

}  // namespace softindex
