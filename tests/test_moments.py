"""Moments equal float64 brute force, and what is called a bound is one, for the stored float32 numbers."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex.moments as module
from softindex import dispersion
from softindex.moments import measure


def offsets_of(sizes):
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def normal(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def take(vectors, sizes, dispersion, log_bias=None, threads=2):
    return measure(vectors, offsets_of(sizes), log_bias=log_bias, dispersion=dispersion, threads=threads)


def truth(items, log_bias=None):
    """Mean (d,) and covariance (d, d) of one cluster, in extended precision where that takes no time."""
    items = items.astype(np.longdouble if items.size < 20_000 else np.float64)
    bias = np.zeros(len(items)) if log_bias is None else log_bias
    weights = np.exp(bias.astype(np.longdouble) - bias.max())
    weights /= weights.sum()
    mean = weights @ items
    centred = (items - mean) * np.sqrt(weights)[:, None]
    return mean.astype(np.float64), (centred.T @ centred).astype(np.float64)


def estimate(dispersion, cluster, queries):
    """The quadratic form that the stored numbers stand for; queries (b, d) float64, returns (b,)."""
    forms, scales = (array[cluster].astype(np.float64) for array in (dispersion.forms, dispersion.scales))
    if dispersion.kind == "full":
        upper = np.triu_indices(queries.shape[1])
        return (queries[:, upper[0]] * queries[:, upper[1]]) @ (forms * scales)
    forms = forms * scales[:, None]
    return ((queries @ forms.T) ** 2).sum(axis=1) + float(dispersion.spread[cluster]) * (queries**2).sum(axis=1)


def hard_queries(covariance, seed=0):
    """Eigenvectors, nearly eigenvectors, axes and random directions, all of length one."""
    random, d = np.random.default_rng(seed), len(covariance)
    vectors = np.linalg.eigh(covariance / max(np.trace(covariance), 1e-300))[1].T
    if d > 40:
        vectors = vectors[np.r_[:10, d - 30 : d]]
    near = vectors + 1e-4 * random.standard_normal(vectors.shape)
    pairs = vectors + random.permutation(vectors)
    rows = np.concatenate([vectors, near, pairs, np.eye(d)[:40], random.standard_normal((30, d))])
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)


def check_cluster(moments, cluster, items, log_bias=None):
    """Every statement made about one cluster."""
    mean, covariance = truth(items, log_bias)
    members, stored = items.astype(np.longdouble), moments.means[cluster].astype(np.longdouble)
    lengths = np.sqrt((members**2).sum(axis=1))
    assert np.sqrt(((members - stored) ** 2).sum(axis=1)).max() <= moments.radii[cluster]
    assert moments.norm_min[cluster] <= lengths.min()
    assert lengths.max() <= moments.norm_max[cluster]
    np.testing.assert_allclose(moments.means[cluster], mean, rtol=2e-7, atol=1e-6 * float(lengths.max()) + 2e-45)
    if moments.dispersion.kind == "none":
        return
    queries = hard_queries(covariance)
    form = ((queries @ covariance) * queries).sum(axis=1)
    bound = estimate(moments.dispersion, cluster, queries) + float(moments.dispersion.excess[cluster])
    # The test's own arithmetic rounds, in float64 and (the mean of equal items) in extended precision.
    forgiven = 1e-13 * np.trace(covariance) + 1e-33 * float(lengths.max()) ** 2
    assert np.all(form <= bound + forgiven)


SIZES = [40, 0, 1, 7, 300, 2, 1, 0, 12, 90]


@pytest.mark.parametrize("dispersion", ["none", "full", 1, 3, 8, 12])
@pytest.mark.parametrize("biased", [False, True])
def test_every_statement_about_every_cluster_holds(dispersion, biased):
    vectors = normal(sum(SIZES), 12) + np.float32(0.5)
    bias = 3 * normal(sum(SIZES), 1, seed=1)[:, 0] if biased else None
    moments, offsets = take(vectors, SIZES, dispersion, bias), offsets_of(SIZES)
    for cluster, size in enumerate(SIZES):
        rows = slice(offsets[cluster], offsets[cluster + 1])
        if size:
            check_cluster(moments, cluster, vectors[rows], None if bias is None else bias[rows])


def test_sizes_and_largest_biases_are_kept():
    bias = normal(sum(SIZES), 1)[:, 0]
    offsets = offsets_of(SIZES)
    plain, biased = (take(normal(sum(SIZES), 3), SIZES, "none", given) for given in (None, bias))
    filled = np.flatnonzero(SIZES)
    np.testing.assert_allclose(plain.log_sizes[filled], np.log(np.array(SIZES)[filled]), rtol=1e-15)
    assert plain.bias_max is None
    for cluster in filled:
        inside = bias[offsets[cluster] : offsets[cluster + 1]]
        assert biased.bias_max[cluster] == inside.max()
        assert biased.log_sizes[cluster] == pytest.approx(np.logaddexp.reduce(inside.astype(np.float64)), abs=1e-12)


def test_an_empty_cluster_has_no_mass_and_no_extent():
    moments = take(normal(5, 3), [0, 5, 0], 2)
    for cluster in (0, 2):
        assert moments.log_sizes[cluster] == -np.inf
        assert not moments.means[cluster].any()
        assert not moments.dispersion.forms[cluster].any()
        assert moments.radii[cluster] == moments.dispersion.spread[cluster] == 0


def test_a_cluster_of_one_item_is_the_item_itself():
    vectors = normal(6, 4)
    moments = take(vectors, [1] * 6, 2, log_bias=normal(6, 1)[:, 0])
    assert np.array_equal(moments.means, vectors)
    assert not moments.radii.any()
    assert not moments.dispersion.forms.any()
    assert not moments.dispersion.spread.any()
    assert np.array_equal(moments.log_sizes, normal(6, 1)[:, 0])


@pytest.mark.parametrize("dispersion", ["full", 2, 5])
def test_an_item_of_bias_log_2_counts_as_two_copies_of_it(dispersion):
    vectors = normal(9, 5)
    bias = np.zeros(9, np.float32)
    bias[[2, 6]] = np.log(2)
    once = take(vectors, [9], dispersion, bias)
    twice = take(np.concatenate([vectors, vectors[[2, 6]]]), [11], dispersion)
    np.testing.assert_allclose(once.means, twice.means, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(once.log_sizes, twice.log_sizes, rtol=1e-7)
    queries = normal(20, 5, seed=1).astype(np.float64)
    np.testing.assert_allclose(estimate(once.dispersion, 0, queries), estimate(twice.dispersion, 0, queries), rtol=0.03)


def test_a_common_bias_changes_sizes_only():
    vectors, bias = normal(60, 5), normal(60, 1, seed=1)[:, 0]
    low, high = (take(vectors, [20, 40], 3, bias + np.float32(shift)) for shift in (0, 4096))
    np.testing.assert_allclose(high.means, low.means, atol=2e-3)
    np.testing.assert_allclose(high.log_sizes - low.log_sizes, 4096, atol=1e-3)


def test_extreme_biases_neither_overflow_nor_break_the_bounds():
    vectors = normal(50, 4)
    for bias in (np.linspace(-3e4, 3e4, 50), np.full(50, -1e30), np.full(50, 1e30)):
        check_cluster(take(vectors, [50], 2, bias.astype(np.float32)), 0, vectors, bias.astype(np.float32))


def test_the_packed_full_form_is_the_covariance():
    vectors, queries = normal(80, 7), normal(30, 7, seed=1).astype(np.float64)
    moments = take(vectors, [80], "full")
    assert moments.dispersion.forms.shape == (1, 7 * 8 // 2)
    _, covariance = truth(vectors)
    expected = np.einsum("bi,ij,bj->b", queries, covariance, queries)
    error = np.abs(estimate(moments.dispersion, 0, queries) - expected)
    assert np.all(error <= moments.dispersion.excess[0] * (queries**2).sum(axis=1))
    assert moments.dispersion.excess[0] < 1e-3 * np.trace(covariance)


@pytest.mark.parametrize("size", [5, 80])
def test_a_rank_of_all_dimensions_is_the_full_form(size):
    vectors, queries = normal(size, 7), normal(30, 7, seed=1).astype(np.float64)
    full, rank = (take(vectors, [size], dispersion).dispersion for dispersion in ("full", 7))
    np.testing.assert_allclose(estimate(rank, 0, queries), estimate(full, 0, queries), rtol=0.05)
    assert rank.spread[0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("size", "d"), [(400, 30), (20, 30), (400, 300), (350, 400), (900, 280)])
def test_leading_eigenpairs_are_kept_and_the_rest_of_the_trace_is_spread_evenly(size, d):
    scale = (1 + np.arange(d, dtype=np.float32)) ** -0.7
    vectors = normal(size, d) * scale
    moments = take(vectors, [size], 4)
    _, covariance = truth(vectors)
    values, directions = np.linalg.eigh(covariance)
    values, directions = values[::-1], directions[:, ::-1].T
    spread = values[4:].sum() / (d - 4)
    assert moments.dispersion.spread[0] == pytest.approx(spread, rel=0.01)
    np.testing.assert_allclose(estimate(moments.dispersion, 0, directions[:4]), values[:4], rtol=0.05)
    check_cluster(moments, 0, vectors)
    # Useful as well as true: not far above the largest eigenvalue left out and what eight bits lose of the first.
    assert moments.dispersion.spread[0] + moments.dispersion.excess[0] < 2 * values[4] + 0.03 * values[0]


CASES = {
    "identical": np.full((30, 6), 0.1, np.float32),
    "zero": np.zeros((30, 6), np.float32),
    "two points": np.repeat(normal(2, 6), 15, axis=0),
    "collinear": np.outer(np.linspace(-1, 1, 30), normal(1, 6)).astype(np.float32),
    "coplanar": normal(30, 2) @ normal(2, 6, seed=1),
    "tight far away": np.nextafter(np.float32(1000), np.float32(0)) + np.float32(6e-5) * (normal(30, 6) > 0),
    "one outlier": np.concatenate([1e-6 * normal(29, 6), np.full((1, 6), 1e6)]).astype(np.float32),
    "norms of 1e10": np.float32(1e10) * normal(30, 6),
    "norms of 1e-20": np.float32(1e-20) * normal(30, 6),
    "denormal": np.float32(1e-40) * normal(30, 6),
    "one dimension": normal(30, 1),
    "two items": normal(2, 6),
    "fewer items than dimensions": normal(5, 40),
    "large and norms of 1e-20": np.float32(1e-22) * normal(600, 300),
    "large and norms of 1e15": np.float32(1e14) * normal(600, 300),
    "few items and norms of 1e-20": np.float32(1e-22) * normal(290, 400),
    "isotropic": np.concatenate([np.eye(6), -np.eye(6)]).astype(np.float32),
    "equal eigenvalues cut by the rank": np.concatenate([np.eye(40), -np.eye(40)]).astype(np.float32),
    "large and flat": normal(700, 300),
    "large Gram matrix and flat": normal(300, 500),
    "large and one direction": np.outer(normal(600, 1), normal(1, 300)).astype(np.float32),
    "large and identical": np.full((300, 300), 0.3, np.float32),
    "few items, one outlier": np.concatenate([normal(299, 400), 1e4 * np.ones((1, 400))]).astype(np.float32),
}


@pytest.mark.parametrize("dispersion", ["none", "full", 1, 4, 8])
@pytest.mark.parametrize("name", CASES)
def test_bounds_hold_for_hostile_clusters(name, dispersion):
    check_cluster(take(CASES[name], [len(CASES[name])], dispersion), 0, CASES[name])


def test_a_cluster_read_in_blocks_has_the_moments_of_the_cluster_read_whole(monkeypatch):
    vectors, bias = normal(1000, 6), normal(1000, 1, seed=1)[:, 0]
    whole = take(vectors, [600, 1, 399], 3, bias)
    for part in (module, dispersion):
        monkeypatch.setattr(part, "BLOCK_VALUES", 6 * 64)
    blocks = take(vectors, [600, 1, 399], 3, bias)
    np.testing.assert_allclose(blocks.means, whole.means, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(blocks.dispersion.spread, whole.dispersion.spread, rtol=1e-5)
    np.testing.assert_allclose(blocks.radii, whole.radii, rtol=1e-6)
    check_cluster(blocks, 0, vectors[:600], bias[:600])
    check_cluster(blocks, 2, vectors[601:], bias[601:])


@pytest.mark.parametrize("name", [name for name in CASES if len(CASES[name]) > 40])
@pytest.mark.parametrize("form", ["full", 4])
def test_bounds_hold_where_no_matrix_of_the_cluster_fits_into_memory(name, form, monkeypatch):
    items = CASES[name]
    monkeypatch.setattr(dispersion, "BLOCK_VALUES", 40 * items.shape[1])
    monkeypatch.setattr(module, "WORKING_BYTES", -items.size + 8 * 4000)
    moments = take(items, [len(items)], form)
    assert moments.dispersion.scales.shape == (1, 1 if form == "full" else 4)
    check_cluster(moments, 0, items)


def test_what_is_kept_does_not_depend_on_the_memory(monkeypatch):
    vectors = normal(700, 300) * np.linspace(0.1, 3, 300, dtype=np.float32)
    whole = {form: take(vectors, [300, 400], form).dispersion for form in ("full", 3)}
    monkeypatch.setattr(module, "WORKING_BYTES", -vectors.size + 8 * 4000)
    for form, expected in whole.items():
        found = take(vectors, [300, 400], form).dispersion
        np.testing.assert_allclose(found.scales, expected.scales, rtol=1e-3)
        assert np.all(found.excess >= 0.999 * expected.excess)
        if form == "full":
            # Sums in another order round differently, by one step at most.
            assert np.abs(found.forms.astype(int) - expected.forms).max() <= 1


def test_threads_and_a_memmap_change_nothing(tmp_path):
    vectors = normal(sum(SIZES), 12)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    one, many = take(vectors, SIZES, 3, threads=1), take(mapped, SIZES, 3, threads=3)
    assert np.array_equal(one.means, many.means)
    assert np.array_equal(one.radii, many.radii)
    assert np.array_equal(one.dispersion.excess, many.dispersion.excess)


def test_progress_reaches_its_total():
    calls = []
    measure(
        normal(400, 4),
        offsets_of([4] * 100),
        log_bias=None,
        dispersion=2,
        threads=2,
        report=lambda *call: calls.append(call),
    )
    done = [done for _, done, _ in calls]
    assert done == sorted(done)
    assert calls[-1][1] == calls[-1][2]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 10), st.integers(-30, 30), st.integers(0, 2**32))
def test_bounds_hold_for_any_small_cluster(size, d, rank, exponent, seed):
    random = np.random.default_rng(seed)
    scale = 2.0 ** (exponent + 3 * random.standard_normal(d))
    shift = 2.0**exponent * random.standard_normal(d)
    vectors = (random.integers(-3, 4, (size, d)) * scale + shift).astype(np.float32)
    bias = (5 * random.standard_normal(size)).astype(np.float32)
    check_cluster(take(vectors, [size], min(rank, d), bias, threads=1), 0, vectors, bias)
    check_cluster(take(vectors, [size], "full", threads=1), 0, vectors)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_cones_and_reach_hold_for_every_member(scale):
    rng = np.random.default_rng(2)
    vectors = (scale * (rng.standard_normal((600, 9)) + 0.5)).astype(np.float32)
    vectors[3] = 0.0
    offsets = np.array([0, 1, 200, 200, 600], np.int64)
    moments = measure(vectors, offsets, log_bias=None, dispersion="none", threads=1)
    for cluster, (begin, end) in enumerate(pairwise(offsets)):
        mean, items = moments.means[cluster].astype(np.float64), vectors[begin:end].astype(np.float64)
        items = items[np.linalg.norm(items, axis=1) > 0]
        if len(items):
            cosines = items @ mean / (np.linalg.norm(items, axis=1) * np.linalg.norm(mean))
            assert (cosines >= moments.min_cosine[cluster]).all()
            assert cosines.min() <= moments.min_cosine[cluster] + 1e-6
            assert moments.reach[cluster] == pytest.approx(max(1.0, (items @ mean).max() / (mean @ mean)), rel=1e-6)
