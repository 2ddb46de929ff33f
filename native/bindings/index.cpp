// Binds the index engine to Python: checks shapes, keeps arrays alive, computes nothing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <variant>

#include "bindings/arrays.h"
#include "bindings/guard.h"
#include "bindings/named_arrays.h"
#include "bindings/native_call.h"
#include "index/engine.h"
#include "index/probe.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace softindex {

namespace {

constexpr const char* kinds[] = {"estimated", "certified", "exhaustive", "tree"};

Kind kind_named(const std::string& name) {
  for (int i = 0; i < 4; ++i)
    if (name == kinds[i]) return (Kind)i;
  throw std::invalid_argument("there is no kind of law named " + name);
}

template <class Array>
auto pointer(const std::optional<Array>& array) -> decltype(array->data()) {
  return array ? array->data() : nullptr;
}

// A restriction with the arrays it points into.
struct BoundRestriction {
  In<int64_t, 1> offsets, positions;
  std::optional<In<int64_t, 1>> allows;
  Restriction restriction;
  int64_t rows;
  int64_t largest = -1;  // position

  BoundRestriction(In<int64_t, 1> offsets, In<int64_t, 1> positions, bool replace, double top_p, int64_t k,
                   std::optional<In<int64_t, 1>> allows)
      : offsets(offsets), positions(positions), allows(allows), rows((int64_t)offsets.shape(0) - 1) {
    const int64_t count = positions.shape(0);
    restriction = {offsets.data(), positions.data(), pointer(allows), rows == 1, replace, top_p, k};
    expect(rows >= 1 && offsets.data()[0] == 0 && offsets.data()[rows] == count, "exclusions do not fit their offsets");
    expect(!allows || fits(*allows, rows), "exclusions do not fit their offsets");
    expect(top_p > 0 && top_p <= 1 && k >= 0, "a restriction leaves nothing");
    for (int64_t row = 0; row < rows; ++row) check_row(offsets.data()[row], offsets.data()[row + 1]);
  }

 private:
  void check_row(int64_t begin, int64_t end) {
    expect(begin <= end && end <= (int64_t)positions.shape(0), "offsets of exclusions decrease");
    for (int64_t i = begin; i < end; ++i)
      expect(positions.data()[i] > (i == begin ? -1 : positions.data()[i - 1]), "excluded positions do not increase");
    if (end > begin) largest = std::max(largest, positions.data()[end - 1]);
  }
};

// One temperature for all queries, or one for each.
using Temperatures = std::variant<double, In<double, 1>>;

// A request with the queries, the temperatures and the restriction it points into.
struct BoundRequest {
  In<float, 2> queries;
  Temperatures temperature;
  nb::object kept;
  const BoundRestriction* restriction = nullptr;
  Request request;

  BoundRequest(In<float, 2> queries, const Law& law, Temperatures temperature, int64_t probes, double tolerance,
               nb::object restriction_or_none, uint64_t seed, int64_t threads)
      : queries(queries), temperature(std::move(temperature)), kept(restriction_or_none) {
    if (!kept.is_none()) restriction = nb::cast<const BoundRestriction*>(kept);
    request.queries = queries.data();
    request.b = (int64_t)queries.shape(0);
    request.law = law;
    set_temperature();
    request.probes = probes;
    request.tolerance = tolerance;
    request.restriction = restriction ? &restriction->restriction : nullptr;
    request.seed = seed;
    request.threads = threads;
  }

  // For log Z between bounds.
  void bound(double width, double confidence) {
    expect(confidence > 0 && confidence <= 1, "the confidence is no probability");
    request.width = width;
    request.confidence = confidence;
  }

  // For a proof that is given up where it takes many more items; margin: of the k best, see Wanted.
  void limit(int64_t items, double margin) {
    request.most = items;
    request.margin = margin;
  }

