// Binds the index engine to Python: checks shapes, keeps arrays alive, computes nothing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/hash.h"
#include "base/philox.h"
#include "bindings/arrays.h"
#include "index/engine.h"
#include "index/masses.h"
#include "index/probe.h"
#include "index/tree.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace softindex {

namespace {

template <class Array>
auto pointer(const std::optional<Array>& array) -> decltype(array->data()) {
  return array ? array->data() : nullptr;
}

// A law as Python holds it: what does not change from call to call.
struct BoundLaw {
  std::optional<In<double, 1>> offset;
  bool dispersion;
  Kind kind;
  double log_total = 0.0;  // of exp(offset)

  BoundLaw(std::optional<In<double, 1>> offset, bool dispersion, const std::string& kind)
      : offset(offset), dispersion(dispersion), kind(kind_named(kind)) {
    if (!offset) return;
    double peak = -std::numeric_limits<double>::infinity(), total = 0;
    for (size_t c = 0; c < offset->shape(0); ++c) peak = std::max(peak, offset->data()[c]);
    for (size_t c = 0; c < offset->shape(0); ++c) total += std::exp(offset->data()[c] - peak);
    log_total = peak + std::log(total);
  }

  static Kind kind_named(const std::string& name) {
    if (name == "estimated") return Kind::estimated;
    if (name == "certified") return Kind::certified;
    if (name == "exhaustive") return Kind::exhaustive;
    if (name == "tree") return Kind::tree;
    throw std::invalid_argument("there is no kind of law named " + name);
  }
};

// What a call may draw, as Python holds it. offsets (rows + 1) and excluded: one row of positions for all queries, or
// one for each.
struct BoundRestriction {
  In<int64_t, 1> offsets, excluded;
  bool replace;
  double top_p;
  int64_t k, probes;

  BoundRestriction(In<int64_t, 1> offsets, In<int64_t, 1> excluded, bool replace, double top_p, int64_t k,
                   int64_t probes)
      : offsets(offsets), excluded(excluded), replace(replace), top_p(top_p), k(k), probes(probes) {}
};

// Keeps the arrays alive that the view points into.
class BoundEngine {
 public:
  BoundEngine(In<float, 2> vectors, In<int64_t, 1> offsets, In<float, 2> means, In<float, 1> radii,
              In<float, 1> norm_max, std::optional<In<float, 1>> bias, std::optional<In<float, 1>> bias_max,
              std::optional<In<int16_t, 2>> full_forms, std::optional<In<int8_t, 3>> rank_forms,
              std::optional<In<float, 2>> scales, std::optional<In<float, 1>> spread, const std::string& target)
      : vectors_(vectors), offsets_(offsets), means_(means), radii_(radii), norm_max_(norm_max), bias_(bias),
        bias_max_(bias_max), full_forms_(full_forms), rank_forms_(rank_forms), scales_(scales), spread_(spread),
        engine_(kernels_named(target), view()) {}

  void attach_bounds(In<float, 1> norm_min, std::optional<In<float, 1>> min_cosine, std::optional<In<float, 1>> reach,
                     std::optional<In<float, 1>> excess) {
    const View& view = engine_.view();
    const auto absent_or_fits = [&](const auto& array) { return !array || fits(*array, view.k); };
    expect(fits(norm_min, view.k) && absent_or_fits(min_cosine) && absent_or_fits(reach) && absent_or_fits(excess),
           "bounds do not fit the means");
    expect(view.forms_kind == Forms::none || excess, "the dispersion has no bound");
    norm_min_ = norm_min;
    min_cosine_ = min_cosine;
    reach_ = reach;
    excess_ = excess;
    engine_.attach_bounds(norm_min.data(), pointer(min_cosine), pointer(reach), pointer(excess));
  }

  void attach_outliers(In<int64_t, 1> positions, In<float, 2> vectors, float farthest) {
    const View& view = engine_.view();
    const int64_t count = positions.shape(0);
    expect(fits(vectors, count, view.d), "outliers do not fit the vectors");
    for (int64_t i = 0; i < count; ++i)
      expect(positions.data()[i] >= (i == 0 ? 0 : positions.data()[i - 1] + 1) && positions.data()[i] < view.n,
             "the outliers are not a list of items");
    outlier_positions_ = positions;
    outlier_vectors_ = vectors;
    engine_.attach_outliers(positions.data(), vectors.data(), count, farthest);
  }

