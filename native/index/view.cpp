// Fills a view from named arrays, one line per array, and checks everything the kernels rely on.
#include "index/view.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "base/array_reader.h"

namespace softindex {
namespace {

// Forms of this many rows, under names with this prefix. Their type and axes say which kind they are.
Dispersion read_dispersion(ArrayReader& read, const std::string& prefix, int64_t rows, int64_t d) {
  Dispersion result;
  if (!read.has(prefix + "forms")) return result;
  if (read.has(prefix + "spread")) {
    const Array& forms = read.at(prefix + "forms", 3);
    result.kind = Forms::rank;
    result.rank = forms.shape[1];
    require(result.rank >= 1, prefix + "forms have rank zero");
    result.low = read.required<int8_t>(prefix + "forms", {rows, result.rank, d});
    result.scales = read.required<float>(prefix + "scales", {rows, result.rank});
    result.spread = read.required<float>(prefix + "spread", {rows});
  } else {
    result.kind = Forms::full;
    result.full = read.required<int16_t>(prefix + "forms", {rows, d * (d + 1) / 2});
    result.scales = read.required<float>(prefix + "scales", {rows, 1});
  }
  return result;
}

// log of the sum of exp, relative to the largest.
double log_sum(const double* values, int64_t count) {
  double peak = minus_infinity, total = 0;
  for (int64_t i = 0; i < count; ++i) peak = std::max(peak, values[i]);
  for (int64_t i = 0; i < count; ++i) total += std::exp(values[i] - peak);
  return peak + std::log(total);
}

// The pieces of memory that hold the vectors: one array, or "segment.0", "segment.1", ... with a table of runs, each
// with the position it begins at, its segment and its first row there.
void add_runs(View& view, ArrayReader& read) {
  if (read.has("residual_values")) {
    view.extent = view.offsets[view.k];
    return;
  }
  if (!read.has("runs")) {
    view.extent = read.at("vectors", 2).shape[0];
    const float* rows = read.required<float>("vectors", {view.extent, view.d});
    view.runs.push_back({0, rows, rows, rows + view.extent * view.d});
    return;
  }
  view.extent = view.offsets[view.k];
  const int64_t count = read.at("runs", 2).shape[0];
  const int64_t* runs = read.required<int64_t>("runs", {count, 3});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = runs[3 * i], segment = runs[3 * i + 1], row = runs[3 * i + 2];
    const int64_t end = i + 1 < count ? runs[3 * i + 3] : view.extent;
    require(begin >= 0 && begin < end && end <= view.extent && segment >= 0 && row >= 0,
            "the runs do not cover the items");
    const std::string name = "segment." + std::to_string(segment);
    const int64_t rows = read.at(name, 2).shape[0];
    require(row <= rows - (end - begin), "a run leaves its segment");
    const float* first = read.required<float>(name, {rows, view.d});
    view.runs.push_back({begin, first + row * view.d, first, first + rows * view.d, segment});
  }
  require(count > 0 && runs[0] == 0, "the runs do not cover the items");
}

void check_offsets(View& view) {
  require(view.offsets[0] == 0 && view.offsets[view.k] == view.extent, "offsets do not cover the vectors");
  for (int64_t c = 0; c < view.k; ++c) {
    require(view.offsets[c] <= view.offsets[c + 1], "offsets decrease");
    // From zero to the last position and never down: no difference can overflow.
    view.largest_cluster = std::max(view.largest_cluster, view.size(c));
    view.counts.push_back(view.size(c));
  }
}

void add_removed(View& view, ArrayReader& read) {
  if (read.has("removed")) {
    view.removed_count = read.at("removed", 1).shape[0];
    view.removed = read.required<int64_t>("removed", {view.removed_count});
  }
  for (int64_t i = 0; i < view.removed_count; ++i) {
    const int64_t least = i == 0 ? 0 : view.removed[i - 1] + 1;
    require(view.removed[i] >= least && view.removed[i] < view.extent, "removed items are not increasing positions");
    --view.counts[view.cluster_of(view.removed[i])];
  }
  view.n = view.extent - view.removed_count;
  for (int64_t count : view.counts) view.any_empty = view.any_empty || count == 0;
  view.first_known = view.k;
  if (read.has("first_known")) view.first_known = read.required<int64_t>("first_known", {1})[0];
  require(view.first_known >= 0 && view.first_known <= view.k, "there are no such known clusters");
}

// A law that ignores sizes gives every cluster the average size, so that its log Z is on the same scale as the others'.
void add_even_sizes(View& view) {
  LogSizes& sizes = view.sizes;
  double total = minus_infinity;
  int64_t filled = 0;
  for (int64_t c = 0; c < view.k; ++c) {
    const double size = sizes.stored[c];
    if (!std::isfinite(size)) continue;
    const double top = std::max(total, size);
    total = total == size ? size + std::log(2.0) : top + std::log1p(std::exp(-std::fabs(total - size)));
    ++filled;
  }
  const double average = total - std::log((double)filled);
  for (int64_t c = 0; c < view.k; ++c) sizes.even.push_back(std::isfinite(sizes.stored[c]) ? average : minus_infinity);
  sizes.log_weight = log_sum(sizes.stored, view.k) - std::log((double)view.n);
  sizes.even_log_weight = log_sum(sizes.even.data(), view.k) - std::log((double)view.n);
}

void add_outliers(View& view, ArrayReader& read) {
  if (!read.has("outlier_positions")) return;
  view.outliers = read.at("outlier_positions", 1).shape[0];
  view.outlier_positions = read.required<int64_t>("outlier_positions", {view.outliers});
  view.outlier_vectors = read.required<float>("outlier_vectors", {view.outliers, view.d});
  view.farthest = read.required<float>("outlier_farthest", {1})[0];
  for (int64_t i = 0; i < view.outliers; ++i) {
    const int64_t least = i == 0 ? 0 : view.outlier_positions[i - 1] + 1;
    require(view.outlier_positions[i] >= least && view.outlier_positions[i] < view.extent,
            "outlier_positions are not increasing positions of items");
  }
}

void add_residuals(View& view, ArrayReader& read) {
  if (!read.has("residual_values")) return;
  StoredResiduals& residuals = view.residuals;
  if (read.at("residual_values", 2).element == Element::int8)
    residuals.int8 = read.required<int8_t>("residual_values", {view.n, view.d});
  else
    residuals.int16 = read.required<int16_t>("residual_values", {view.n, view.d});
  residuals.scales = read.required<float>("residual_scales", {view.n});
  residuals.centres = read.required<float>("residual_centres", {view.k, view.d});
  residuals.lengths = read.required<float>("residual_lengths", {view.k});
  residuals.longest = *std::max_element(residuals.lengths, residuals.lengths + view.k);
  residuals.bias = read.optional<float>("residual_bias", {view.n});
}

void add_summed_lengths(View& view) {
  const StoredResiduals& residuals = view.residuals;
  for (int64_t c = 0; c < view.k; ++c) {
    double length = view.norm_max[c];
    if (residuals.present()) {
      const double centre = std::sqrt(squared_norm(residuals.centres + c * view.d, view.d)) * (1 + 1e-12);
      length = std::max(length, centre + residuals.lengths[c]);
    }
    view.summed_lengths.push_back(length);
  }
  view.longest_sum = *std::max_element(view.summed_lengths.begin(), view.summed_lengths.end());
}

void add_codes(View& view, ArrayReader& read) {
  if (!read.has("code_values")) return;
  view.codes = read.required<int8_t>("code_values", {view.extent, view.d});
  view.code_scales = read.required<float>("code_scales", {view.extent});
  view.code_errors = read.required<float>("code_errors", {view.k});
  view.code_lengths = read.required<float>("code_lengths", {view.k});
}

void add_sketch(View& view, ArrayReader& read) {
  if (!read.has("sketch_values")) return;
  const int64_t blocks = (view.extent + 15) / 16;
  view.sketch_groups = (view.d + 7) / 8;
  view.sketch = read.required<uint8_t>("sketch_values", {blocks, view.sketch_groups, 64});
  view.sketch_scales = read.required<float>("sketch_scales", {blocks, 16});
  view.sketch_errors = read.required<float>("sketch_errors", {view.k});
  view.sketch_lengths = read.required<float>("sketch_lengths", {view.k});
  view.recall = RecallCurve(read.required<double>("sketch_recall", {RecallCurve::points, 2}));
  view.tails = TailCurve(read.required<double>("sketch_tails", {TailCurve::points}));
}

// The splits (k - 1) of a tree. Its children (k - 1, 2) must list nodes and clusters depth first, each exactly once: a
// walk might never end otherwise.
std::vector<int64_t> tree_splits(const int64_t* children, int64_t k) {
  std::vector<int64_t> splits(k - 1), waiting;  // waiting: nodes whose left side is being visited
  int64_t nodes = 0, clusters = 0, next = k > 1 ? 0 : -1;
  while (clusters < k) {
    if (next >= 0) {
      if (next != nodes || nodes >= k - 1) throw std::invalid_argument("the nodes of the tree are out of order");
      waiting.push_back(nodes++);
      next = children[2 * next];
      continue;
    }
    if (-1 - next != clusters)
      throw std::invalid_argument("the leaves of the tree are not the clusters in their order");
    ++clusters;
    if (waiting.empty()) break;
    const int64_t node = waiting.back();
    waiting.pop_back();
    splits[node] = clusters;
    next = children[2 * node + 1];
  }
  if (clusters != k || nodes != k - 1 || !waiting.empty())
    throw std::invalid_argument("the tree does not cover the clusters");
  return splits;
}

void add_tree(View& view, ArrayReader& read) {
  if (!read.has("tree_children")) return;
  Tree& tree = view.tree;
  const int64_t nodes = 2 * (view.k - 1);
  tree.inner = view.k - 1;
  tree.children = read.required<int64_t>("tree_children", {tree.inner, 2});
  tree.means = read.required<float>("tree_means", {nodes, view.d});
  tree.sizes.stored = read.required<double>("tree_log_sizes", {nodes});
  tree.dispersion = read_dispersion(read, "tree_", nodes, view.d);
  require(tree.dispersion.kind == view.dispersion.kind && tree.dispersion.rank == view.dispersion.rank,
          "the tree keeps another dispersion than the clusters");
  for (int64_t node = 0; node < nodes; ++node)
    tree.sizes.even.push_back(std::isfinite(tree.sizes.stored[node]) ? 0.0 : minus_infinity);
  tree.splits = tree_splits(tree.children, view.k);
}

// Whether the guard is that of vectors that are read by runs.
bool guard_runs(View& view, const std::string& name, const Guard* guard) {
  bool found = false;
  for (Run& run : view.runs) {
    if (name != (run.segment < 0 ? "vectors" : "segment." + std::to_string(run.segment))) continue;
    require(guard->bytes() >= (run.limit - run.first) * (int64_t)sizeof(float),
            "the guard of " + name + " is too short");
    run.guard = guard;
    found = true;
  }
  return found;
}

void add_guards(View& view, const std::map<std::string, const Guard*>& guards) {
  struct Guarded {
    const Guard** place;
    bool present;
    int64_t bytes;
  };
  const int64_t sketch = (view.extent + 15) / 16 * view.sketch_groups * 64;
  const int64_t residuals = view.extent * view.d * (view.residuals.int8 != nullptr ? 1 : 2);
  const std::map<std::string, Guarded> arrays = {
      {"code_values", {&view.codes_guard, view.codes != nullptr, view.extent * view.d}},
      {"sketch_values", {&view.sketch_guard, view.sketch != nullptr, sketch}},
      {"residual_values", {&view.residuals.guard, view.residuals.present(), residuals}},
  };
  for (const auto& [name, guard] : guards) {
    if (guard_runs(view, name, guard)) continue;
    const auto found = arrays.find(name);
    require(found != arrays.end() && found->second.present, name + " has no use for a guard");
    require(guard->bytes() >= found->second.bytes, "the guard of " + name + " is too short");
    *found->second.place = guard;
  }
}

}  // namespace

