"""The compiled mixture computes what the float64 reference says, on every set of kernels, within the stated error."""

import numpy as np
import pytest
from made_similarities import gate, unit

from softindex.fields import flatten
from softindex.kernels import NativeMixture, targets
from softindex.mol import SimilaritySpec
from softindex.mol.reference import logits, scores
from softindex.mol.score_errors import DOUBLE, SINGLE, ErrorBounds
from softindex.mol.scorer import pack

SHAPES = [
    (1, 1, 1, 1, 1),
    (2, 3, 7, 5, 50),
    (8, 4, 32, 128, 300),
    (4, 4, 33, 64, 49),
    (5, 1, 3, 6, 24),
    (1, 6, 8, 2, 97),
]
NONE = np.zeros(2, np.int64), np.zeros(0, np.int64)


def made(shape, *, gated=True, crossed=True, scale=1.0, seed=0):
    parts_q, parts_x, d, hidden, n = shape
    rng = np.random.default_rng(seed)
    pairs = parts_q * parts_x
    spec = SimilaritySpec(
        parts_q, parts_x, d, 0.05, True, gate(rng, pairs, hidden, scale) if gated else None, None, crossed
    )
    items, queries = unit(rng.standard_normal((n, parts_x, d))), unit(rng.standard_normal((5, parts_q, d)))
    item_gates = rng.standard_normal((n, pairs)).astype(np.float32) if crossed else None
    query_gates = rng.standard_normal((5, pairs)).astype(np.float32) if crossed else None
    return spec, items, queries, item_gates, query_gates


def compiled(spec, items, item_gates, target, **more):
    arrays = more | {"components": items, "averages": np.ascontiguousarray(items.mean(axis=1))}
    arrays |= {} if item_gates is None else {"gates": item_gates}
    arrays |= {} if spec.gate is None else flatten(spec.gate, "gate.")
    return NativeMixture(arrays, spec.query_components, target)


def scaled(spec, queries):
    return (queries / np.float64(spec.temperature)).astype(np.float32)


def packed(spec, queries):
    return pack(scaled(spec, queries))


def everything(b, n):
    return np.arange(b + 1) * n, np.tile(np.arange(n), b)


