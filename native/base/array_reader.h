// Hands out named arrays, each checked against the type and the shape that its reader needs.
#pragma once

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/arrays.h"

namespace softindex {

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

inline std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (int64_t length : shape) text += std::to_string(length) + ",";
  return text + ")";
}

// Hands out the arrays by name, each with the type and shape that it must have.
class ArrayReader {
 public:
  explicit ArrayReader(const Arrays& arrays) : arrays_(arrays) {}

  bool has(const std::string& name) const { return arrays_.count(name) > 0; }

  const Array& at(const std::string& name, size_t axes) {
    const auto place = arrays_.find(name);
    require(place != arrays_.end(), name + " is missing");
    require(place->second.shape.size() == axes, name + " has shape " + text_of(place->second.shape));
    used_.insert(name);
    return place->second;
  }

  template <class T>
  const T* required(const std::string& name, const std::vector<int64_t>& shape) {
    const Array& array = at(name, shape.size());
    require(array.element == element_of<T>, name + " has the wrong type");
    require(array.shape == shape, name + " has shape " + text_of(array.shape) + ", expected " + text_of(shape));
    return static_cast<const T*>(array.data);
  }

  template <class T>
  const T* optional(const std::string& name, const std::vector<int64_t>& shape) {
    return has(name) ? required<T>(name, shape) : nullptr;
  }

  void expect_all_used() const {
    for (const auto& entry : arrays_) require(used_.count(entry.first) > 0, entry.first + " does not belong here");
  }

 private:
  const Arrays& arrays_;
  std::set<std::string> used_;
};

}  // namespace softindex
