"""Draws from a part of a law: exclusions, slates without replacement, nucleus and the k best."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex
from probed_indexes import conditioned
from softindex.kernels import reference
from softindex.laws import METHODS
from softindex.testing import catalogues, chi_square_score, queries, temperatures

T = 0.5
every_method = pytest.mark.parametrize("method", METHODS)


def small(n=12, *, d=3, clusters=4, biased=True, seed=0, **options):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((n, d)).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float32) if biased else None
    index = softindex.build(vectors, clusters=clusters, log_bias=bias, tree=True, **options)
    return index, rng.standard_normal(d).astype(np.float32) * 0.7


def law_of(index, query, *, temperature=T, **asked):
    return index.log_prob(query, np.arange(len(index)), temperature=temperature, **asked)


def members(index, cluster):
    ends = np.cumsum(index.sizes)
    return index.ids[ends[cluster] - index.sizes[cluster] : ends[cluster]]


@every_method
def test_frequencies_of_ordered_pairs_fit_the_sequential_law(method):
    """Chi-square on 40,000 pairs of 12 items; false alarm about 3e-7 a case."""
    index, query = small()
    draws = index.sample(
        np.stack([query] * 40_000), 2, temperature=T, method=method, replace=False, exclude=[3], seed=1
    )
    law = reference.conditional_law(law_of(index, query, method=method), [3])
    first, second = np.divmod(np.arange(144), 12)
    possible = (first != second) & (first != 3) & (second != 3)
    expected = np.zeros(144)
    for pair in np.flatnonzero(possible):
        expected[pair] = np.exp(reference.sequential_law(law, np.array([first[pair], second[pair]])).sum())
    counts = np.bincount(draws.ids[:, 0] * 12 + draws.ids[:, 1], minlength=144)
    assert expected.sum() == pytest.approx(1, abs=1e-6)
    assert chi_square_score(counts, expected) < 5


@every_method
@pytest.mark.parametrize("temperature", [0.2, 2.0])
def test_frequencies_under_exclusion_fit_the_renormalised_law(method, temperature):
    """Chi-square on 40,000 draws; false alarm about 3e-7 a case."""
    index, query = small(200, clusters=14)
    law = law_of(index, query, method=method, temperature=temperature)
    gone = np.argsort(-law)[:7]
    draws = index.sample(query, 40_000, temperature=temperature, method=method, exclude=gone, seed=2)
    counts = np.bincount(draws.ids, minlength=200)
    assert counts[gone].sum() == 0
    assert chi_square_score(counts, np.exp(reference.conditional_law(law, gone))) < 5


@pytest.mark.parametrize("replace", [True, False])
@every_method
def test_frequencies_in_a_nucleus_fit_its_law(method, replace):
    """Chi-square on 40,000 first draws; false alarm about 3e-7 a case."""
    index, query = small(60, clusters=8)
    law = law_of(index, query, method=method, top_p=0.8)
    batch = np.stack([query] * 40_000)
    draws = index.sample(batch, 1, temperature=T, method=method, top_p=0.8, replace=replace, seed=5)
    assert chi_square_score(np.bincount(draws.ids.ravel(), minlength=60), np.exp(law)) < 5


def test_frequencies_of_pairs_from_a_list_fit_the_sequential_law():
    """Chi-square on 40,000 pairs of the 6 best items; false alarm about 3e-7."""
    index, query = small()
    asked = {"temperature": T, "method": "top-k", "k": 6}
    law = law_of(index, query, method="top-k", k=6)
    held = np.flatnonzero(np.isfinite(law))
    assert len(held) == 6
    draws = index.sample(np.stack([query] * 40_000), 2, replace=False, seed=1, **asked)
    expected = np.zeros(144)
    for a in held:
        for b in held[held != a]:
            expected[a * 12 + b] = np.exp(reference.sequential_law(law, np.array([a, b])).sum())
    assert chi_square_score(np.bincount(draws.ids @ [12, 1], minlength=144), expected) < 5


@every_method
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("temperature", [1e-4, 0.5, 1e4])
def test_what_is_left_keeps_its_digits(method, biased, temperature):
    """The dominating item, a whole cluster, all but one item: the conditional law is the law's own, renormalised."""
    index, query = small(150, d=8, clusters=10, biased=biased)
    asked = {"temperature": temperature, **conditioned(method)}
    law = law_of(index, query, **asked)
    best = np.argsort(-law)
    cases = [best[:1], best[:30], members(index, 4), best[1:], best[:-1], np.setdiff1d(best, members(index, 0))]
    for gone in cases:
        part = law_of(index, query, exclude=gone, **asked)
        truth = reference.conditional_law(law, gone)
        assert np.isneginf(part[gone]).all()
        np.testing.assert_allclose(part, truth, rtol=1e-9 if temperature < 1 else 1e-6, atol=2e-6)
        assert np.exp(part).sum() == pytest.approx(1, abs=1e-6)
        draws = index.sample(query, 3, exclude=gone, **asked)
        assert not np.isin(draws.ids, gone).any()
        np.testing.assert_array_equal(draws.log_prob, part[draws.ids])


