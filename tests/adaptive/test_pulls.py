"""Estimates from a few columns: nearly unbiased, with honest variances, and exact in the end."""

import numpy as np
import pytest

from softindex.adaptive.columns import HEAVY, transpose
from softindex.adaptive.rows import Rows
from softindex.kernels import LANES, NativePac, _native
from tests.adaptive import twin

EVERYTHING = 10**9


def made(kind, n=6, d=320, seed=0):
    rng = np.random.default_rng(seed)
    weights, query = rng.standard_normal((n, d)), rng.standard_normal(d)
    if kind == "heavy query":
        query[:5] *= 30
    elif kind == "heavy columns":
        weights *= np.exp(rng.standard_normal(d))
    elif kind == "aligned":
        weights[0] = query
    elif kind == "signs":
        query = np.sign(weights[0])
    elif kind == "shared":
        weights = 0.1 * weights + rng.standard_normal(d)
    elif kind == "mostly zeros":
        query[rng.random(d) < 0.7] = 0
    return weights.astype(np.float32), query.astype(np.float32)


KINDS = ("normal", "heavy query", "heavy columns", "aligned", "signs", "shared", "mostly zeros")


def native(weights):
    arrays = transpose(Rows(weights)).arrays()
    return NativePac(weights, arrays, max(1, int(np.count_nonzero(arrays["scales"]))))


def look(layer, query, count, seed=0, target=""):
    """Columns in the order drawn, and estimates, variances and rare terms (3, n) from them."""
    which = np.empty(min(count, len(query)), np.int64)
    found = np.empty((3, layer.n))
    drawn = layer.look(query, seed, which, found, target)
    return which[:drawn], found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 48, 200, EVERYTHING])
@pytest.mark.parametrize("target", _native.targets())
def test_estimates_are_those_of_the_twin(kind, count, target):
    weights, query = made(kind, n=37)
    order, found = look(native(weights), query, count, target=target)
    np.testing.assert_allclose(found, twin.estimate(weights, query, order), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_gives_the_same_bits(kind):
    weights, query = made(kind, n=37)
    first, *others = (look(native(weights), query, 100, target=target) for target in _native.targets())
    for order, found in others:
        np.testing.assert_array_equal(order, first[0])
        np.testing.assert_array_equal(found, first[1])


def test_columns_are_drawn_in_proportion_to_their_weight_and_once():
    weights, query = made("heavy query", d=40)
    layer, importance = native(weights), np.abs(query * transpose(Rows(weights)).scales[:40])
    firsts, seconds = np.zeros(40), np.zeros(40)
    runs = 20_000
    for seed in range(runs):
        order, _ = look(layer, query, 2, seed)
        firsts[order[0]] += 1
        seconds[order[1]] += 1
    shares = importance / importance.sum()
    after = np.array([sum(shares[i] * shares[j] / (1 - shares[i]) for i in range(40) if i != j) for j in range(40)])
    for counts, law in ((firsts, shares), (seconds, after)):
        # 39 degrees of freedom: exceeded with probability 1e-6.
        assert ((counts - runs * law) ** 2 / (runs * law)).sum() < 99
    order, _ = look(layer, query, EVERYTHING)
    assert sorted(order) == list(range(40))


def test_weights_of_any_ratio_are_drawn_to_the_last():
    weights = np.ones((3, 600), np.float32)
    query = (2.0 ** -np.linspace(0, 120, 600)).astype(np.float32)
    order, found = look(native(weights), query, EVERYTHING)
    assert sorted(order) == list(range(600))
    np.testing.assert_allclose(found[0], query.astype(float).sum(), rtol=1e-12)
    # The heaviest come early.
    assert np.mean(order[:20]) < 60


def estimates(kind, count, repeats):
    """Estimates and variances (repeats, n) with a new order of columns each time."""
    weights, query = made(kind)
    layer = native(weights)
    found = np.array([look(layer, query, count, seed)[1] for seed in range(repeats)])
    return weights.astype(float) @ query.astype(float), found[:, 0], found[:, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 12, 48])
