// Binds the scorer of learned similarities: checks the arrays and keeps them alive.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "bindings/arrays.h"
#include "bindings/named_arrays.h"
#include "bindings/native_call.h"
#include "mixture/scorer.h"

using namespace nanobind::literals;

namespace softindex {
namespace {

template <class T, int dimensions>
using MaybeIn = std::optional<In<T, dimensions>>;

template <class Array>
auto data_or_null(const std::optional<Array>& array) -> decltype(array->data()) {
  return array ? array->data() : nullptr;
}

constexpr const char* bad_queries = "the queries do not fit the items";

class BoundMixture {
 public:
  BoundMixture(const nb::typed<nb::dict, nb::str, nb::any>& arrays, int64_t query_parts, const std::string& target)
      : arrays_(arrays), scorer_(kernels_named(target), make_mixture(arrays_.views(), query_parts)) {}

  void best(In<float, 4> queries, MaybeIn<float, 2> gates, In<int64_t, 1> offsets, In<int64_t, 1> excluded,
            int64_t threads, Out<int64_t, 2> positions, Out<float, 2> scores) const {
    const MixtureQueries<float> batch = view_queries(queries, gates);
    const Exclusions exclusions = view_exclusions(offsets, excluded, batch.count);
    const Ranking result = view_ranking(positions, scores, batch.count);
    call_native([&] { scorer_.best(batch, exclusions, threads, result); });
  }

  bool screens() const { return scorer_.screens(); }

  void bound(In<float, 4> queries, MaybeIn<float, 2> gates, In<float, 1> slacks, int64_t threads,
             Out<float, 2> bounds) const {
    const MixtureQueries<float> batch = view_queries(queries, gates);
    expect(scorer_.has_screen(), "there is no screen");
    expect(fits(slacks, batch.count) && fits(bounds, batch.count, scorer_.size()), unfit);
    call_native([&] { scorer_.bound(batch, slacks.data(), threads, bounds.data()); });
  }

  void best_screened(In<float, 4> queries, MaybeIn<float, 2> gates, In<int64_t, 1> offsets, In<int64_t, 1> excluded,
                     int64_t k, int64_t width, In<float, 1> slacks, In<float, 1> margins, int64_t threads,
                     Out<int64_t, 2> positions, Out<float, 2> scores, Out<float, 1> outside) const {
    const MixtureQueries<float> batch = view_queries(queries, gates);
    expect(scorer_.has_screen(), "there is no screen");
    expect(k >= 1 && width >= k && width <= scorer_.size(), "the numbers of results do not fit the items");
    expect(fits(slacks, batch.count) && fits(margins, batch.count) && fits(outside, batch.count), unfit);
    const Exclusions exclusions = view_exclusions(offsets, excluded, batch.count);
    const Ranking result = view_ranking(positions, scores, batch.count);
    const Screening screening = {k, width, slacks.data(), margins.data(), outside.data()};
    call_native([&] { scorer_.best_screened(batch, exclusions, screening, threads, result); });
  }

  void best_average(In<float, 2> queries, In<int64_t, 1> offsets, In<int64_t, 1> excluded, int64_t threads,
                    Out<int64_t, 2> positions) const {
    const int64_t b = queries.shape(0), keep = positions.shape(1);
    expect(fits(queries, b, scorer_.shape().d), bad_queries);
    expect(keep >= 1 && fits(positions, b, keep), unfit);
    const Exclusions exclusions = view_exclusions(offsets, excluded, b);
    call_native(
        [&] { scorer_.best_average(queries.data(), b, exclusions, threads, {keep, positions.data(), nullptr}); });
  }

  void best_clustered(In<float, 4> queries, MaybeIn<float, 2> gates, In<int64_t, 1> offsets, In<int64_t, 1> excluded,
                      int64_t scanned, int64_t threads, Out<int64_t, 2> positions) const {
    const MixtureQueries<float> batch = view_queries(queries, gates);
    const int64_t keep = positions.shape(1);
    expect(scorer_.has_clusters(), "there are no clusters");
    expect(keep >= 1 && fits(positions, batch.count, keep), unfit);
    const Exclusions exclusions = view_exclusions(offsets, excluded, batch.count);
    call_native(
        [&] { scorer_.clusters().candidates(batch, exclusions, scanned, threads, {keep, positions.data(), nullptr}); });
  }