@every_method
@pytest.mark.parametrize("temperature", [1e-4, 0.5, 1e4])
@pytest.mark.parametrize("duplicated", [False, True])
def test_everything_without_replacement_is_a_permutation_with_the_right_steps(method, temperature, duplicated):
    rng = np.random.default_rng(4)
    vectors = rng.standard_normal((60, 5)).astype(np.float32)
    index = softindex.build(np.repeat(vectors, 5, axis=0) if duplicated else vectors, clusters=9, tree=True)
    query = rng.standard_normal(5).astype(np.float32)
    asked = {"temperature": temperature, **conditioned(method)}
    draws = index.sample(query, len(index), replace=False, seed=1, **asked)
    assert sorted(draws.ids) == list(range(len(index)))
    steps = reference.sequential_law(law_of(index, query, **asked), draws.ids)
    np.testing.assert_allclose(draws.log_prob, steps, rtol=1e-6, atol=2e-6)


def test_a_permutation_of_thousands_takes_no_time_to_speak_of():
    rng = np.random.default_rng(0)
    index = softindex.build(rng.standard_normal((5000, 8)).astype(np.float32))
    for options in ({}, {"method": "top-k", "k": 5000}):
        draws = index.sample(rng.standard_normal(8), 5000, temperature=0.1, replace=False, **options)
        assert len(np.unique(draws.ids)) == 5000
        assert np.isfinite(draws.log_prob).all()
        assert draws.items_scored == 5000


@every_method
def test_ragged_exclusions_batches_and_threads_change_nothing(method):
    index, _ = small(300, d=6, clusters=17)
    rng = np.random.default_rng(1)
    batch = rng.standard_normal((37, 6)).astype(np.float32)
    gone = [rng.integers(300, size=size) for size in rng.integers(0, 60, size=37)]
    gone[5] = np.array([], int)
    for options in ({}, {"replace": False}, {"top_p": 0.95}, {"top_p": 0.95, "replace": False}):
        asked = {"temperature": 2.0, "method": method, "seed": 9, **options}
        whole = index.sample(batch, 4, exclude=gone, threads=1, **asked)
        threaded = index.sample(batch, 4, exclude=[row.tolist() for row in gone], threads=3, **asked)
        longer = index.sample(batch, 8, exclude=gone, **asked)
        np.testing.assert_array_equal(whole.ids, threaded.ids)
        np.testing.assert_array_equal(whole.log_prob, threaded.log_prob)
        np.testing.assert_array_equal(whole.ids, longer.ids[:, :4])
        for row, query in enumerate(batch):
            alone = index.sample(query, 4, exclude=gone[row], **asked)
            np.testing.assert_array_equal(alone.ids, whole.ids[row])
            # Alone, a query without exclusions draws from the whole law, which a tree computes in another order.
            np.testing.assert_allclose(alone.log_prob, whole.log_prob[row], rtol=0, atol=1e-6 * (len(gone[row]) == 0))
            assert alone.items_scored == whole.items_scored[row]


@every_method
def test_one_row_for_all_is_the_same_as_that_row_for_each(method):
    index, _ = small(90, d=4, clusters=9)
    batch = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    gone = [4, 4, 8, 15, 16, 23, 42]
    forms = [gone, set(gone), tuple(gone), np.array(gone), [gone] * 5, np.array([gone] * 5, np.uint16)]
    laws = [law_of(index, batch, method=method, exclude=form) for form in forms]
    for law in laws[1:]:
        np.testing.assert_array_equal(law, laws[0])


def test_none_excludes_nothing_for_that_query():
    index, _ = small(90, d=4, clusters=9)
    batch = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    law = law_of(index, batch, exclude=[[1, 2], None, [3]])
    np.testing.assert_array_equal(law, law_of(index, batch, exclude=[[1, 2], [], [3]]))


