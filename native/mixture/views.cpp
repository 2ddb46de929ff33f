// Fills the view of a learned similarity from named arrays, one line per array.
#include "mixture/views.h"

#include "base/array_reader.h"
#include "kernels/kernels.h"

namespace softindex {
namespace {

MixtureClusters read_clusters(ArrayReader& read, const MixtureShape& shape, int64_t n, bool gated) {
  MixtureClusters clusters;
  const int64_t count = read.at("clusters.centres", 3).shape[0], rank = read.at("clusters.basis", 3).shape[0];
  require(count >= 1 && rank >= 1, "clusters are empty");
  clusters.count = count;
  clusters.rank = rank;
  clusters.offsets = read.required<int64_t>("clusters.offsets", {count + 1});
  clusters.order = read.required<int64_t>("clusters.order", {n});
  clusters.centres = read.required<float>("clusters.centres", {count, shape.item_parts, shape.d});
  if (gated) clusters.gates = read.required<float>("clusters.gates", {count, shape.pairs()});
  clusters.basis = read.required<float>("clusters.basis", {rank, shape.item_parts, shape.d});
  clusters.features = read.required<float>("clusters.features", {n, rank});
  clusters.spreads = read.required<float>("clusters.spreads", {count, rank});
  require(clusters.offsets[0] == 0 && clusters.offsets[count] == n, "the clusters do not hold all items");
  for (int64_t c = 0; c < count; ++c)
    require(clusters.offsets[c] <= clusters.offsets[c + 1], "the offsets of the clusters decrease");
  for (int64_t place = 0; place < n; ++place)
    require(clusters.order[place] >= 0 && clusters.order[place] < n, "a cluster holds an item that does not exist");
  return clusters;
}

ScreenWeights read_screen(ArrayReader& read, int64_t hidden, int64_t pairs) {
  ScreenWeights screen;
  screen.first = read.required<int16_t>("screen.first", {hidden, pairs});
  screen.first_bias = read.required<int64_t>("screen.first_bias", {hidden});
  screen.second = read.required<int16_t>("screen.second", {pairs, hidden});
  screen.bases = read.required<int16_t>("screen.bases", {screen_pieces});
  screen.slopes = read.required<int16_t>("screen.slopes", {screen_pieces});
  screen.steps = read.required<int64_t>("screen.steps", {2});
  screen.scales = read.required<float>("screen.scales", {3});
  return screen;
}

}  // namespace

MixtureView make_mixture(const Arrays& arrays, int64_t query_parts) {
  ArrayReader read(arrays);
  const std::vector<int64_t>& axes = read.at("components", 3).shape;
  MixtureView view = {{query_parts, axes[1], axes[2]}, {}, {}, {}, {}};
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
    if (read.has("screen.first")) view.screen = read_screen(read, gate.hidden, pairs);
  }
  if (read.has("clusters.offsets")) view.clusters = read_clusters(read, view.shape, n, view.items.gates != nullptr);
  read.expect_all_used();
  return view;
}

}  // namespace softindex
