// Binds the scorer of learned similarities: checks the arrays and keeps them alive.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "bindings/arrays.h"
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
  BoundMixture(In<float, 3> items, MaybeIn<float, 2> gates, In<float, 2> averages, int64_t query_parts,
               MaybeIn<float, 2> first, MaybeIn<float, 1> first_bias, MaybeIn<float, 2> second,
               MaybeIn<float, 1> second_bias, const std::string& target)
      : items_(items), gates_(gates), averages_(averages),
        scorer_(kernels_named(target), make_shape(items, query_parts), view_items(items, gates, averages, query_parts),
                view_gate(first, first_bias, second, second_bias, query_parts * (int64_t)items.shape(1))) {}

  void best(In<float, 3> queries, MaybeIn<float, 2> gates, In<int64_t, 1> offsets, In<int64_t, 1> excluded,
            int64_t threads, Out<int64_t, 2> positions, Out<float, 2> scores) const {
    const MixtureQueries<float> batch = view_queries(queries, gates);
    const Exclusions exclusions = view_exclusions(offsets, excluded, batch.count);
    const Ranking result = view_ranking(positions, scores, batch.count);
    nb::gil_scoped_release release;
    scorer_.best(batch, exclusions, threads, result);
  }

  void best_average(In<float, 2> queries, In<int64_t, 1> offsets, In<int64_t, 1> excluded, int64_t threads,
                    Out<int64_t, 2> positions) const {
    const int64_t b = queries.shape(0), keep = positions.shape(1);
    expect(fits(queries, b, scorer_.shape().d), bad_queries);
    expect(keep >= 1 && fits(positions, b, keep), unfit);
    const Exclusions exclusions = view_exclusions(offsets, excluded, b);
    nb::gil_scoped_release release;
    scorer_.best_average(queries.data(), b, exclusions, threads, {keep, positions.data(), nullptr});
  }

  void largest(In<float, 3> queries, In<int64_t, 1> offsets, In<int64_t, 1> excluded, int64_t threads,
               Out<float, 2> largest, std::optional<Out<int64_t, 3>> listed) const {
    const int64_t b = queries.shape(0), keep = listed ? listed->shape(2) : 0;
    check_components(queries);
    expect(fits(largest, b, scorer_.size()), unfit);
    expect(!listed || (keep >= 1 && fits(*listed, b, scorer_.shape().pairs(), keep)), unfit);
    const Exclusions exclusions = view_exclusions(offsets, excluded, b);
    nb::gil_scoped_release release;
    scorer_.largest({b, queries.data(), nullptr}, exclusions, threads, largest.data(),
                    {keep, data_or_null(listed), nullptr});
  }

  void score_listed(In<float, 3> queries, MaybeIn<float, 2> gates, In<int64_t, 1> offsets, In<int64_t, 1> positions,
                    int64_t threads, Out<float, 1> scores) const {
    const MixtureQueries<float> batch = view_queries(queries, gates);
    const PositionLists lists = view_lists(offsets, positions, batch.count);
    expect(fits(scores, lists.total()), unfit);
    nb::gil_scoped_release release;
    scorer_.score_listed(batch, lists, threads, scores.data());
  }

  void best_listed(In<float, 3> queries, MaybeIn<float, 2> gates, In<int64_t, 1> offsets, In<int64_t, 1> listed,
                   int64_t threads, Out<int64_t, 2> positions, Out<float, 2> scores) const {
    const MixtureQueries<float> batch = view_queries(queries, gates);
    const PositionLists lists = view_lists(offsets, listed, batch.count);
    const Ranking result = view_ranking(positions, scores, batch.count);
    nb::gil_scoped_release release;
    scorer_.best_listed(batch, lists, threads, result);
  }

  void score_precisely(In<double, 3> queries, MaybeIn<double, 2> gates, In<int64_t, 1> offsets,
                       In<int64_t, 1> positions, int64_t threads, Out<double, 1> scores) const {
    const MixtureQueries<double> batch = view_queries(queries, gates);
    const PositionLists lists = view_lists(offsets, positions, batch.count);
    expect(fits(scores, lists.total()), unfit);
    nb::gil_scoped_release release;
    scorer_.score_precisely(batch, lists, threads, scores.data());
  }

 private:
  static MixtureShape make_shape(const In<float, 3>& items, int64_t query_parts) {
    const MixtureShape shape = {query_parts, (int64_t)items.shape(1), (int64_t)items.shape(2)};
    expect(shape.query_parts >= 1 && shape.item_parts >= 1 && shape.d >= 1, "queries and items need components");
    return shape;
  }

  static MixtureItems view_items(const In<float, 3>& items, const MaybeIn<float, 2>& gates,
                                 const In<float, 2>& averages, int64_t query_parts) {
    const int64_t n = items.shape(0), pairs = query_parts * (int64_t)items.shape(1);
    expect(n >= 1, "there are no items");
    expect(n < (int64_t)1 << 32, "there are 2^32 items or more");
    expect(fits(averages, n, items.shape(2)) && (!gates || fits(*gates, n, pairs)), shapes_disagree);
    return {n, items.data(), data_or_null(gates), averages.data()};
  }

  static GateWeights view_gate(const MaybeIn<float, 2>& first, const MaybeIn<float, 1>& first_bias,
                               const MaybeIn<float, 2>& second, const MaybeIn<float, 1>& second_bias, int64_t pairs) {
    if (!first) return {};
    const int64_t hidden = first->shape(0);
    expect(first_bias && second && second_bias && fits(*first, hidden, pairs) && fits(*first_bias, hidden) &&
               fits(*second, pairs, hidden) && fits(*second_bias, pairs),
           "the weights of the gate disagree");
    return {hidden, first->data(), first_bias->data(), second->data(), second_bias->data()};
  }

  template <class Real>
  void check_components(const In<Real, 3>& queries) const {
    expect(fits(queries, queries.shape(0), scorer_.shape().query_parts, scorer_.shape().d), bad_queries);
  }

  template <class Real>
  MixtureQueries<Real> view_queries(const In<Real, 3>& queries, const MaybeIn<Real, 2>& gates) const {
    const int64_t b = queries.shape(0);
    check_components(queries);
    expect(!gates || fits(*gates, b, scorer_.shape().pairs()), bad_queries);
    expect(gates.has_value() == scorer_.uses_gates(), "the gates of queries and items disagree");
    return {b, queries.data(), data_or_null(gates)};
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

  In<float, 3> items_;
  MaybeIn<float, 2> gates_;
  In<float, 2> averages_;
  MixtureScorer scorer_;
};

}  // namespace

void bind_mixture(nb::module_& m) {
  nb::class_<BoundMixture>(m, "Mixture", "Items of a learned similarity; reads the arrays where they are.")
      .def(nb::init<In<float, 3>, MaybeIn<float, 2>, In<float, 2>, int64_t, MaybeIn<float, 2>, MaybeIn<float, 1>,
                    MaybeIn<float, 2>, MaybeIn<float, 1>, const std::string&>(),
           "items"_a, "gates"_a.none(), "averages"_a, "query_parts"_a, "first"_a.none(), "first_bias"_a.none(),
           "second"_a.none(), "second_bias"_a.none(), "target"_a = "",
           "Items (n, parts, d), their gates (n, pairs), their averages (n, d), and the weights of the gate.")
      .def("best", &BoundMixture::best, "queries"_a, "gates"_a.none(), "offsets"_a, "excluded"_a, "threads"_a,
           "positions"_a, "scores"_a,
           "Fill positions and scores (b, keep) with the best items, best first; -1 where there are fewer.")
      .def("best_average", &BoundMixture::best_average, "queries"_a, "offsets"_a, "excluded"_a, "threads"_a,
           "positions"_a,
           "Fill positions (b, keep), increasing, with the items of largest dot product of average and query (b, d).")
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