@every_method
def test_no_exclusion_is_the_law_itself(method):
    index, query = small(90, clusters=9)
    plain = index.sample(query, 30, temperature=T, method=method, seed=4)
    if method == "certified":
        part = index.sample(query, 30, temperature=T, method=method, seed=4, exclude=[])
        np.testing.assert_array_equal(part.log_prob, law_of(index, query, method="exact")[part.ids])
        return
    for options in ({"exclude": []}, {"exclude": [[]]}, {"top_p": 1}, {"top_p": 1.0, "exclude": None}):
        part = index.sample(query, 30, temperature=T, method=method, seed=4, **options)
        np.testing.assert_array_equal(part.ids, plain.ids)
        np.testing.assert_array_equal(part.log_prob, plain.log_prob)
        assert part.items_scored == plain.items_scored
        np.testing.assert_array_equal(part.error, plain.error)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_nucleus_is_its_definition(method, data):
    catalogue = data.draw(catalogues())
    index = softindex.build(catalogue.vectors, clusters=catalogue.clusters, log_bias=catalogue.log_bias, tree=True)
    query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
    # Positions, not rows: ties go in stored order.
    law = index.log_prob(query, index.ids, temperature=temperature, method=method)
    top_p = data.draw(st.floats(0.01, 0.99))
    part = index.log_prob(query, index.ids, temperature=temperature, method=method, top_p=top_p)
    truth = reference.nucleus(law, top_p)
    # A sum within rounding of top_p may fall on either side of it: then one item more or less is held.
    assert abs(np.isfinite(part).sum() - np.isfinite(truth).sum()) <= 1
    if (np.isfinite(part) == np.isfinite(truth)).all():
        np.testing.assert_allclose(part, truth, rtol=1e-6, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_top_k_is_its_definition(data):
    catalogue = data.draw(catalogues())
    index = softindex.build(catalogue.vectors, clusters=catalogue.clusters, log_bias=catalogue.log_bias, tree=True)
    query, temperature = data.draw(queries(index.dim, count=1))[0], data.draw(temperatures())
    k = data.draw(st.integers(1, 30))
    gone = np.array(data.draw(st.lists(st.integers(0, len(index) - 1), max_size=20)), np.int64)
    gone = gone[gone != data.draw(st.integers(0, len(index) - 1))]
    # Scores as the index rounds them decide who is among the best; the exact law has the logits.
    logits = index.log_prob(query, index.ids, temperature=temperature, method="exact")
    logits[np.isin(index.ids, gone)] = -np.inf
    law = index.log_prob(query, index.ids, temperature=temperature, method="top-k", k=k, exclude=gone)
    truth = reference.top_k_law(logits, k)
    held = np.isfinite(law)
    assert held.sum() == min(k, len(index) - len(np.unique(gone)))
    assert np.exp(law).sum() == pytest.approx(1, abs=1e-9)
    same = held & np.isfinite(truth)
    np.testing.assert_allclose(law[same], truth[same], rtol=1e-6, atol=1e-5)
    # Whoever is held by one and not by the other scores the same up to rounding.
    assert np.abs(logits[held].min() - logits[np.isfinite(truth)].min()) <= 1e-5 + 1e-6 * np.abs(logits[held].min())
    draws = index.sample(query, 10, temperature=temperature, method="top-k", k=k, exclude=gone)
    assert np.isin(draws.ids, index.ids[held]).all()
    assert 0 <= draws.error <= 1


@every_method
def test_a_tiny_nucleus_is_the_most_probable_item(method):
    index, query = small(100, clusters=10)
    law = law_of(index, query, method=method)
    part = law_of(index, query, method=method, top_p=1e-12)
    assert np.flatnonzero(part == 0.0).tolist() == [np.argmax(law)]
    second = law_of(index, query, method=method, top_p=1e-12, exclude=[np.argmax(law)])
    assert np.flatnonzero(second == 0.0).tolist() == [np.argsort(-law)[1]]


@every_method
def test_equal_items_share_a_nucleus_evenly(method):
    index = softindex.build(np.ones((40, 3), np.float32), clusters=1, tree=True)
    part = index.log_prob(np.ones(3), index.ids, temperature=T, method=method, top_p=0.5)
    np.testing.assert_allclose(part[:20], -np.log(20), atol=1e-6)
    assert np.isneginf(part[20:]).all()


def test_a_nucleus_reads_only_the_clusters_that_may_hold_it():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, 16)) * 3
    vectors = (centres[rng.integers(40, size=4000)] + 0.1 * rng.standard_normal((4000, 16))).astype(np.float32)
    index = softindex.build(vectors, clusters=40)
    draws = index.sample(vectors[0], 5, temperature=1.0, top_p=0.9, probes=0)
    assert draws.items_scored < 1000


def test_a_cluster_is_scanned_once_whatever_the_number_of_draws():
    index, query = small(400, clusters=1)
    assert index.sample(query, 50, temperature=T, replace=False, exclude=[1, 2]).items_scored == 400