  void largest(In<float, 4> queries, In<int64_t, 1> offsets, In<int64_t, 1> excluded, int64_t threads,
               Out<float, 2> largest, std::optional<Out<int64_t, 3>> listed) const {
    const MixtureQueries<float> batch = view_queries(queries);
    const int64_t b = batch.count, keep = listed ? listed->shape(2) : 0;
    expect(fits(largest, b, scorer_.size()), unfit);
    expect(!listed || (keep >= 1 && fits(*listed, b, scorer_.shape().pairs(), keep)), unfit);
    const Exclusions exclusions = view_exclusions(offsets, excluded, b);
    call_native(
        [&] { scorer_.largest(batch, exclusions, threads, largest.data(), {keep, data_or_null(listed), nullptr}); });
  }

  void score_listed(In<float, 4> queries, MaybeIn<float, 2> gates, In<int64_t, 1> offsets, In<int64_t, 1> positions,
                    int64_t threads, Out<float, 1> scores) const {
    const MixtureQueries<float> batch = view_queries(queries, gates);
    const PositionLists lists = view_lists(offsets, positions, batch.count);
    expect(fits(scores, lists.total()), unfit);
    call_native([&] { scorer_.score_listed(batch, lists, threads, scores.data()); });
  }

  void best_listed(In<float, 4> queries, MaybeIn<float, 2> gates, In<int64_t, 1> offsets, In<int64_t, 1> listed,
                   int64_t threads, Out<int64_t, 2> positions, Out<float, 2> scores) const {
    const MixtureQueries<float> batch = view_queries(queries, gates);
    const PositionLists lists = view_lists(offsets, listed, batch.count);
    const Ranking result = view_ranking(positions, scores, batch.count);
    call_native([&] { scorer_.best_listed(batch, lists, threads, result); });
  }

  void score_precisely(In<double, 4> queries, MaybeIn<double, 2> gates, In<int64_t, 1> offsets,
                       In<int64_t, 1> positions, int64_t threads, Out<double, 1> scores) const {
    const MixtureQueries<double> batch = view_queries(queries, gates);
    const PositionLists lists = view_lists(offsets, positions, batch.count);
    expect(fits(scores, lists.total()), unfit);
    call_native([&] { scorer_.score_precisely(batch, lists, threads, scores.data()); });
  }

 private:
  // Queries without gates, which logits do not need.
  template <class Real>
  MixtureQueries<Real> view_queries(const In<Real, 4>& queries) const {
    const MixtureShape& shape = scorer_.shape();
    const int64_t b = queries.shape(0), length = round_up_to_four(shape.query_parts) * shape.d;
    expect(fits(queries, b, (shape.query_parts + 3) / 4, shape.d, 4), bad_queries);
    return {b, length, shape.pairs(), queries.data(), nullptr};
  }

  template <class Real>
  MixtureQueries<Real> view_queries(const In<Real, 4>& queries, const MaybeIn<Real, 2>& gates) const {
    MixtureQueries<Real> view = view_queries(queries);
    expect(!gates || fits(*gates, view.count, view.pairs), bad_queries);
    expect(gates.has_value() == scorer_.uses_gates(), "the gates of queries and items disagree");
    view.all_gates = data_or_null(gates);
    return view;
  }

  // Every position is checked: a wrong one would read outside the arrays.
  PositionLists view_lists(const In<int64_t, 1>& offsets, const In<int64_t, 1>& positions, int64_t count) const {
    expect(fits(offsets, count + 1), "the lists do not fit the queries");
    expect(offsets.data()[0] == 0 && offsets.data()[count] == (int64_t)positions.shape(0),
           "the lists do not fit their offsets");
    for (int64_t q = 0; q < count; ++q)
      expect(offsets.data()[q] <= offsets.data()[q + 1], "the offsets of the lists decrease");
    expect(within(positions, scorer_.size()), "there is no such item");
    return {count, offsets.data(), positions.data()};
  }

