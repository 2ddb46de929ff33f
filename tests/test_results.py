"""What calls report beside their answers: log Z of draws, proofs of top-k, and results under exclusions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex
from softindex.errors import InputError, UnknownIdError
from softindex.kernels import Engine
from softindex.laws import FLAT_METHODS, PROVEN_METHODS, TREE_METHODS
from softindex.testing import catalogues, queries, temperatures

T = 0.4


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def made(n=400, d=12, *, biased=False, clusters=20, **options):
    bias = normal(n, seed=5) if biased else None
    return softindex.build(normal(n, d), clusters=clusters, log_bias=bias, seed=1, **options), bias


def true_scores(index, query, temperature):
    """(n,) by id, in extended precision."""
    contents = index.items
    scores = contents.vectors.astype(np.longdouble) @ query.astype(np.longdouble)
    if contents.log_bias is not None:
        scores = scores + np.longdouble(temperature) * contents.log_bias
    by_id = np.empty_like(scores)
    by_id[index.ids] = scores
    return by_id


def log_sum(logits):
    return logits.max() + np.log(np.exp(logits - logits.max()).sum())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("method", FLAT_METHODS)
def test_draws_report_the_log_partition_of_their_method(method, biased):
    index, _ = made(biased=biased)
    batch = normal(9, 12, seed=2)
    for probes in (None,) if method in PROVEN_METHODS else (None, 0, 3):
        options = {"temperature": T, "method": method, "probes": probes}
        reported, called = (
            index.sample(batch, 5, seed=3, **options).log_partition,
            index.log_partition(batch, **options),
        )
        if method == "certified":
            truth = [log_sum(true_scores(index, query, T) / T) for query in batch]
            assert (reported.low <= truth).all()
            assert (truth <= reported.high).all()
            assert (reported.low <= reported.value).all()
            assert (reported.value <= reported.high).all()
            continue
        np.testing.assert_array_equal(reported.value, called.value)
        np.testing.assert_array_equal(reported.low, called.low)
        np.testing.assert_array_equal(reported.high, called.high)
        single = index.sample(batch[4], seed=3, **options).log_partition
        assert np.ndim(single.value) == 0
        assert single.value == called.value[4]


@pytest.mark.parametrize("method", [*FLAT_METHODS, "top-k"])
def test_draws_under_exclusions_report_the_log_partition_of_what_is_left(method):
    index, _ = made(biased=True)
    batch, gone = normal(6, 12, seed=2), [list(range(q * 30)) for q in range(6)]
    for options in ({}, {"top_p": 0.5}, {"replace": False}):
        reported = index.sample(batch, 3, temperature=T, method=method, exclude=gone, seed=1, **options).log_partition
        of = method if method != "top-k" else "sd-2ls"
        called = index.log_partition(batch, temperature=T, method=of, exclude=gone)
        # Slates have more clusters scanned, and so a better estimate; both are within the tolerance.
        better = "replace" in options and method not in PROVEN_METHODS
        np.testing.assert_allclose(reported.value, called.value, rtol=0, atol=0.03 if better else 0)
        assert (reported.low is None) == (method not in PROVEN_METHODS)


def test_tree_methods_have_no_log_partition():
    index, _ = made(tree=True)
    for method in TREE_METHODS:
        assert index.sample(normal(12), temperature=T, method=method).log_partition is None
        assert index.sample(normal(2, 12), temperature=T, method=method, exclude=[1]).log_partition is None


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("method", FLAT_METHODS)
def test_log_partition_leaves_out_excluded_items(method, biased):
    index, _ = made(biased=biased)
    batch = normal(7, 12, seed=2)
    gone = [np.argsort(-true_scores(index, query, T))[: 20 * q].tolist() for q, query in enumerate(batch)]
    # With every cluster probed, an estimate is exact too.
    options = {"temperature": T, "method": method, "probes": None if method in PROVEN_METHODS else index.clusters}
    estimate = index.log_partition(batch, exclude=gone, **options)
    for q, query in enumerate(batch):
        truth = log_sum(np.delete(true_scores(index, query, T), gone[q]) / T)
        if method in PROVEN_METHODS:
            assert estimate.low[q] <= truth <= estimate.high[q]
        assert estimate.value[q] == pytest.approx(float(truth), abs=1e-4)
        alone = index.log_partition(query, exclude=gone[q], **options)
        assert alone.value == estimate.value[q] or method == "certified"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bounds_of_log_partition_hold_under_exclusions(data):
    catalogue = data.draw(catalogues())
    index = softindex.build(catalogue.vectors, clusters=catalogue.clusters, log_bias=catalogue.log_bias)
    query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
    gone = data.draw(st.lists(st.integers(0, len(index) - 1), max_size=len(index) - 1, unique=True))
    truth = log_sum(np.delete(true_scores(index, query, temperature), gone) / np.longdouble(temperature))
    for options in ({"method": "exact"}, {"method": "certified"}, {"confidence": 0.9}):
        estimate = index.log_partition(query, temperature=temperature, exclude=gone, **options)
        assert estimate.low <= truth <= estimate.high


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("probes", [None, 1, 2, 5, 20])
def test_top_k_without_excluded_items_is_the_brute_force_one(probes, biased):
    index, _ = made(biased=biased)
    batch = normal(8, 12, seed=3)
    gone = [np.argsort(-true_scores(index, query, T))[: 3 * q] for q, query in enumerate(batch)]
    result = index.top_k(batch, 6, temperature=T, probes=probes, exclude=gone)
    for q, query in enumerate(batch):
        scores = true_scores(index, query, T)
        assert not set(result.ids[q]) & set(gone[q])
        np.testing.assert_allclose(result.scores[q], scores[result.ids[q]].astype(float), rtol=1e-5, atol=1e-5)
        if probes in (None, 20):
            scores[gone[q]] = -np.inf
            np.testing.assert_array_equal(result.ids[q], np.argsort(-scores, kind="stable")[:6])
    shared = index.top_k(batch, 6, temperature=T, probes=probes, exclude=gone[2])
    np.testing.assert_array_equal(shared.ids[2], result.ids[2])


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_gap_and_proven_hold_whatever_was_not_scanned(data):
    catalogue = data.draw(catalogues())
    index = softindex.build(catalogue.vectors, clusters=catalogue.clusters, log_bias=catalogue.log_bias)
    query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
    gone = data.draw(st.lists(st.integers(0, len(index) - 1), max_size=len(index) // 2, unique=True))
    k = data.draw(st.integers(1, len(index) - len(gone)))
    best = index.top_k(query, k, temperature=temperature, exclude=gone)
    assert best.proven.all()
    assert best.gap == 0
    for probes in range(1, index.clusters + 1):
        result = index.top_k(query, k, temperature=temperature, probes=probes, exclude=gone)
        assert result.items_scored <= len(index)
        # No item scores more than the gap above the last of the result, in the float32 scores that are compared.
        slack = 1e-6 * (np.abs(best.scores).max() + abs(float(result.gap)))
        assert best.scores[0] <= max(result.scores[0], result.scores[-1] + result.gap) + slack
        assert (best.scores <= np.maximum(result.scores, result.scores[-1] + result.gap) + slack).all()
        # What is proven is among the best, by score.
        assert (result.scores[result.proven] >= best.scores[-1]).all()
        np.testing.assert_array_equal(np.sort(result.proven)[::-1], result.proven)
        if result.gap == 0 and result.proven.all():
            np.testing.assert_array_equal(result.scores, best.scores)


def test_limited_probes_leave_a_gap_that_all_clusters_close():
    index, _ = made(4000, 16, clusters=60)
    batch = normal(30, 16, seed=4)
    few, many = (index.top_k(batch, 10, probes=probes) for probes in (1, 60))
    assert (few.gap > 0).any()
    assert not few.proven.all()
    assert (many.gap == 0).all()
    assert many.proven.all()


def test_top_k_refuses_more_items_than_are_left():
    index, _ = made(40, clusters=4)
    with pytest.raises(InputError, match="k is 39 but exclude leaves 38 items for query 1"):
        index.top_k(normal(2, 12), 39, exclude=[[1], [2, 3]])
    with pytest.raises(InputError, match="exclude leaves nothing"):
        index.top_k(normal(12), 1, exclude=range(40))
    with pytest.raises(InputError, match="exclude leaves nothing"):
        index.log_partition(normal(12), temperature=T, exclude=range(40))


@pytest.mark.parametrize("ids", [None, "integers", "strings"])
def test_unknown_ids_are_ignored_where_the_caller_says_so(ids):
    rows = {None: np.arange(50), "integers": np.arange(50) * 7 - 3, "strings": np.array([f"i{i}" for i in range(50)])}[
        ids
    ]
    index = softindex.build(normal(50, 5), ids=None if ids is None else rows, clusters=5)
    strange = ["nobody", "i99"] if ids == "strings" else np.array([10**9, 2**63 + 5], np.uint64)
    known, query = rows[[4, 9]].tolist(), normal(5, seed=1)
    both = [*known, *strange] if ids == "strings" else np.concatenate([rows[[4, 9]].astype(np.int64), [10**9, -77]])
    calls = {
        "sample": lambda **o: index.sample(query, 8, temperature=T, seed=2, **o).ids,
        "log_prob": lambda **o: index.log_prob(query, rows[:9], temperature=T, **o),
        "log_partition": lambda **o: index.log_partition(query, temperature=T, **o).value,
        "top_k": lambda **o: index.top_k(query, 5, **o).ids,
    }
    for call in calls.values():
        expected = call(exclude=known)
        np.testing.assert_array_equal(call(exclude=both, unknown="ignore"), expected)
        np.testing.assert_array_equal(call(exclude=strange, unknown="ignore"), call())
        with pytest.raises(UnknownIdError):
            call(exclude=both)
        with pytest.raises(InputError, match="unknown is 'skip'"):
            call(exclude=known, unknown="skip")
        with pytest.raises(InputError, match="unknown is 5"):
            call(unknown=5)
        with pytest.raises(InputError, match=r"^got \w+ ids"):
            call(exclude=[1.5] if ids != "strings" else [1], unknown="ignore")


def test_ids_of_each_query_may_be_unknown():
    index, _ = made(60, clusters=5)
    batch = normal(3, 12)
    first = index.sample(batch, 9, temperature=T, seed=1, exclude=[[1, 10**6], None, [-4]], unknown="ignore")
    second = index.sample(batch, 9, temperature=T, seed=1, exclude=[[1], None, []])
    np.testing.assert_array_equal(first.ids, second.ids)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"width": 0.1}, "width is for bounds, which sd-2ls does not compute"),
        ({"width": 0.1, "method": "exact"}, "width is for bounds, which exact does not compute"),
        ({"width": 0, "method": "certified"}, "width is 0; expected a number above 0"),
        ({"width": "x", "confidence": 0.9}, "width is 'x'"),
        ({"tolerance": 0.1, "method": "certified"}, "tolerance is for methods that probe"),
        ({"tolerance": 0.1, "method": "exact"}, "tolerance is for methods that probe"),
        ({"tolerance": 0.1, "confidence": 0.9}, "tolerance is for methods that probe"),
        ({"probes": 2, "confidence": 0.9}, "probes has no effect together with confidence"),
    ],
)
def test_options_of_log_partition_without_effect_are_refused(options, sentence):
    index, _ = made(60, clusters=5)
    with pytest.raises(InputError, match=sentence):
        index.log_partition(normal(12), temperature=T, **options)


def test_a_narrower_width_gives_closer_bounds():
    index, _ = made(3000, 16, clusters=60)
    wide, narrow = (
        index.log_partition(normal(5, 16, seed=2), temperature=0.3, method="certified", width=width)
        for width in (3.0, 0.01)
    )
    assert (wide.high - wide.low <= 3.0).all()
    assert (narrow.high - narrow.low <= 0.01).all()


def test_queries_of_a_huge_batch_do_not_depend_on_their_block():
    """Queries of 37 dimensions are padded some thousands at a time; copies are told apart over the entire call."""
    index, _ = made(200, 37, clusters=6)
    some = normal(50, 37, seed=9)
    batch = np.concatenate([some, np.tile(normal(1, 37, seed=8), (22_000, 1)), some])
    options = {"temperature": 20.0, "method": "s-2ls", "probes": 0, "seed": 4}
    draws, few = index.sample(batch, **options), index.sample(some, **options)
    np.testing.assert_array_equal(draws.ids[:50], few.ids)
    assert len(set(draws.ids[50:-50].ravel().tolist())) > 10
    assert (draws.ids[-50:] != few.ids).any()


def test_the_engine_takes_the_arrays_of_an_index_by_name_and_no_others():
    index, _ = made(60, clusters=5, codes=True, tree=True)
    arrays = dict(index._contents.arrays)
    Engine(arrays)
    required = {name for name in arrays if name not in ("min_cosine", "reach")}
    # Without its first array a group of arrays is missing, and the rest of it belongs nowhere.
    for name in required:
        with pytest.raises(ValueError, match=r"missing|belong|another|wrong|shape"):
            Engine({other: array for other, array in arrays.items() if other != name})
    for name in arrays:
        with pytest.raises(ValueError, match=r"shape|type|cover|missing|belong|expected"):
            Engine({**arrays, name: arrays[name][:-1]})
        with pytest.raises(ValueError, match=r"shape|type|cover|missing|belong|expected"):
            Engine({**arrays, name: arrays[name].astype(np.int32)})
    with pytest.raises(ValueError, match="id_rows does not belong here"):
        Engine({**arrays, "id_rows": np.arange(60)})
    with pytest.raises(ValueError, match="no kernels named"):
        Engine(arrays, "sse9")
