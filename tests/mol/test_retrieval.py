"""top_k: the right items, exactly k of them, and proofs that hold."""

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_similarities import KINDS, Given, assert_same, gate, queries_of, similarity, truth, unit, values_of

import softindex
from softindex.mol import METHODS, Gate, ItemSide, SimilaritySpec, build
from softindex.mol.calls import make_batch
from softindex.mol.reference import scores
from softindex.records import TopK

EXACT = ("exact", "brute-force", "two-pass")
APPROXIMATE = ("per-embedding", "average", "combined")


def rounding(index, queries):
    """Bounds (b,) on the errors of scores in float32, which a steep gate or a low temperature multiplies."""
    return make_batch(index._snapshot, queries, None, (None, None, "error")).errors.score


def assert_proofs_hold(found, true, k, excluded=(), errors=None):
    """k different items, sorted; the proven ones are among the true k best; the gap is no less than the true one.

    errors (b,): how far scores may be from the true ones.
    """
    for q in range(len(true)):
        values = true[q].copy()
        if len(excluded):
            values[list(excluded)] = -np.inf
        best = np.sort(values)[::-1]
        ids = found.ids[q]
        assert len(set(ids.tolist())) == k == len(ids)
        assert (np.diff(found.scores[q]) <= 0).all()
        np.testing.assert_allclose(found.scores[q], values[ids], rtol=1e-4, atol=2e-4 if errors is None else errors[q])
        # Proven: at least as good as the true k-th, to the rounding of the float64 truth itself.
        assert (values[ids][found.proven[q]] >= best[k - 1] - 1e-9).all()
        rest = np.delete(values, ids)
        missed = max(0.0, rest.max() - values[ids].min()) if len(rest) else 0.0
        assert found.gap[q] >= missed - 1e-9
        if found.gap[q] == 0:
            assert found.proven[q].all()