@every_method
def test_string_ids(method):
    rng = np.random.default_rng(0)
    names = [f"item {row}" for row in range(50)]
    index = softindex.build(rng.standard_normal((50, 4)).astype(np.float32), ids=names, tree=True)
    batch = rng.standard_normal((3, 4)).astype(np.float32)
    gone = [["item 3", "item 3"], [], ["item 4", "item 5", "item 6"]]
    draws = index.sample(batch, 47, temperature=T, method=method, replace=False, exclude=gone)
    for row, excluded in enumerate(gone):
        assert len(set(draws.ids[row])) == 47
        assert not set(draws.ids[row]) & set(excluded)
    assert np.isneginf(index.log_prob(batch[0], ["item 3"], temperature=T, method=method, exclude=["item 3"]))
    with pytest.raises(softindex.UnknownIdError, match="item 99"):
        index.sample(batch, temperature=T, method=method, exclude=["item 99"])


def test_the_error_is_that_of_what_is_left():
    index, query = small(300, clusters=17)
    assert index.sample(query, 3, temperature=T, method="exact", exclude=[1], replace=False).error == 0
    assert index.sample(query, 3, temperature=T, method="exact", top_p=0.9).error == 0
    assert np.isnan(index.sample(query, 3, temperature=T, exclude=[1], probes=0).error)
    stated, law = index.sample(query, temperature=T, probes=2).error, law_of(index, query, probes=2)
    gone = np.argsort(-law)[:40]
    left = index.sample(query, temperature=T, probes=2, exclude=gone).error
    assert left == pytest.approx(min(1.0, stated / np.exp(np.delete(law, gone)).sum()), rel=1e-4)


def test_the_error_of_top_k_estimates_what_it_leaves_out():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((4000, 8)).astype(np.float32) * 0.3
    for dispersion in ("auto", "none"):
        index = softindex.build(vectors, dispersion=dispersion)
        batch = rng.standard_normal((4, 8)).astype(np.float32)
        law = law_of(index, batch, temperature=1.0, method="exact")
        for k in (10, 400, 2000):
            left_out = 1 - np.exp(np.sort(law)[:, -k:]).sum(axis=1)
            error = index.sample(batch, temperature=1.0, method="top-k", k=k).error
            np.testing.assert_allclose(error, left_out, atol=0.05 if dispersion == "auto" else 0.3)
        assert (index.sample(batch, temperature=1.0, method="top-k", k=10**9).error == 0).all()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"exclude": range(30)}, "nothing to draw for query 0"),
        ({"exclude": [[1], [], range(30)]}, "nothing to draw for query 2"),
        ({"exclude": [[1], [2]]}, "2 entries for 3 queries"),
        ({"exclude": [[1], 2, [3]]}, "one sequence"),
        ({"exclude": 7}, "neither"),
        ({"exclude": "7"}, "neither"),
        ({"exclude": [[[1]], [[2]], [[3]]]}, "nested"),
        ({"exclude": [1.5]}, "integer"),
        ({"exclude": ["a"]}, "integer"),
        ({"exclude": [30]}, "id 30 in exclude is not in this index"),
        ({"exclude": [[1], [2, -1], []]}, "id -1 in exclude is not in this index"),
        ({"replace": 1}, "replace is 1"),
        ({"replace": None}, "replace is None"),
        ({"replace": False, "n": 31}, "there are 30 items"),
        (
            {"replace": False, "n": 29, "exclude": [[], [1, 1, 2], []]},
            "28 items to draw without replacement for query 1",
        ),
        ({"replace": False, "n": 6, "method": "top-k", "k": 5}, "there are 5 items"),
        ({"replace": False, "n": 2, "top_p": 1e-9}, "the nucleus of query 0 holds 1 item to draw"),
        ({"replace": False, "n": 2, "top_p": 1e-9, "method": "top-k"}, "the nucleus of query 0 holds 1 item to draw"),
        ({"exclude": np.ma.masked_equal([1, 2, 3], 2)}, "ids are a masked array"),
        ({"probes": 10**5000}, "probes is a huge int"),
        ({"probes": np.arange(1000)}, "probes is array"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"top_p": True}, "top_p is True"),
        ({"top_p": "most"}, "top_p is 'most'"),
        ({"k": 5}, "k is for method 'top-k' only"),
        ({"k": 0, "method": "top-k"}, "k is 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(asked, sentence):
    index, _ = small(30)
    batch = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    with pytest.raises(softindex.InputError, match=sentence):
        index.sample(batch, **{"n": 1, "temperature": T, **asked})
    if not asked.keys() & {"replace", "n"}:
        with pytest.raises(softindex.InputError, match=sentence):
            index.log_prob(batch, [0], temperature=T, **asked)


def test_the_k_best_have_no_log_partition():
    index, query = small()
    with pytest.raises(softindex.MethodError, match="top-k leaves items out"):
        index.log_partition(query, temperature=T, method="top-k")
