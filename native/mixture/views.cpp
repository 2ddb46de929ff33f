// Fills the view of a learned similarity from named arrays, one line per array.
#include "mixture/views.h"

#include "base/array_reader.h"

namespace softindex {

MixtureView make_mixture(const Arrays& arrays, int64_t query_parts) {
  ArrayReader read(arrays);
  const std::vector<int64_t>& axes = read.at("components", 3).shape;
  MixtureView view = {{query_parts, axes[1], axes[2]}, {}, {}};
  const int64_t n = axes[0], pairs = view.shape.pairs();
  require(query_parts >= 1 && axes[1] >= 1 && axes[2] >= 1, "queries and items need components");
  require(n >= 1, "there are no items");
  require(n < (int64_t)1 << 32, "there are 2^32 items or more");
  view.items.n = n;
  view.items.components = read.required<float>("components", axes);
  view.items.averages = read.required<float>("averages", {n, view.shape.d});
  view.items.gates = read.optional<float>("gates", {n, pairs});
  if (read.has("gate.first")) {
    GateWeights& gate = view.gate;
    gate.hidden = read.at("gate.first", 2).shape[0];
    gate.first = read.required<float>("gate.first", {gate.hidden, pairs});
    gate.first_bias = read.required<float>("gate.first_bias", {gate.hidden});
    gate.second = read.required<float>("gate.second", {pairs, gate.hidden});
    gate.second_bias = read.required<float>("gate.second_bias", {pairs});
  }
  read.expect_all_used();
  return view;
}

}  // namespace softindex