def test_a_copy_at_the_end_hides_no_doubt_about_the_others():
    # In one dimension components are 1 or -1: the third item scores as the first two, which are copies, but is none.
    model = similarity("logits", 3, (3, 2), 1, 0.01, 1.0, seed=0)
    queries = queries_of(model, 3, 1)
    found = build(model, np.arange(3)).top_k(queries, 2, method="brute-force")
    assert found.proven[:, 1].all()
    assert not found.proven.all()
    np.testing.assert_array_equal(found.gap == 0, found.proven.all(axis=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("k", [1, 10, 200])
def test_exact_methods_find_the_k_best_and_prove_them(kind, method, k):
    model = similarity(kind)
    queries = queries_of(model)
    index = build(model, np.arange(200))
    found, true = index.top_k(queries, k, method=method), truth(model, queries)
    np.testing.assert_array_equal(found.ids, np.argsort(-true, axis=1, kind="stable")[:, :k])
    np.testing.assert_allclose(found.scores, np.take_along_axis(true, found.ids, 1), rtol=0, atol=1e-9)
    assert found.proven.all()
    assert (found.gap == 0).all()
    assert_proofs_hold(found, true, k)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    method=st.sampled_from(METHODS),
    n=st.integers(1, 60),
    parts=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    d=st.integers(1, 9),
    temperature=st.sampled_from([0.01, 0.05, 1.0, 20.0]),
    scale=st.sampled_from([0.01, 1.0, 20.0]),
    copies=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_no_proof_is_wrong_whatever_the_similarity(kind, method, n, parts, d, temperature, scale, copies, seed, data):
    model = similarity(kind, n, parts, d, temperature, scale, seed=seed)
    # Copies, and copies that differ in the last digit, are where rounding decides.
    near = np.nextafter(model.components, np.float32(2))
    model = model.repeated(np.tile(np.arange(n), copies))
    model.components[n : 2 * n] = near[: max(0, len(model.components) - n)]
    queries = queries_of(model, 3, seed + 1)
    k = data.draw(st.integers(1, n * copies))
    options = {"candidates": data.draw(st.integers(k, n * copies))} if method in APPROXIMATE else {}
    index = build(model, np.arange(n * copies), clusters=data.draw(st.integers(1, n)))
    found = index.top_k(queries, k, method=method, **options)
    assert_proofs_hold(found, truth(model, queries), k, errors=rounding(index, queries))
    if method in EXACT:
        # Only items that score the same without being copies, as in one dimension, may stay in doubt.
        assert (found.proven.all(axis=1) | (found.gap > 0)).all()
        # Scores, and what rounding leaves open, are in units of 1 / temperature.
        assert (found.gap < 1e-6 * max(1.0, 1 / temperature)).all()


def peaked(n, seed):
    """Few items stand out and the gate is near one pair: two passes leave most items out."""
    rng = np.random.default_rng(seed)
    model = similarity("logits", n, (2, 2), 16, 0.05, 0.3, seed=seed)
    queries = queries_of(model, 4, seed)
    model.components *= np.float32(0.3)
    model.known = SimilaritySpec(2, 2, 16, 0.05, False, model.known.gate, None, False)
    for q in range(4):
        rows = rng.choice(n, 5, replace=False)
        model.components[rows] = unit(queries[q].mean(axis=0) + 0.05 * rng.standard_normal((5, 2, 16)))
    return model, queries


@pytest.mark.parametrize("seed", range(5))
def test_two_passes_leave_items_out_where_some_stand_out(seed):
    model, queries = peaked(5000, seed)
    index, true = build(model, np.arange(5000)), truth(model, queries)
    for method in ("two-pass", "exact"):
        found = index.top_k(queries, 3, method=method)
        assert_proofs_hold(found, true, 3)
        assert found.proven.all()
        assert found.items_scored.min() < 2500


@pytest.mark.parametrize("method", ["per-embedding", "combined"])
def test_what_stands_out_is_proven_from_few_candidates(method):
    model, queries = peaked(5000, 0)
    found = build(model, np.arange(5000)).top_k(queries, 3, method=method, candidates=100)
    assert found.proven.any()
    assert_proofs_hold(found, truth(model, queries), 3)


def adversary(seed):
    """Items on which all hangs on rounding: equal, or apart by the last digit."""
    rng = np.random.default_rng(seed)
    base = unit(rng.standard_normal((1, 3, 8)))
    components = np.repeat(base, 300, axis=0)
    components[::3] = np.nextafter(components[::3], np.float32(2))
    components[::7] = np.nextafter(components[::7], np.float32(-2))
    spec = SimilaritySpec(2, 3, 8, 0.02, True, gate(rng, 6, 16, 5.0), None, False)
    return Given(spec, components, None)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(10))
def test_proofs_hold_where_all_items_are_nearly_equal(method, seed):
    model = adversary(seed)
    queries = queries_of(model, 4, seed)
    options = {} if method in EXACT else {"candidates": 60}
    found = build(model, np.arange(300)).top_k(queries, 20, method=method, **options)
    assert_proofs_hold(found, truth(model, queries), 20)
    if method in EXACT:
        true = truth(model, queries)
        kth = np.sort(true, axis=1)[:, -20]
        assert (np.take_along_axis(true, found.ids, 1) >= kth[:, None] - 1e-9).all()


def appendix():
    """Five items with two pairs of components; the gate's weights are chosen through u v, with u given by a unit query.

    dots (1, 1), (.8, 0), (0, .8), (.7, 0), (.2, .2); weights even but for d, which looks at the first pair only.
    """
    dots = np.array([[1.0, 1.0], [0.8, 0.0], [0.0, 0.8], [0.7, 0.0], [0.2, 0.2]])
    components = np.zeros((5, 2, 2), np.float32)
    components[:, :, 0] = dots
    components[:, :, 1] = np.sqrt(1 - dots**2)
    # With one query component (1, 0) the logits are the dots. The gate sees d by its logits: .7 beside 0, nothing else
    # has a first logit in .65 .. .75 with a second of 0.
    first = np.array([[200.0, -200.0], [200.0, -200.0], [200.0, -200.0], [200.0, -200.0]], np.float32)
    first_bias = np.array([-130.0, -138.0, -142.0, -150.0], np.float32)
    second = np.zeros((2, 4), np.float32)
    second[0] = [10.0, -10.0, -10.0, 10.0]
    weights = Gate(first, first_bias, second, np.zeros(2, np.float32))
    return Given(SimilaritySpec(1, 2, 2, 1.0, True, weights, None, False), components, None)


def test_the_published_example():
    model = appendix()
    query = np.array([[[1.0, 0.0]]], np.float32)
    np.testing.assert_allclose(truth(model, query)[0], [1.0, 0.4, 0.4, 0.7, 0.2], atol=1e-3)
    index = build(model, np.arange(5), ids=["a", "b", "c", "d", "e"])
    for method in EXACT:
        found = index.top_k(query, 2, method=method)
        assert found.ids[0].tolist() == ["a", "d"]
        assert found.proven.all()
        assert found.gap[0] == 0
    near = index.top_k(query, 2, method="per-embedding", candidates=2)
    assert near.items_scored[0] == 3
    assert near.ids[0, 0] == "a"
    assert near.ids[0, 1] in ("b", "c")
    assert near.proven[0].tolist() == [True, False]
    assert near.gap[0] == pytest.approx(0.3, abs=2e-3)
    assert near.gap[0] >= truth(model, query)[0, 3] - near.scores[0, 1]


@pytest.mark.parametrize("method", APPROXIMATE)
def test_all_items_as_candidates_are_exact_and_proven(method):
    model = similarity("logits")
    queries, index = queries_of(model), build(model, np.arange(200))
    found = index.top_k(queries, 10, method=method, candidates=200)
    np.testing.assert_array_equal(found.ids, index.top_k(queries, 10).ids)
    assert found.proven.all()
    assert (found.gap == 0).all()


@pytest.mark.parametrize("method", APPROXIMATE)
def test_a_requested_gap_is_reached_or_the_budget_is_spent(method):
    model = similarity("logits", 3000)
    queries, index = queries_of(model), build(model, np.arange(3000))
    free = index.top_k(queries, 5, method=method, gap=2.0)
    assert (free.gap <= 2.0).all()
    assert_proofs_hold(free, truth(model, queries), 5)
    bound = index.top_k(queries, 5, method=method, gap=0.0, candidates=20)
    assert_proofs_hold(bound, truth(model, queries), 5)
    assert bound.items_scored.max() <= 20 * (model.known.pairs + 1)
    exact = index.top_k(queries, 5, method=method, gap=0.0)
    np.testing.assert_array_equal(exact.ids, index.top_k(queries, 5).ids)


@pytest.mark.parametrize("method", APPROXIMATE)
def test_a_loose_gap_takes_no_fewer_candidates_than_none(method):
    model = similarity("logits", 3000)
    queries, index = queries_of(model), build(model, np.arange(3000))
    usual, loose = (index.top_k(queries, 5, method=method, **gap) for gap in ({}, {"gap": 1e6}))
    np.testing.assert_array_equal(usual.ids, loose.ids)
    np.testing.assert_array_equal(usual.items_scored, loose.items_scored)


@pytest.mark.parametrize("candidates", [(100, 5), (2000, 1), (5, 100)])
def test_a_gap_begins_with_enough_candidates_wherever_there_may_be_enough(candidates):
    model = similarity("logits", 2000, parts=(2, 2))
    queries, index = queries_of(model), build(model, np.arange(2000))
    for gap in (0.0, 0.5, 1e6):
        assert_proofs_hold(index.top_k(queries, 10, method="combined", candidates=candidates, gap=gap),
                           truth(model, queries), 10)  # fmt: skip


def test_the_average_is_exact_where_all_weights_are_equal():
    model = similarity("logits", 500)
    zero = {
        name: np.zeros_like(getattr(model.known.gate, name))
        for name in ("first", "first_bias", "second", "second_bias")
    }
    model.known = SimilaritySpec(3, 2, 5, 0.1, True, type(model.known.gate)(**zero), None, False)
    queries, index = queries_of(model), build(model, np.arange(500))
    near = index.top_k(queries, 10, method="average", candidates=10)
    np.testing.assert_array_equal(near.ids, index.top_k(queries, 10).ids)


@pytest.mark.parametrize("method", METHODS)
def test_excluded_items_are_never_returned(method):
    model = similarity("logits")
    queries, index = queries_of(model), build(model, np.arange(200))
    true = truth(model, queries)
    options = {} if method in EXACT else {"candidates": 50}
    shared = np.argsort(-true[0])[:20]
    found = index.top_k(queries, 10, method=method, exclude=shared, **options)
    assert not np.isin(found.ids, shared).any()
    assert_proofs_hold(found, true, 10, shared)
    own = [np.argsort(-row)[:30] for row in true]
    found = index.top_k(queries, 10, method=method, exclude=own, **options)
    for q, out in enumerate(own):
        assert not np.isin(found.ids[q], out).any()
        assert_proofs_hold(TopK(**values_of(found, slice(q, q + 1))), true[q : q + 1], 10, out)
    rest = index.top_k(
        queries, 5, method=method, exclude=np.arange(5, 200), **({} if method in EXACT else {"candidates": 5})
    )
    assert (np.sort(rest.ids, axis=1) == np.arange(5)).all()
    assert rest.proven.all()


@pytest.mark.parametrize("kind", KINDS)
def test_one_query_and_the_number_of_threads_change_nothing(kind):
    model = similarity(kind, 700)
    queries, index = queries_of(model, 70), build(model, np.arange(700), clusters=26)
    for method in METHODS:
        together = index.top_k(queries, 8, method=method, threads=2)
        alone = index.top_k(queries[3], 8, method=method, threads=1)
        assert_same(together, alone, row=3)


def test_candidates_of_the_callers_own_are_ranked():
    model = similarity("logits")
    queries, index = queries_of(model), build(model, np.arange(200))
    true = truth(model, queries)
    some = np.random.default_rng(0).choice(200, 40, replace=False)
    found = index.rank(queries, some, 5)
    np.testing.assert_array_equal(found.ids, some[np.argsort(-true[:, some], axis=1)[:, :5]])
    assert_proofs_hold(found, true, 5)
    summed = index.average_queries(queries)
    own = np.argsort(-(summed @ index.averages.T), axis=1)[:, :40]
    same = index.top_k(queries, 5, method="average", candidates=40)
    np.testing.assert_array_equal(index.rank(queries, own, 5).ids, same.ids)


@pytest.mark.parametrize("first_stage", ["softindex", "faiss"])
def test_the_first_stage_may_run_on_an_index_of_your_own(first_stage):
    model = similarity("mixture", 2000)
    queries, index = queries_of(model), build(model, np.arange(2000), ids=np.arange(2000) + 5000)
    summed_queries = index.average_queries(queries)
    if first_stage == "softindex":
        near = softindex.build(index.averages, ids=index.ids).top_k(summed_queries, 300).ids
    else:
        flat = faiss.IndexFlatIP(index.averages.shape[1])
        flat.add(index.averages)
        near = index.ids[flat.search(summed_queries, 300)[1]]
    found, own = index.rank(queries, near, 10), index.top_k(queries, 10, method="average", candidates=300)
    np.testing.assert_array_equal(found.ids, own.ids)


def test_components_of_an_item_side_are_scored_like_the_reference_with_gates():
    rng = np.random.default_rng(0)
    spec = SimilaritySpec(2, 2, 4, 0.1, True, gate(rng, 4), None, False)
    side = ItemSide(unit(rng.standard_normal((30, 2, 4))), None)
    model = Given(spec, side.components, None)
    queries = queries_of(model)
    found = build(model, np.arange(30)).top_k(queries, 30)
    np.testing.assert_allclose(
        found.scores, np.take_along_axis(scores(spec, queries, side.components), found.ids, 1), atol=1e-9
    )


def test_one_pair_of_components_is_searched_exactly_by_every_method():
    made = similarity("largest", n=120, parts=(1, 1))
    queries = queries_of(made)
    index = build(made, np.arange(120))
    best = index.top_k(queries, 7)
    for method in ("per-embedding", "average", "combined"):
        found = index.top_k(queries, 7, method=method, candidates=9)
        assert found.proven.all()
        assert (found.gap == 0).all()
        assert (found.ids == best.ids).all()


@pytest.mark.parametrize("spread", [0.05, 5.0])
def test_no_more_items_are_scored_than_there_are(spread):
    # Small spread: nothing can be left out; large: a few items are far above the rest.
    made = similarity("logits", n=6000, parts=(2, 2), temperature=1.0 / spread)
    queries = queries_of(made, b=9)
    index = build(made, np.arange(6000))
    for method in ("two-pass", "exact", "brute-force"):
        found = index.top_k(queries, 5, method=method, exclude=[3, 4])
        assert (found.items_scored <= 5998).all()
        assert (found.items_scored >= 5).all()


def positions_at(where, n):
    """A few positions: at the start, at the end, or where a scan that looks at every so many tiles does not."""
    places = {"start": np.arange(40), "end": np.arange(n - 40, n), "between": 24 * 9 * np.arange(1, 41) + 100}
    return places[where] % n


@pytest.mark.parametrize("where", ["start", "end", "between"])
@pytest.mark.parametrize("copies", [1, 40])
def test_candidates_by_the_average_are_the_best_wherever_they_stand(where, copies):
    """The threshold of a scan is guessed from some tiles; a wrong guess must not cost a candidate."""
    n = 9000
    made = similarity("logits", n=n, parts=(2, 2), d=6)
    rng = np.random.default_rng(3)
    near = unit(queries_of(made, b=1).mean(axis=1))[0]
    chosen = positions_at(where, n)
    noise = 0.05 * rng.standard_normal((len(chosen), 2, 6))
    made.components[chosen] = unit(near + np.repeat(noise[::copies], copies, axis=0)[: len(chosen)])
    queries = queries_of(made, b=3)
    index = build(made, np.arange(n))
    found = index.top_k(queries, 5, method="average", candidates=64)
    summed_queries = index.average_queries(queries).astype(np.float64)
    products = summed_queries @ index.averages.astype(np.float64).T
    for row in range(3):
        order = np.argsort(-products[row], kind="stable")
        floor = products[row, order[63]]
        assert (products[row, found.ids[row]] >= floor - 1e-5).all()
        best = index.rank(queries[row], order[:64], 5)
        np.testing.assert_allclose(found.scores[row], best.scores, atol=1e-4)


def test_what_float64_cannot_tell_apart_is_not_proven():
    """Item 3 is better than item 0 by 5e-11, which is lost in the product: no method may call item 0 proven."""
    components = np.zeros((4, 1, 3), np.float32)
    components[3, 0], components[1, 0, 0], components[2, 0, 0] = [1e6, 5e-11, -1e6], -1, -2
    made = Given(SimilaritySpec(1, 1, 3, 1.0, False, None, None, False), components)
    for method in METHODS:
        found = build(made, np.arange(4)).top_k(np.ones(3, np.float32), 1, method=method)
        assert found.ids[0] == 3 or (not found.proven.any() and found.gap >= 5e-11)


@pytest.mark.parametrize("method", EXACT)
def test_copies_of_an_item_are_proven(method):
    rows = np.repeat(np.arange(50), 8)
    made = similarity("mixture", n=50).repeated(rows)
    found = build(made, np.arange(400)).top_k(queries_of(made), 12, method=method)
    assert found.proven.all()
    assert (found.gap == 0).all()