 private:
  void set_temperature() {
    if (const double* one = std::get_if<double>(&temperature)) {
      request.temperature = *one;
      return;
    }
    const In<double, 1>& each = std::get<In<double, 1>>(temperature);
    expect(fits(each, request.b), "there is not one temperature for each query");
    request.temperatures = each.data();
  }
};

using Ints1 = Out<int64_t, 1>;
using Ints2 = Out<int64_t, 2>;
using Doubles1 = Out<double, 1>;
using Doubles2 = Out<double, 2>;

// Of values (3, b).
LogPartition log_partition_rows(double* values, int64_t b) { return {values, values + b, values + 2 * b}; }

struct BoundDraws {
  Ints2 positions;
  Doubles2 log_prob;
  Ints1 scored;
  Doubles2 statistics;  // (4, b), as making few arrays is quicker: error, log Z, its lower and its upper bound
  std::optional<Doubles2> low, high;
  std::optional<Ints1> left;

  DrawResults results() const {
    const int64_t b = positions.shape(0);
    DrawResults results;
    results.n = positions.shape(1);
    results.positions = positions.data();
    results.log_prob = log_prob.data();
    results.low = pointer(low);
    results.high = pointer(high);
    results.scored = scored.data();
    results.error = statistics.data();
    results.log_partition = log_partition_rows(statistics.data() + b, b);
    results.left = pointer(left);
    return results;
  }
  bool fit(int64_t b) const {
    const int64_t n = positions.shape(1);
    return fits(positions, b, n) && fits(log_prob, b, n) && fits(scored, b) && fits(statistics, 4, b) &&
           (!low || fits(*low, b, n)) && (!high || fits(*high, b, n)) && (!left || fits(*left, b));
  }
};

struct BoundBest {
  Ints2 positions;
  Out<float, 2> scores;
  Out<bool, 2> proven;
  Doubles2 statistics;  // (2, b): gap, predicted share of the k best that is missed
  Ints1 scored;

  BestResults results() const {
    double* gap = statistics.data();
    return {(int64_t)positions.shape(1), positions.data(), scores.data(), proven.data(), gap,
            gap + positions.shape(0),    scored.data()};
  }
  bool fit(int64_t b) const {
    const int64_t k = positions.shape(1);
    return fits(positions, b, k) && fits(scores, b, k) && fits(proven, b, k) && fits(statistics, 2, b) &&
           fits(scored, b);
  }
};

// An engine with the arrays that its view points into.
class BoundEngine {
 public:
  BoundEngine(const nb::typed<nb::dict, nb::str, nb::any>& arrays, const std::string& target,
              const nb::typed<nb::dict, nb::str, BoundGuard>& guards)
      : arrays_(arrays), guards_(guards), engine_(kernels_named(target), make_view(arrays_.views(), pointers(guards))) {
  }

  void sample(const BoundRequest& bound, const BoundDraws& draws) {
    const Request& request = check(bound);
    expect(draws.fit(request.b), unfit);
    const bool proven = request.law.kind == Kind::certified && request.restriction == nullptr;
    expect(!proven || (draws.low && draws.high), "certified draws have bounds");
    expect(request.restriction == nullptr || draws.left, "restricted draws count the items left");
    call_native([&] { engine_.sample(request, draws.results()); });
  }

  void log_prob(const BoundRequest& bound, In<int64_t, 2> positions, Doubles2 log_prob) {
    const Request& request = check(bound);
    const int64_t m = positions.shape(1);
    expect(fits(positions, request.b, m) && fits(log_prob, request.b, m), unfit);
    // Larger arrays of a mapped file, the positions of ids among them, are not checked when it is loaded.
    const bool slates = request.restriction != nullptr && !request.restriction->replace;
    for (int64_t i = 0; i < request.b * m; ++i)
      if (!slates || positions.data()[i] != -1) check_position(positions.data()[i]);
    call_native([&] { engine_.log_prob(request, {m, positions.data(), log_prob.data()}); });
  }