  void attach_codes(In<int8_t, 2> codes, In<float, 1> scales, In<float, 1> errors, In<float, 1> lengths) {
    const View& view = engine_.view();
    expect(fits(codes, view.n, view.d) && fits(scales, view.n) && fits(errors, view.k) && fits(lengths, view.k),
           "codes do not fit the vectors");
    // Scratch memory made for an index without codes would be too small for one with them.
    expect(view.codes == nullptr, "codes are attached once");
    codes_ = codes;
    code_scales_ = scales;
    code_errors_ = errors;
    code_lengths_ = lengths;
    engine_.attach_codes(codes.data(), scales.data(), errors.data(), lengths.data());
  }

  double coded_scores(In<float, 1> query, int64_t cluster, Out<float, 1> scores) {
    const View& view = engine_.view();
    expect(view.codes != nullptr, "this index keeps no codes");
    expect(cluster >= 0 && cluster < view.k, "there is no such cluster");
    expect(fits(query, view.d) && fits(scores, view.size(cluster)), "shapes disagree");
    return engine_.coded_scores(query.data(), cluster, scores.data());
  }

  double mass_bounds(In<float, 1> query, const BoundLaw& bound, double temperature, Out<double, 1> lower,
                     Out<double, 1> upper, Out<double, 1> scanned) {
    const View& view = engine_.view();
    expect(fits(query, view.d), "queries do not fit the index");
    for (const auto* array : {&lower, &upper, &scanned})
      expect(fits(*array, view.k), "the result arrays do not fit the clusters");
    const Law law = make_certified(bound, temperature, 0.0);
    nb::gil_scoped_release release;
    return engine_.mass_bounds(law, query.data(), lower.data(), upper.data(), scanned.data());
  }

  // Once, before the first query. Checked like the view: a damaged tree must not become an endless walk.
  void attach_tree(In<int64_t, 2> children, In<float, 2> means, std::optional<In<int16_t, 2>> full_forms,
                   std::optional<In<int8_t, 3>> rank_forms, std::optional<In<float, 2>> scales,
                   std::optional<In<float, 1>> spread) {
    const View& view = engine_.view();
    const int64_t inner = view.k - 1, nodes = 2 * inner;
    const Forms kind = view.forms_kind;
    expect(view.tree == nullptr, "this index has a tree already");
    expect(fits(children, inner, 2), "the tree does not fit the clusters");
    expect(fits(means, nodes, view.d), "the tree's means do not fit it");
    expect((kind == Forms::full) == full_forms.has_value() && (kind == Forms::rank) == rank_forms.has_value(),
           "the tree keeps another dispersion than the clusters");
    if (full_forms)
      expect(fits(*full_forms, nodes, view.triangle()) && scales && fits(*scales, nodes, 1),
             "full forms do not fit the tree");
    if (rank_forms)
      expect(fits(*rank_forms, nodes, view.rank, view.d) && spread && fits(*spread, nodes) && scales &&
                 fits(*scales, nodes, view.rank),
             "rank forms do not fit the tree");
    splits_ = tree_splits(children.data(), view.k);
    tree_ = {inner,           children.data(), splits_.data(), means.data(), pointer(full_forms), pointer(rank_forms),
             pointer(scales), pointer(spread)};
    tree_arrays_ = {children, means, full_forms, rank_forms, scales, spread};
    engine_.attach_tree(&tree_);
  }

  void sample(In<float, 2> queries, const BoundLaw& bound, double temperature, int64_t probes, double tolerance,
              uint64_t seed, int64_t threads, Out<int64_t, 2> positions, Out<double, 2> log_prob,
              Out<int64_t, 1> scored, Out<double, 1> error) {
    const int64_t b = check_queries(queries), n = positions.shape(1);
    expect(fits(positions, b, n) && fits(log_prob, b, n) && fits(scored, b) && fits(error, b), unfit);
    const Law law = make_law(bound, temperature, probes, tolerance);
    nb::gil_scoped_release release;
    engine_.sample(law, queries.data(), b, n, seed, threads, positions.data(), log_prob.data(), scored.data(),
                   error.data());
  }