def bounds(spec, queries, items, query_gates, item_gates, unit_):
    lengths = np.linalg.norm(items.astype(np.float64), axis=2).max(axis=0)
    largest_gates = None if item_gates is None else np.abs(item_gates).max(axis=0).astype(np.float64)
    limits = ErrorBounds(spec, lengths, largest_gates)
    return limits.errors(limits.sizes(queries.astype(np.float64), query_gates), unit_)


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("gated", "crossed"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_scores_are_those_of_the_reference_within_the_stated_error(target, shape, gated, crossed, scale):
    spec, items, queries, item_gates, query_gates = made(shape, gated=gated, crossed=crossed, scale=scale)
    native, n = compiled(spec, items, item_gates, target), len(items)
    true = scores(spec, queries, items, query_gates, item_gates)
    found = np.empty(5 * n, np.float32)
    native.score_listed(packed(spec, queries), query_gates, *everything(5, n), 2, found)
    error = bounds(spec, queries, items, query_gates, item_gates, SINGLE).score
    assert (np.abs(found.reshape(5, n) - true) <= error[:, None]).all()
    precise = np.empty(5 * n)
    wide = None if query_gates is None else query_gates.astype(np.float64)
    native.score_precisely(pack(queries / np.float64(spec.temperature)), wide, *everything(5, n), 2, precise)
    error = bounds(spec, queries, items, query_gates, item_gates, DOUBLE).score
    assert (np.abs(precise.reshape(5, n) - true) <= 2 * error[:, None] + 1e-13).all()


@pytest.mark.parametrize("target", targets())
def test_scores_are_as_good_as_a_plain_float32_computation(target):
    spec, items, queries, item_gates, query_gates = made((8, 4, 32, 128, 300))
    native = compiled(spec, items, item_gates, target)
    true = scores(spec, queries, items, query_gates, item_gates)
    found = np.empty(5 * 300, np.float32)
    native.score_listed(packed(spec, queries), query_gates, *everything(5, 300), 1, found)
    w = spec.gate
    plain = np.einsum("bpd,nrd->bnpr", scaled(spec, queries), items).reshape(5, 300, 32)

    def silu(x):
        return x / (1 + np.exp(-x))

    with np.errstate(over="ignore"):
        z = silu(plain @ w.first.T + w.first_bias) @ w.second.T + w.second_bias + query_gates[:, None] * item_gates
        weights = np.exp(silu(z) - silu(z).max(axis=2, keepdims=True))
    plain = (weights * plain).sum(axis=2) / weights.sum(axis=2)
    assert np.abs(found.reshape(5, 300) - true).mean() <= 2 * np.abs(plain - true).mean()


@pytest.mark.parametrize("target", targets())
def test_a_score_does_not_depend_on_the_place_the_neighbours_or_the_threads(target):
    spec, items, queries, item_gates, query_gates = made((8, 4, 32, 128, 300))
    native = compiled(spec, items, item_gates, target)
    all_scores = np.empty(5 * 300, np.float32)
    native.score_listed(packed(spec, queries), query_gates, *everything(5, 300), 1, all_scores)
    order = np.random.default_rng(0).permutation(300)[:77]
    for threads in (1, 3):
        some = np.empty(5 * 77, np.float32)
        native.score_listed(packed(spec, queries), query_gates, np.arange(6) * 77, np.tile(order, 5), threads, some)
        np.testing.assert_array_equal(some.reshape(5, 77), all_scores.reshape(5, 300)[:, order])
        positions, best = np.empty((5, 20), np.int64), np.empty((5, 20), np.float32)
        native.best(packed(spec, queries), query_gates, *NONE, threads, positions, best)
        expected = np.lexsort((np.tile(np.arange(300), (5, 1)), -all_scores.reshape(5, 300)))[:, :20]
        np.testing.assert_array_equal(positions, expected)
        np.testing.assert_array_equal(best, np.take_along_axis(all_scores.reshape(5, 300), expected, 1))


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("shape", SHAPES)
def test_largest_logits_and_the_best_of_each_pair_are_found(target, shape):
    spec, items, queries, item_gates, _ = made(shape)
    n = len(items)
    native, keep = compiled(spec, items, item_gates, target), min(7, n)
    largest, listed = np.empty((5, n), np.float32), np.empty((5, spec.pairs, keep), np.int64)
    native.largest(packed(spec, queries), *NONE, 2, largest, listed)
    true = logits(spec, queries, items)
    np.testing.assert_allclose(largest, true.max(axis=2), rtol=0, atol=2e-4)
    for q in range(5):
        for p in range(spec.pairs):
            kept = np.sort(true[q, listed[q, p], p])
            np.testing.assert_allclose(kept, np.sort(true[q, :, p])[n - keep :], rtol=0, atol=2e-4)


@pytest.mark.parametrize("target", targets())
def test_long_lists_share_blocks_of_items_and_give_the_same_scores(target):
    # A block of 4 MB holds 1,016 of these items, and lists are long enough on average to be cut at its ends.
    spec, items, queries, item_gates, query_gates = made((2, 4, 256, 8, 3000))
    native, query = compiled(spec, items, item_gates, target), packed(spec, queries)
    every = np.arange(3000)
    lists = [every, every[::2], every[900:1100], every[:0], every[::-1]]
    offsets, positions = np.cumsum([0, *map(len, lists)]), np.concatenate(lists)
    found = np.empty(len(positions), np.float32)
    native.score_listed(query, query_gates, offsets, positions, 2, found)
    for begin in range(0, 3000, 50):
        some = np.arange(begin, begin + 50)
        alone = np.empty((5, 50), np.float32)
        native.score_listed(query, query_gates, np.arange(6) * 50, np.tile(some, 5), 1, alone.reshape(-1))
        for q, (start, listed) in enumerate(zip(offsets[:-1], lists, strict=True)):
            here = np.flatnonzero((listed >= begin) & (listed < begin + 50))
            assert np.array_equal(found[start + here], alone[q, listed[here] - begin])
    best, scores = np.empty((5, 20), np.int64), np.empty((5, 20), np.float32)
    native.best_listed(query[:3], query_gates[:3], offsets[:4], positions[: offsets[3]], 2, best[:3], scores[:3])
    for q, listed in enumerate(lists[:3]):
        own = found[offsets[q] : offsets[q + 1]]
        order = np.lexsort((listed, -own))[:20]
        assert np.array_equal(best[q], listed[order])
        assert np.array_equal(scores[q], own[order])


def test_ties_go_to_the_first_positions_and_excluded_items_are_not_seen():
    spec, items, queries, _, _ = made((3, 2, 5, 9, 1), crossed=False)
    items = np.ascontiguousarray(np.repeat(items, 500, axis=0))
    native = compiled(spec, items, None, "")
    positions, best = np.empty((5, 10), np.int64), np.empty((5, 10), np.float32)
    for threads in (1, 4):
        native.best(packed(spec, queries), None, *NONE, threads, positions, best)
        np.testing.assert_array_equal(positions, np.tile(np.arange(10), (5, 1)))
    native.best(packed(spec, queries), None, np.array([0, 2]), np.array([0, 3]), 2, positions, best)
    np.testing.assert_array_equal(positions[0], [1, 2, 4, 5, 6, 7, 8, 9, 10, 11])
    native.best_average(queries[:, 0].copy(), np.array([0, 2]), np.array([0, 3]), 2, positions)
    np.testing.assert_array_equal(positions[0], [1, 2, 4, 5, 6, 7, 8, 9, 10, 11])
    native.best(packed(spec, queries), None, np.array([0, 495]), np.arange(495), 2, positions, best)
    assert (positions[:, 5:] == -1).all()


def test_shapes_that_do_not_fit_are_refused():
    spec, items, queries, item_gates, query_gates = made((3, 2, 5, 9, 30))
    native = compiled(spec, items, item_gates, "")
    positions, best = np.empty((5, 10), np.int64), np.empty((5, 10), np.float32)
    with pytest.raises(ValueError, match="gates"):
        native.best(packed(spec, queries), None, *NONE, 1, positions, best)
    with pytest.raises(ValueError, match="fit"):
        native.best(packed(spec, queries[:, :, :2]), query_gates, *NONE, 1, positions, best)
    with pytest.raises(ValueError, match="no such item"):
        native.score_listed(
            packed(spec, queries), query_gates, np.arange(6), np.full(5, 30), 1, np.empty(5, np.float32)
        )