View make_view(const Arrays& arrays, const std::map<std::string, const Guard*>& guards) {
  ArrayReader read(arrays);
  View view;
  view.k = read.at("means", 2).shape[0];
  view.d = read.at("means", 2).shape[1];
  require(view.d >= 1 && view.k >= 1, "an index holds at least one cluster");
  view.offsets = read.required<int64_t>("offsets", {view.k + 1});
  add_runs(view, read);
  check_offsets(view);
  add_removed(view, read);
  require(view.n >= 1, "an index holds at least one item");
  view.means = read.required<float>("means", {view.k, view.d});
  view.sizes.stored = read.required<double>("log_sizes", {view.k});
  view.radii = read.required<float>("radii", {view.k});
  view.norm_min = read.required<float>("norm_min", {view.k});
  view.norm_max = read.required<float>("norm_max", {view.k});
  view.min_cosine = read.optional<float>("min_cosine", {view.k});
  view.reach = read.optional<float>("reach", {view.k});
  view.bias = read.optional<float>("log_bias", {view.extent});
  view.bias_max = view.bias == nullptr ? nullptr : read.required<float>("bias_max", {view.k});
  view.dispersion = read_dispersion(read, "", view.k, view.d);
  view.excess = view.dispersion.kind == Forms::none ? nullptr : read.required<float>("excess", {view.k});
  add_residuals(view, read);
  add_outliers(view, read);
  add_codes(view, read);
  add_sketch(view, read);
  add_tree(view, read);
  read.expect_all_used();
  add_guards(view, guards);
  add_even_sizes(view);
  view.longest = *std::max_element(view.norm_max, view.norm_max + view.k);
  add_summed_lengths(view);
  view.shortest = view.longest;
  for (int64_t c = 0; c < view.k; ++c) {
    view.log_counts.push_back(std::log((double)std::max<int64_t>(view.count(c), 1)));
    view.half_squares.push_back(squared_norm(view.means + c * view.d, view.d) / 2);
    if (!view.empty(c)) view.shortest = std::min(view.shortest, (double)view.norm_min[c]);
  }
  return view;
}

// A residual passes through five roundings that a vector does not: of its product with the scale, of the sums with the
// dot products of the centre and of the bias, of the latter's product, and of the item itself to float32.
double View::rounding() const { return residuals.present() ? dot_error(d, 6) : dot_error(d); }

double View::vanished(double query_norm) const {
  if (!residuals.present()) return underflow_error(d);
  // What underflows in a product with the integers is multiplied by the scale, which is no larger than the longest
  // residual. A coordinate of an item that is too small for float32 is off by half the smallest number there is.
  return underflow_error(d) * (2 + residuals.longest) + query_norm * std::sqrt((double)d) * 0x1.0p-149;
}

int64_t View::cluster_of(int64_t position) const {
  return std::upper_bound(offsets, offsets + k + 1, position) - offsets - 1;
}

}  // namespace softindex