  void log_prob(In<float, 2> queries, const BoundLaw& bound, double temperature, int64_t probes, double tolerance,
                In<int64_t, 2> positions, int64_t threads, Out<double, 2> log_prob) {
    const int64_t b = check_queries(queries), m = positions.shape(1);
    expect(fits(positions, b, m) && fits(log_prob, b, m), unfit);
    check_positions(positions.data(), b * m);
    const Law law = make_law(bound, temperature, probes, tolerance);
    nb::gil_scoped_release release;
    engine_.log_prob(law, queries.data(), b, positions.data(), m, threads, log_prob.data());
  }

  void sample_restricted(In<float, 2> queries, const BoundLaw& bound, double temperature, int64_t probes,
                         double tolerance, const BoundRestriction& restriction, uint64_t seed, int64_t threads,
                         Out<int64_t, 2> positions, Out<double, 2> log_prob, Out<int64_t, 1> scored,
                         Out<double, 1> error, Out<int64_t, 1> left) {
    const int64_t b = check_queries(queries), n = positions.shape(1);
    expect(fits(positions, b, n) && fits(log_prob, b, n) && fits(scored, b) && fits(error, b) && fits(left, b), unfit);
    const Law law = make_law(bound, temperature, probes, tolerance);
    const Restrictions restrictions = make_restrictions(restriction, b);
    nb::gil_scoped_release release;
    engine_.sample_restricted(law, restrictions, queries.data(), b, n, seed, threads, positions.data(), log_prob.data(),
                              scored.data(), error.data(), left.data());
  }

  void log_prob_restricted(In<float, 2> queries, const BoundLaw& bound, double temperature, int64_t probes,
                           double tolerance, const BoundRestriction& restriction, In<int64_t, 2> positions,
                           int64_t threads, Out<double, 2> log_prob) {
    const int64_t b = check_queries(queries), m = positions.shape(1);
    expect(fits(positions, b, m) && fits(log_prob, b, m), unfit);
    check_positions(positions.data(), b * m);
    const Law law = make_law(bound, temperature, probes, tolerance);
    const Restrictions restrictions = make_restrictions(restriction, b);
    nb::gil_scoped_release release;
    engine_.log_prob_restricted(law, restrictions, queries.data(), b, positions.data(), m, threads, log_prob.data());
  }

  void log_partition(In<float, 2> queries, const BoundLaw& bound, double temperature, int64_t probes, double tolerance,
                     int64_t threads, Out<double, 1> values) {
    const int64_t b = check_queries(queries);
    expect(fits(values, b), unfit);
    const Law law = make_law(bound, temperature, probes, tolerance);
    nb::gil_scoped_release release;
    engine_.log_partition(law, queries.data(), b, threads, values.data());
  }

  void sample_certified(In<float, 2> queries, const BoundLaw& bound, double temperature, uint64_t seed, int64_t threads,
                        Out<int64_t, 2> positions, Out<double, 2> log_prob, Out<double, 2> low, Out<double, 2> high,
                        Out<int64_t, 1> scored) {
    const int64_t b = check_queries(queries), n = positions.shape(1);
    for (const auto* array : {&log_prob, &low, &high}) expect(fits(*array, b, n), unfit);
    expect(fits(positions, b, n) && fits(scored, b), unfit);
    const Law law = make_certified(bound, temperature, 0.0);
    nb::gil_scoped_release release;
    engine_.sample_certified(law, queries.data(), b, n, seed, threads, positions.data(), log_prob.data(), low.data(),
                             high.data(), scored.data());
  }

  void bracket_log_partition(In<float, 2> queries, const BoundLaw& bound, double temperature, double tolerance,
                             double confidence, uint64_t seed, int64_t threads, Out<double, 1> values,
                             Out<double, 1> low, Out<double, 1> high, Out<int64_t, 1> scored) {
    const int64_t b = check_queries(queries);
    for (const auto* array : {&values, &low, &high}) expect(fits(*array, b), unfit);
    expect(fits(scored, b), unfit);
    expect(confidence > 0 && confidence <= 1, "the confidence is no probability");
    const Law law = make_certified(bound, temperature, tolerance);
    nb::gil_scoped_release release;
    engine_.bracket_log_partition(law, queries.data(), b, confidence, seed, threads, values.data(), low.data(),
                                  high.data(), scored.data());
  }