  void log_partition(const BoundRequest& bound, Doubles2 values, Ints1 scored) {
    const Request& request = check(bound);
    expect(fits(values, 3, request.b) && fits(scored, request.b), unfit);
    expect(request.law.kind != Kind::tree, "a tree has no log Z");
    expect(request.confidence == 1 || request.law.kind == Kind::certified, "this law has no bounds");
    call_native([&] { engine_.log_partition(request, {log_partition_rows(values.data(), request.b), scored.data()}); });
  }

  void top_k(const BoundRequest& bound, const BoundBest& best) {
    const Request& request = check(bound);
    expect(best.fit(request.b), unfit);
    const BestResults results = best.results();
    for (int64_t q = 0; q < request.b; ++q)
      expect(results.k >= 1 && results.k <= left(request, q), "there are fewer items");
    call_native([&] { engine_.top_k(request, results); });
  }

  void masses(const BoundRequest& bound, Doubles2 log_masses, Doubles1 error, Ints1 scored) {
    const Request& request = check(bound);
    expect(fits(log_masses, request.b, engine_.view().k) && fits(scored, request.b) && fits(error, request.b), unfit);
    call_native([&] { engine_.masses(request, {log_masses.data(), error.data(), scored.data()}); });
  }

  double coded_scores(const BoundRequest& bound, int64_t cluster, Out<float, 1> scores) {
    const Request& request = check(bound);
    const View& view = engine_.view();
    expect(view.codes != nullptr, "this index keeps no codes");
    expect(cluster >= 0 && cluster < view.k, "there is no such cluster");
    expect(request.b == 1 && fits(scores, view.size(cluster)), "shapes disagree");
    return engine_.coded_scores(request, cluster, scores.data());
  }

  double mass_bounds(const BoundRequest& bound, Doubles1 lower, Doubles1 upper, Doubles1 scanned) {
    const Request& request = check(bound);
    const int64_t k = engine_.view().k;
    expect(request.b == 1 && request.law.kind == Kind::certified, "bounds are for one query of a certified law");
    expect(fits(lower, k) && fits(upper, k) && fits(scanned, k), "the result arrays do not fit the clusters");
    double pivot = 0;
    call_native([&] { pivot = engine_.mass_bounds(request, lower.data(), upper.data(), scanned.data()); });
    return pivot;
  }

 private:
  // Items that a query may draw.
  int64_t left(const Request& request, int64_t query) const {
    if (request.lists(query)) return request.restriction->listed_of(query).count;
    return engine_.view().n - request.excluded_of(query).count;
  }

  const Request& check(const BoundRequest& bound) const {
    const View& view = engine_.view();
    expect((int64_t)bound.queries.shape(1) == view.d && bound.request.b >= 1, "queries do not fit the index");
    expect(engine_.serves(bound.request.law), "this index does not serve the law");
    if (bound.restriction != nullptr) {
      const BoundRestriction& restriction = *bound.restriction;
      expect(restriction.rows == 1 || restriction.rows == bound.request.b, "exclusions do not fit the queries");
      expect(restriction.restriction.k <= view.n, "a restriction leaves nothing");
      for (int64_t row = 0; row < restriction.rows; ++row)
        expect(left(bound.request, row) > 0 || !bound.request.lists(row), "a restriction leaves nothing");
      if (restriction.largest >= 0) check_position(restriction.largest);
    }
    return bound.request;
  }

  void check_position(int64_t position) const {
    if (position < 0 || position >= engine_.view().extent) throw std::runtime_error("an id points to no item");
  }

  static std::map<std::string, const Guard*> pointers(const nb::dict& guards) {
    std::map<std::string, const Guard*> result;
    for (const auto& [name, bound] : guards)
      result.emplace(nb::cast<std::string>(name), &nb::cast<const BoundGuard&>(bound).guard);
    return result;
  }