  Exclusions view_exclusions(const In<int64_t, 1>& offsets, const In<int64_t, 1>& positions, int64_t b) const {
    const int64_t rows = (int64_t)offsets.shape(0) - 1;
    expect(rows == 1 || rows == b, "the exclusions do not fit the queries");
    return {view_lists(offsets, positions, rows)};
  }

  static Ranking view_ranking(const Out<int64_t, 2>& positions, const Out<float, 2>& scores, int64_t b) {
    const int64_t keep = positions.shape(1);
    expect(keep >= 1 && fits(positions, b, keep) && fits(scores, b, keep), unfit);
    return {keep, positions.data(), scores.data()};
  }

  NamedArrays arrays_;
  MixtureScorer scorer_;
};

}  // namespace

void bind_mixture(nb::module_& m) {
  nb::class_<BoundMixture>(m, "Mixture",
                           "Items of a learned similarity; reads the arrays where they are.\n"
                           "Queries (b, parts / 4 rounded up, d, 4) hold four components at a time, padded with zeros.")
      .def(
          nb::init<const nb::typed<nb::dict, nb::str, nb::any>&, int64_t, const std::string&>(), "arrays"_a,
          "query_parts"_a, "target"_a = "",
          "The arrays by the names they are stored under: components, averages and, if there are some, gates, gate.*,\n"
          "clusters.*")
      .def("best", &BoundMixture::best, "queries"_a, "gates"_a.none(), "offsets"_a, "excluded"_a, "threads"_a,
           "positions"_a, "scores"_a,
           "Fill positions and scores (b, keep) with the best items, best first; -1 where there are fewer.")
      .def_prop_ro("screens", &BoundMixture::screens, "Whether best_screened is faster than best on this CPU.")
      .def("bound", &BoundMixture::bound, "queries"_a, "gates"_a.none(), "slacks"_a, "threads"_a, "bounds"_a,
           "Fill bounds (b, n) with upper bounds on the scores, up to rounding errors.")
      .def(
          "best_screened", &BoundMixture::best_screened, "queries"_a, "gates"_a.none(), "offsets"_a, "excluded"_a,
          "k"_a, "width"_a, "slacks"_a, "margins"_a, "threads"_a, "positions"_a, "scores"_a, "outside"_a,
          "Fill positions and scores (b, keep) with the best items among those whose bounds reach the k best, and\n"
          "outside (b,) with a bound on the scores of all others; `width` items with the largest bounds are looked at.")
      .def("best_average", &BoundMixture::best_average, "queries"_a, "offsets"_a, "excluded"_a, "threads"_a,
           "positions"_a,
           "Fill positions (b, keep), increasing, with the items of largest dot product of average and query (b, d).")
      .def("best_clustered", &BoundMixture::best_clustered, "queries"_a, "gates"_a.none(), "offsets"_a, "excluded"_a,
           "scanned"_a, "threads"_a, "positions"_a,
           "Fill positions (b, keep), increasing, with the best of about `scanned` items of promising clusters.\n"
           "Excluded items are given by their places in the order of the clusters.")
      .def(
          "largest", &BoundMixture::largest, "queries"_a, "offsets"_a, "excluded"_a, "threads"_a, "largest"_a,
          "listed"_a.none(),
          "Fill largest (b, n) with each item's largest logit and listed (b, pairs, keep) with each pair's best items.")
      .def("score_listed", &BoundMixture::score_listed, "queries"_a, "gates"_a.none(), "offsets"_a, "positions"_a,
           "threads"_a, "scores"_a,
           "Fill scores (total,) of listed items: those of query q are positions[offsets[q]:offsets[q + 1]].")
      .def("best_listed", &BoundMixture::best_listed, "queries"_a, "gates"_a.none(), "offsets"_a, "listed"_a,
           "threads"_a, "positions"_a, "scores"_a,
           "Fill positions and scores (b, keep) with the best of listed items, whose positions increase; best first.")
      .def("score_precisely", &BoundMixture::score_precisely, "queries"_a, "gates"_a.none(), "offsets"_a, "positions"_a,
           "threads"_a, "scores"_a, "Fill scores (total,) of listed items as score_listed does, in double.");
}

}  // namespace softindex
