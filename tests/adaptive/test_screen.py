"""Scores in four and eight bits are never farther from the truth than their radius."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softindex.adaptive.rows import Rows
from softindex.adaptive.screen import Screen, encode
from softindex.kernels import _native, padded, reference


def truth(rows, query):
    return rows.astype(np.longdouble) @ query.astype(np.longdouble)


def assert_within(weights, queries):
    screen = encode(Rows(weights))
    for level in screen.levels:
        for query, scores in zip(queries, screen.score(level, queries.astype(np.float64), 2), strict=True):
            away = np.abs(truth(weights, query) - scores.values.astype(np.longdouble))
            assert (away <= scores.radii).all(), (level.bits, float((away / scores.radii).max()))
    return screen


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 12),
    d=st.integers(1, 200),
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["normal", "heavy columns", "sparse", "huge", "tiny", "signs", "zero"]),
)
def test_no_score_is_farther_off_than_its_radius(n, d, seed, kind):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d))
    if kind == "heavy columns":
        rows *= 10.0 ** rng.uniform(-6, 6, d)
    elif kind == "sparse":
        rows *= rng.random((n, d)) < 0.1
    elif kind == "huge":
        rows *= 1e13
    elif kind == "tiny":
        rows *= 1e-30
    elif kind == "signs":
        rows = np.sign(rows)
    elif kind == "zero":
        rows[:] = 0
    weights = rows.astype(np.float32)
    queries = (rng.standard_normal((3, d)) * 10.0 ** rng.uniform(-8, 8)).astype(np.float32)
    # The query that an error is worst for: along what a row loses.
    screen = encode(Rows(weights))
    lost = weights[0] - screen.levels[-1].scales[0] * screen.levels[-1].codes[0] * screen.columns
    queries[1] = np.nan_to_num(lost) if np.abs(lost).max() > 0 else queries[1]
    queries[2] = 0
    assert_within(weights, queries)


def test_the_worst_query_comes_close_to_the_radius():
    # Otherwise the radius would be wider than it must be. The columns are alike, so that they are not scaled.
    weights = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    screen = encode(Rows(np.sign(weights) * np.abs(weights).clip(0.5)))
    level = screen.levels[-1]
    rows = np.sign(weights) * np.abs(weights).clip(0.5)
    lost = rows[0] / screen.columns - level.scales[0] * level.codes[0].astype(float)
    query = (lost / screen.columns).astype(np.float32).astype(float)
    (scores,) = screen.score(level, query[None], 1)
    assert abs(rows[0].astype(float) @ query - scores.values[0]) > 0.9 * scores.radii[0]


@pytest.mark.parametrize("target", _native.targets())
@pytest.mark.parametrize(("n", "d"), [(1, 1), (5, 15), (9, 64), (4, 1000), (3, 5000), (7, 2049)])
def test_integer_products_are_exact_on_every_target(target, n, d):
    rng = np.random.default_rng(d)
    codes = rng.choice([-127, 127], (n, d)).astype(np.int8)
    queries = np.zeros((5, padded(d)), np.int16)
    queries[:, :d] = rng.choice([-16383, 16383], (5, d))
    dots = np.empty((5, n), np.int64)
    _native.screen(codes, queries, dots, 2, None, target)
    np.testing.assert_array_equal(dots, queries[:, :d].astype(np.int64) @ codes.T.astype(np.int64))
    which = rng.integers(n, size=3)
    named = np.empty((5, 3), np.int64)
    _native.screen(codes, queries, named, 2, which, target)
    np.testing.assert_array_equal(named, dots[:, which])
    chunks = -(-d // 64)
    packed = rng.choice([0, 15, 240, 255], (n, chunks * 32)).astype(np.uint8)
    small = rng.choice([-127, 127], (5, chunks * 64)).astype(np.int8)
    _native.screen_nibbles(packed, small, dots, 2, None, target)
    np.testing.assert_array_equal(dots, small.astype(np.int64) @ reference.unpack_nibbles(packed).T)
    _native.screen_nibbles(packed, small, named, 2, which, target)
    np.testing.assert_array_equal(named, dots[:, which])


@pytest.mark.parametrize("target", _native.targets())
@pytest.mark.parametrize("d", [1, 15, 16, 100, 4097])
def test_products_in_double_are_the_same_on_every_target(target, d):
    rng = np.random.default_rng(d)
    rows, query = rng.standard_normal((6, d)).astype(np.float32), rng.standard_normal(d)
    which, dots, expected = np.array([5, 0, 0, 3]), np.empty(4), np.empty(4)
    _native.double_dots(rows, which, query, dots, target)
    _native.double_dots(rows, which, query, expected, "baseline")
    np.testing.assert_array_equal(dots, expected)
    np.testing.assert_allclose(dots, rows[which].astype(float) @ query, rtol=1e-12, atol=1e-13)


def test_named_rows_have_the_scores_that_all_rows_have():
    rng = np.random.default_rng(0)
    screen = encode(Rows(rng.standard_normal((40, 300)).astype(np.float32)))
    query, rows = screen.prepare(rng.standard_normal(300)), np.array([3, 3, 39, 0])
    for level in screen.levels:
        (every,), some = level.score([query], 1), level.score_rows(query, rows, 1)
        np.testing.assert_array_equal(some.values, every.values[rows])
        np.testing.assert_array_equal(some.radii, every.radii[rows])


def test_a_row_that_does_not_exist_is_refused():
    codes, dots = np.zeros((3, 64), np.int8), np.empty((1, 1), np.int64)
    with pytest.raises(ValueError, match="no such row"):
        _native.screen(codes, np.zeros((1, 64), np.int16), dots, 1, np.array([3]))


def test_a_screen_is_made_again_from_its_arrays():
    weights = np.random.default_rng(0).standard_normal((20, 70)).astype(np.float32)
    screen = encode(Rows(weights))
    again = Screen.from_arrays(screen.arrays())
    query = np.random.default_rng(1).standard_normal((1, 70))
    for first, second in zip(screen.levels, again.levels, strict=True):
        np.testing.assert_array_equal(screen.score(first, query, 1)[0].values, again.score(second, query, 1)[0].values)


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_are_as_precise_as_their_bits(bits):
    weights = np.random.default_rng(0).standard_normal((50, 512)).astype(np.float32)
    screen = encode(Rows(weights))
    level = next(level for level in screen.levels if level.bits == bits)
    assert np.median(level.errors / screen.lengths) < (0.012 if bits == 8 else 0.14)