  NamedArrays arrays_;
  nb::dict guards_;
  Engine engine_;
};

void bind_records(nb::module_& m) {
  nb::class_<Law>(m, "Law")
      .def(
          "__init__",
          [](Law* law, const std::string& kind, bool size, bool dispersion) {
            new (law) Law{kind_named(kind), size, dispersion};
          },
          "kind"_a, nb::kw_only(), "size"_a = false, "dispersion"_a = false)
      .def_prop_ro("kind", [](const Law& law) { return kinds[(int)law.kind]; })
      .def_ro("size", &Law::size)
      .def_ro("dispersion", &Law::dispersion);
  nb::class_<BoundRestriction>(m, "Restriction")
      .def(nb::init<In<int64_t, 1>, In<int64_t, 1>, bool, double, int64_t, std::optional<In<int64_t, 1>>>(),
           "offsets"_a, "positions"_a, "replace"_a = true, "top_p"_a = 1.0, "k"_a = 0, "allows"_a.none() = nb::none());
  nb::class_<BoundRequest>(m, "Request")
      .def(nb::init<In<float, 2>, const Law&, Temperatures, int64_t, double, nb::object, uint64_t, int64_t>(),
           "queries"_a, "law"_a, "temperature"_a, "probes"_a = 0, "tolerance"_a = 0.0, "restriction"_a = nb::none(),
           "seed"_a = 0, "threads"_a = 1)
      .def("bound", &BoundRequest::bound, "width"_a, "confidence"_a)
      .def("limit", &BoundRequest::limit, "items"_a, "margin"_a = 0.0);
  nb::class_<BoundDraws>(m, "DrawResults")
      .def(
          "__init__",
          [](BoundDraws* draws, Ints2 positions, Doubles2 log_prob, Ints1 scored, Doubles2 statistics,
             std::optional<Doubles2> low, std::optional<Doubles2> high, std::optional<Ints1> left) {
            new (draws) BoundDraws{positions, log_prob, scored, statistics, low, high, left};
          },
          "positions"_a.noconvert(), "log_prob"_a.noconvert(), "scored"_a.noconvert(), "statistics"_a.noconvert(),
          "low"_a.none() = nb::none(), "high"_a.none() = nb::none(), "left"_a.none() = nb::none());
  nb::class_<BoundBest>(m, "BestResults")
      .def(
          "__init__",
          [](BoundBest* best, Ints2 positions, Out<float, 2> scores, Out<bool, 2> proven, Doubles2 statistics,
             Ints1 scored) { new (best) BoundBest{positions, scores, proven, statistics, scored}; },
          "positions"_a.noconvert(), "scores"_a.noconvert(), "proven"_a.noconvert(), "statistics"_a.noconvert(),
          "scored"_a.noconvert());
}

}  // namespace

void bind_index(nb::module_& m) {
  // Laws live in a table of a Python module until the interpreter exits: nanobind would report them as leaks.
  nb::set_leak_warnings(false);
  bind_records(m);
  nb::class_<BoundEngine>(m, "Engine")
      .def(nb::init<const nb::typed<nb::dict, nb::str, nb::any>&, const std::string&,
                    const nb::typed<nb::dict, nb::str, BoundGuard>&>(),
           "arrays"_a, "target"_a = "", "guards"_a = nb::dict())
      .def("sample", &BoundEngine::sample, "request"_a, "results"_a)
      .def("log_prob", &BoundEngine::log_prob, "request"_a, "positions"_a, "log_prob"_a)
      .def("log_partition", &BoundEngine::log_partition, "request"_a, "values"_a, "scored"_a)
      .def("top_k", &BoundEngine::top_k, "request"_a, "results"_a)
      .def("masses", &BoundEngine::masses, "request"_a, "log_masses"_a, "error"_a, "scored"_a)
      .def("coded_scores", &BoundEngine::coded_scores, "request"_a, "cluster"_a, "scores"_a)
      .def("mass_bounds", &BoundEngine::mass_bounds, "request"_a, "lower"_a, "upper"_a, "scanned"_a);
  m.def("probing_constants", &probing_constants);
}

}  // namespace softindex
