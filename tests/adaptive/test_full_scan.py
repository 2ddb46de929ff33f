"""Where estimates cannot win, every row is scored: the answer of float64, on every instruction set and thread count."""

import numpy as np
import pytest

from softindex.adaptive.columns import transpose
from softindex.adaptive.pac import Estimated, quantiles
from softindex.adaptive.rows import Rows
from softindex.kernels import NativePac, PacAnswers, PacExclusions, PacGoal, _native

SCANNED = 2


def scan(weights, queries, k, *, target="", temperature=1.0, exclude=None, threads=1):
    """What the native call answers; estimates are hopeless for an epsilon of 1e-9."""
    arrays, (n, d), b = transpose(Rows(weights)).arrays(), weights.shape, len(queries)
    layer = NativePac(weights, arrays, max(1, int(np.count_nonzero(arrays["scales"]))))
    found = Estimated(
        np.empty((b, k), np.int64), np.empty((b, k)), np.empty((b, k)), np.empty((b, 3)), np.empty((b, 4), np.int64)
    )
    answers = PacAnswers(found.rows, found.scores, found.log_prob, found.log_z, found.costs)
    out = None if exclude is None else PacExclusions(np.array([0, len(exclude)]), np.array(exclude))
    goal = PacGoal(k, 0.3, quantiles(n, d, k, 1e-9), 1 / temperature, 0)
    layer.answer(queries, np.inf, goal, out, threads, answers, target)
    assert (found.costs[:, 0] == SCANNED).all()
    return found


def made(kind, n, d):
    rng = np.random.default_rng([n, d])
    weights, query = rng.standard_normal((n, d)) / np.sqrt(d), rng.standard_normal(d)
    if kind == "equal":
        weights = np.repeat(weights[:1], n, axis=0)
    elif kind == "nearly equal":
        weights = weights[:1] + 1e-7 * weights
    elif kind == "increasing":
        weights = weights[np.argsort(weights @ query)]
    elif kind == "pairs":
        weights = np.repeat(weights[: n // 2 + 1], 2, axis=0)[:n]
    return weights.astype(np.float32), query.astype(np.float32)


# Shorter and longer than the lanes, than rows that are read one by one, and than stretches; with and without a rest.
SHAPES = [(1, 1), (3, 15), (40, 16), (67, 200), (33, 1536), (21, 1537), (60, 2048), (130, 5003)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["normal", "equal", "nearly equal", "increasing", "pairs"])
def test_a_scan_is_that_of_float64(kind, shape):
    weights, query = made(kind, *shape)
    for temperature in (1.0, 1e-6):
        for k in {1, min(4, shape[0]), shape[0]}:
            logits = weights.astype(np.float64) @ query.astype(np.float64) / temperature
            # Rows that are equal have equal sums; NumPy may add them in another order.
            order = np.lexsort((np.arange(shape[0]), -logits.round(9)))[:k]
            seen = [scan(weights, query[None], k, target=each, temperature=temperature) for each in _native.targets()]
            for found in seen:
                if kind != "nearly equal":
                    np.testing.assert_array_equal(logits[found.rows[0]].round(6), logits[order].round(6))
                if kind in ("equal", "pairs"):
                    np.testing.assert_array_equal(found.rows[0], order)
                np.testing.assert_allclose(found.scores[0], temperature * logits[found.rows[0]], rtol=1e-11, atol=1e-11)
                truth, (value, low, high) = np.logaddexp.reduce(logits), found.log_z[0]
                assert low <= truth <= high
                assert abs(value - truth) < 1e-3 + 1e-9 * abs(truth)
                for name in ("rows", "scores", "log_prob", "log_z", "costs"):
                    np.testing.assert_array_equal(getattr(found, name), getattr(seen[0], name))


@pytest.mark.parametrize("kind", ["normal", "equal", "nearly equal", "increasing", "pairs"])
@pytest.mark.parametrize("shape", [(400, 300), (160, 6250), (1000, 2000), (16, 62_500)])
def test_every_row_is_scored_once(kind, shape):
    """Counts numbers, not time: whatever the ties."""
    weights, query = made(kind, *shape)
    n, d = shape
    for k in (1, 5):
        _, rows, multiplications, _ = scan(weights, query[None], k).costs[0]
        assert rows == n
        assert multiplications <= 1.06 * n * d


def test_what_is_excluded_counts_nowhere():
    weights, query = made("normal", 90, 3000)
    logits = weights.astype(np.float64) @ query.astype(np.float64)
    order = np.argsort(-logits)
    exclude = np.sort(order[:20])
    found = scan(weights, query[None], 3, exclude=exclude)
    np.testing.assert_array_equal(found.rows[0], order[20:23])
    assert found.log_z[0, 1] <= np.logaddexp.reduce(logits[order[20:]]) <= found.log_z[0, 2]


def test_the_number_of_threads_changes_nothing():
    weights, query = made("normal", 2100, 4096)
    queries = np.stack([query, -query])
    one, two = (scan(weights, queries, 2, threads=threads) for threads in (1, 2))
    alone = scan(weights, queries[:1], 2, threads=2)
    for name in ("rows", "scores", "log_prob", "log_z"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
        np.testing.assert_array_equal(getattr(one, name)[:1], getattr(alone, name))


def test_numbers_that_are_none_are_reported():
    weights, query = made("normal", 90, 3000)
    weights[50, 2999] = np.nan
    arrays = transpose(Rows(made("normal", 90, 3000)[0])).arrays()
    layer = NativePac(weights, arrays, 3000)
    costs = np.empty((1, 4), np.int64)
    answers = PacAnswers(np.empty((1, 1), np.int64), np.empty((1, 1)), np.empty((1, 1)), np.empty((1, 3)), costs)
    layer.answer(query[None], np.inf, PacGoal(1, 0.3, quantiles(90, 3000, 1, 1e-9), 1.0, 0), None, 1, answers)
    assert costs[0, 0] == 1