def test_estimates_are_nearly_unbiased_and_their_variances_honest(kind, count):
    truth, found, stated = estimates(kind, count, 1500)
    spread = found.std(axis=0)
    # Every term is unbiased. Their weights depend on what was drawn, which leaves a little.
    allowed = 0.0 if count == 1 else 0.15
    assert (np.abs(found.mean(axis=0) - truth) < (allowed + 5 / np.sqrt(len(found))) * spread).all()
    # In the mean over the orders never less than it is by much. More, where a row is like the query: columns of much
    # weight then have large products too, and their ratio varies less than the products do.
    ratio = stated.mean(axis=0) / found.var(axis=0)
    assert (ratio > 0.75).all(), ratio
    assert (ratio < (8 if kind in ("aligned", "signs") else 4)).all(), ratio


@pytest.mark.parametrize("kind", KINDS)
def test_two_standard_deviations_cover_what_they_should(kind):
    truth, found, stated = estimates(kind, 48, 1000)
    covered = (np.abs(found - truth) <= 2 * np.sqrt(stated)).mean()
    assert 0.92 < covered <= 1.0


def test_after_every_column_the_product_is_exact():
    weights, query = made("normal", d=103)
    order, (values, variances, jumps) = look(native(weights), query, EVERYTHING)
    np.testing.assert_allclose(values, weights.astype(float) @ query.astype(float), rtol=1e-12, atol=1e-12)
    assert not variances.any()
    assert not jumps.any()
    assert len(order) == 103


def test_a_row_of_few_numbers_is_known_at_once():
    weights, query = made("normal")
    weights[0], weights[0, [3, 100, 317]] = 0, 5
    _, (values, variances, jumps) = look(native(weights), query, 1)
    assert values[0] == pytest.approx(weights[0].astype(float) @ query.astype(float))
    assert variances[0] == jumps[0] == 0


@pytest.mark.parametrize("count", [12, 40])
@pytest.mark.parametrize("hot", [1.0, 6.0])
def test_the_variance_of_a_few_columns_is_predicted(count, hot):
    # Most orders hit none of them in 48 columns: the variance stated before must be that over all orders.
    rng = np.random.default_rng(0)
    weights, query = rng.standard_normal((300, 4096)).astype(np.float32), rng.choice([-1.0, 1.0], 4096)
    where = rng.choice(4096, count, replace=False)
    weights[0], weights[0, where] = 0, 30
    query[where] *= hot
    layer = native(weights)
    found = np.array([look(layer, query.astype(np.float32), 48, seed)[1][:2, 0] for seed in range(600)])
    assert found[:, 1].min() > 0.7 * found[:, 0].var()


@pytest.mark.parametrize("d", [1, 15, 16, 17, 100, 320])
@pytest.mark.parametrize("n", [1, 5, 15, 16, 21])
def test_every_number_stands_somewhere_once(n, d):
    weights = np.random.default_rng(d).standard_normal((n, d)).astype(np.float32)
    made = transpose(Rows(weights))
    again = made.columns[:d, :n].T.copy()
    assert (np.take_along_axis(again, made.heavy_columns, axis=1) == 0).all()
    np.put_along_axis(again, made.heavy_columns, made.heavy, axis=1)
    np.testing.assert_array_equal(again, weights)
    assert not made.columns[:, n:].any()
    assert not made.columns[d:].any()
    assert not made.scales[d:].any()
    assert made.heavy.shape == (n, min(HEAVY, d))
    # Sixteen numbers can be read from every column on.
    assert made.columns.size >= (d - 1) * made.columns.shape[1] + LANES
    assert made.columns.ctypes.data % (4 * LANES) == 0


def test_columns_without_weight_are_not_read():
    weights, query = made("normal", d=64)
    layer = native(weights)
    assert len(look(layer, np.zeros(64, np.float32), EVERYTHING)[0]) == 0
    query[10:] = 0
    assert sorted(look(layer, query, EVERYTHING)[0]) == list(range(10))
    weights[:, 20:] = 0
    assert len(look(native(weights), made("normal", d=64)[1], EVERYTHING)[0]) <= 20