  void masses(In<float, 2> queries, const BoundLaw& bound, double temperature, int64_t probes, double tolerance,
              int64_t threads, Out<double, 2> log_masses, Out<int64_t, 1> scored, Out<double, 1> error) {
    const int64_t b = check_queries(queries);
    expect(fits(log_masses, b, engine_.view().k) && fits(scored, b) && fits(error, b), unfit);
    const Law law = make_law(bound, temperature, probes, tolerance);
    nb::gil_scoped_release release;
    engine_.masses(law, queries.data(), b, threads, log_masses.data(), scored.data(), error.data());
  }

  void top_k(In<float, 2> queries, double temperature, int64_t probes, int64_t threads, Out<int64_t, 2> positions,
             Out<float, 2> scores, Out<int64_t, 1> scored) {
    const int64_t b = check_queries(queries), k = positions.shape(1);
    expect(fits(positions, b, k) && fits(scores, b, k) && fits(scored, b), unfit);
    expect(k >= 1 && k <= engine_.view().n, "there are not so many items");
    nb::gil_scoped_release release;
    engine_.top_k(queries.data(), b, temperature, k, probes, threads, positions.data(), scores.data(), scored.data());
  }

 private:
  // Everything the kernels rely on is checked here, once: a damaged file must not become a wild pointer.
  View view() const {
    View view;
    view.n = vectors_.shape(0);
    view.d = vectors_.shape(1);
    view.k = means_.shape(0);
    expect(view.n >= 1 && view.d >= 1 && view.k >= 1, "an index holds at least one item");
    expect((int64_t)means_.shape(1) == view.d, "means do not fit the vectors");
    expect(fits(offsets_, view.k + 1), "offsets do not fit the means");
    expect(offsets_.data()[0] == 0 && offsets_.data()[view.k] == view.n, "offsets do not cover the vectors");
    for (int64_t c = 0; c < view.k; ++c) {
      expect(offsets_.data()[c] <= offsets_.data()[c + 1], "offsets decrease");
      view.any_empty = view.any_empty || offsets_.data()[c] == offsets_.data()[c + 1];
      // From zero to n and never down: no difference can overflow.
      view.largest_cluster = std::max(view.largest_cluster, offsets_.data()[c + 1] - offsets_.data()[c]);
    }
    expect(fits(radii_, view.k) && fits(norm_max_, view.k), "radii do not fit");
    if (bias_) expect(fits(*bias_, view.n) && bias_max_ && fits(*bias_max_, view.k), "biases do not fit the vectors");
    view.vectors = vectors_.data();
    view.offsets = offsets_.data();
    view.means = means_.data();
    view.radii = radii_.data();
    view.norm_max = norm_max_.data();
    view.bias = pointer(bias_);
    view.bias_max = bias_ ? bias_max_->data() : nullptr;
    add_forms(view);
    return view;
  }

  void add_forms(View& view) const {
    if (full_forms_) {
      view.forms_kind = Forms::full;
      view.full_forms = full_forms_->data();
      view.scales = pointer(scales_);
      expect(fits(*full_forms_, view.k, view.triangle()) && scales_ && fits(*scales_, view.k, 1),
             "full forms do not fit the means");
    } else if (rank_forms_) {
      view.forms_kind = Forms::rank;
      view.rank_forms = rank_forms_->data();
      view.rank = rank_forms_->shape(1);
      view.scales = pointer(scales_);
      view.spread = pointer(spread_);
      expect(fits(*rank_forms_, view.k, view.rank, view.d) && view.rank >= 1 && spread_ && fits(*spread_, view.k) &&
                 scales_ && fits(*scales_, view.k, view.rank),
             "rank forms do not fit the means");
    }
  }

  int64_t check_queries(const In<float, 2>& queries) const {
    expect((int64_t)queries.shape(1) == engine_.view().d && queries.shape(0) >= 1, "queries do not fit the index");
    return queries.shape(0);
  }

  // Larger arrays of a mapped file, the positions of ids among them, are not checked when it is loaded.
  void check_positions(const int64_t* positions, int64_t count) const {
    for (int64_t i = 0; i < count; ++i)
      if (positions[i] < 0 || positions[i] >= engine_.view().n) throw std::runtime_error("an id leads to no item");
  }

  Restrictions make_restrictions(const BoundRestriction& bound, int64_t b) const {
    const int64_t rows = (int64_t)bound.offsets.shape(0) - 1, count = bound.excluded.shape(0);
    const int64_t *offsets = bound.offsets.data(), *excluded = bound.excluded.data();
    expect(rows == 1 || rows == b, "exclusions do not fit the queries");
    expect(offsets[0] == 0 && offsets[rows] == count, "exclusions do not fit their offsets");
    check_positions(excluded, count);
    for (int64_t row = 0; row < rows; ++row) {
      expect(offsets[row] <= offsets[row + 1] && offsets[row + 1] <= count, "offsets of exclusions decrease");
      for (int64_t i = offsets[row] + 1; i < offsets[row + 1]; ++i)
        expect(excluded[i - 1] < excluded[i], "excluded positions do not increase");
    }
    expect(bound.top_p > 0 && bound.top_p <= 1 && bound.k >= 0 && bound.k <= engine_.view().n,
           "a restriction leaves nothing");
    const Restriction common = {nullptr, 0, bound.replace, bound.top_p, bound.k, bound.probes};
    return {common, offsets, excluded, rows == 1};
  }

  Law make_law(const BoundLaw& bound, double temperature, int64_t probes, double tolerance) const {
    const Law law = {bound.kind,       pointer(bound.offset),
                     bound.dispersion, bound.log_total - std::log((double)engine_.view().n),
                     temperature,      probes,
                     tolerance};
    expect(law.exhaustive() || bound.offset, "a law that estimates needs an offset");
    const bool walks = law.kind == Kind::tree;
    expect(!walks || engine_.view().tree != nullptr, "this index has no tree");
    expect(!bound.offset || (int64_t)bound.offset->shape(0) == (walks ? 2 * tree_.inner : engine_.view().k),
           "a law's offset does not fit the clusters");
    expect(!law.dispersion || engine_.view().forms_kind != Forms::none, "this index keeps no dispersion");
    return law;
  }

  Law make_certified(const BoundLaw& bound, double temperature, double tolerance) const {
    expect(bound.kind == Kind::certified && engine_.view().norm_min != nullptr, "this law has no bounds");
    return make_law(bound, temperature, 0, tolerance);
  }

  In<float, 2> vectors_;
  In<int64_t, 1> offsets_;
  In<float, 2> means_;
  In<float, 1> radii_, norm_max_;
  std::optional<In<float, 1>> bias_, bias_max_;
  std::optional<In<int16_t, 2>> full_forms_;
  std::optional<In<int8_t, 3>> rank_forms_;
  std::optional<In<float, 2>> scales_;
  std::optional<In<float, 1>> spread_;
  std::optional<In<int64_t, 1>> outlier_positions_;
  std::optional<In<float, 2>> outlier_vectors_;
  std::optional<In<float, 1>> norm_min_, min_cosine_, reach_, excess_;
  std::optional<In<int8_t, 2>> codes_;
  std::optional<In<float, 1>> code_scales_, code_errors_, code_lengths_;
  struct TreeArrays {
    In<int64_t, 2> children;
    In<float, 2> means;
    std::optional<In<int16_t, 2>> full_forms;
    std::optional<In<int8_t, 3>> rank_forms;
    std::optional<In<float, 2>> scales;
    std::optional<In<float, 1>> spread;
  };
  TreeArrays tree_arrays_;
  std::vector<int64_t> splits_;
  Tree tree_;
  Engine engine_;
};

}  // namespace

void bind_index(nb::module_& m) {
  nb::class_<BoundLaw>(m, "Law").def(nb::init<std::optional<In<double, 1>>, bool, const std::string&>(),
                                     "offset"_a.none(), "dispersion"_a, "kind"_a);
  nb::class_<BoundRestriction>(m, "Restriction")
      .def(nb::init<In<int64_t, 1>, In<int64_t, 1>, bool, double, int64_t, int64_t>(), "offsets"_a, "excluded"_a,
           "replace"_a, "top_p"_a, "k"_a, "probes"_a);
  nb::class_<BoundEngine>(m, "Engine")
      .def(nb::init<In<float, 2>, In<int64_t, 1>, In<float, 2>, In<float, 1>, In<float, 1>, std::optional<In<float, 1>>,
                    std::optional<In<float, 1>>, std::optional<In<int16_t, 2>>, std::optional<In<int8_t, 3>>,
                    std::optional<In<float, 2>>, std::optional<In<float, 1>>, const std::string&>(),
           "vectors"_a, "offsets"_a, "means"_a, "radii"_a, "norm_max"_a, "bias"_a.none(), "bias_max"_a.none(),
           "full_forms"_a.none(), "rank_forms"_a.none(), "scales"_a.none(), "spread"_a.none(), "target"_a = "")
      .def("attach_bounds", &BoundEngine::attach_bounds, "norm_min"_a, "min_cosine"_a.none(), "reach"_a.none(),
           "excess"_a.none())
      .def("attach_outliers", &BoundEngine::attach_outliers, "positions"_a, "vectors"_a, "farthest"_a)
      .def("attach_codes", &BoundEngine::attach_codes, "codes"_a, "scales"_a, "errors"_a, "lengths"_a)
      .def("coded_scores", &BoundEngine::coded_scores, "query"_a, "cluster"_a, "scores"_a)
      .def("mass_bounds", &BoundEngine::mass_bounds, "query"_a, "law"_a, "temperature"_a, "lower"_a, "upper"_a,
           "scanned"_a)
      .def("attach_tree", &BoundEngine::attach_tree, "children"_a, "means"_a, "full_forms"_a.none(),
           "rank_forms"_a.none(), "scales"_a.none(), "spread"_a.none())
      .def("sample", &BoundEngine::sample, "queries"_a, "law"_a, "temperature"_a, "probes"_a, "tolerance"_a, "seed"_a,
           "threads"_a, "positions"_a, "log_prob"_a, "scored"_a, "error"_a)
      .def("log_prob", &BoundEngine::log_prob, "queries"_a, "law"_a, "temperature"_a, "probes"_a, "tolerance"_a,
           "positions"_a, "threads"_a, "log_prob"_a)
      .def("sample_restricted", &BoundEngine::sample_restricted, "queries"_a, "law"_a, "temperature"_a, "probes"_a,
           "tolerance"_a, "restriction"_a, "seed"_a, "threads"_a, "positions"_a, "log_prob"_a, "scored"_a, "error"_a,
           "left"_a)
      .def("log_prob_restricted", &BoundEngine::log_prob_restricted, "queries"_a, "law"_a, "temperature"_a, "probes"_a,
           "tolerance"_a, "restriction"_a, "positions"_a, "threads"_a, "log_prob"_a)
      .def("log_partition", &BoundEngine::log_partition, "queries"_a, "law"_a, "temperature"_a, "probes"_a,
           "tolerance"_a, "threads"_a, "values"_a)
      .def("sample_certified", &BoundEngine::sample_certified, "queries"_a, "law"_a, "temperature"_a, "seed"_a,
           "threads"_a, "positions"_a, "log_prob"_a, "low"_a, "high"_a, "scored"_a)
      .def("bracket_log_partition", &BoundEngine::bracket_log_partition, "queries"_a, "law"_a, "temperature"_a,
           "tolerance"_a, "confidence"_a, "seed"_a, "threads"_a, "values"_a, "low"_a, "high"_a, "scored"_a)
      .def("masses", &BoundEngine::masses, "queries"_a, "law"_a, "temperature"_a, "probes"_a, "tolerance"_a,
           "threads"_a, "log_masses"_a, "scored"_a, "error"_a)
      .def("top_k", &BoundEngine::top_k, "queries"_a, "temperature"_a, "probes"_a, "threads"_a, "positions"_a,
           "scores"_a, "scored"_a);
  m.def("probing_constants", &probing_constants);
}

}  // namespace softindex
