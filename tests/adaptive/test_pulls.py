"""Estimates from a few coordinates: nearly unbiased, with honest variances, and exact in the end."""

import numpy as np
import pytest

from softindex.adaptive.pulls import HEAVY, permute
from softindex.adaptive.rows import Rows
from softindex.kernels import LANES, _native, reference


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
    return weights.astype(np.float32), query.astype(np.float32).astype(np.float64)


KINDS = ("normal", "heavy query", "heavy columns", "aligned", "signs")


def estimates(kind, blocks, repeats):
    """Estimates and variances (repeats, n) with a new order of columns and of blocks each time."""
    weights, query = made(kind)
    arms, found, stated = np.arange(len(weights)), [], []
    for seed in range(repeats):
        pulled = permute(Rows(weights), seed).start(query, np.random.default_rng([seed, 1]))
        pulled.pull(arms, blocks)
        value, variance, _ = pulled.estimate(arms)
        found.append(value)
        stated.append(variance)
    return weights.astype(float) @ query, np.array(found), np.array(stated)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [1, 3, 12])
def test_estimates_are_nearly_unbiased_and_their_variances_honest(kind, blocks):
    truth, found, stated = estimates(kind, blocks, 1500)
    spread = found.std(axis=0)
    # Every term is unbiased. Their weights depend on what was drawn, which leaves a little where there are few blocks.
    allowed = 0.0 if blocks == 1 else 0.15
    assert (np.abs(found.mean(axis=0) - truth) < (allowed + 5 / np.sqrt(len(found))) * spread).all()
    # In the mean over the orders never less than it is by much. More, where a row is like the query: blocks of much
    # weight then have large products too, and their ratio varies less than the products do; and where a row is longer
    # than others, as its length counts.
    ratio = stated.mean(axis=0) / found.var(axis=0)
    assert (ratio > 0.75).all(), ratio
    assert (ratio < (8 if kind == "aligned" else 4)).all(), ratio


@pytest.mark.parametrize("kind", KINDS)
def test_two_standard_deviations_cover_what_they_should(kind):
    truth, found, stated = estimates(kind, 6, 1000)
    covered = (np.abs(found - truth) <= 2 * np.sqrt(stated)).mean()
    assert 0.92 < covered <= 1.0


def test_after_every_block_the_product_is_exact():
    weights, query = made("normal", d=103)
    pulled = permute(Rows(weights), 1).start(query, np.random.default_rng(0))
    arms = np.arange(len(weights))
    pulled.pull(arms, 10**9)
    value, variance, _ = pulled.estimate(arms)
    np.testing.assert_allclose(value, weights.astype(float) @ query, rtol=1e-5, atol=1e-5)
    assert (variance == 0).all()
    assert pulled.multiplications == len(weights) * (len(pulled.drawn) * LANES + HEAVY)


def test_a_row_of_few_numbers_is_known_at_once():
    weights, query = made("normal")
    weights[0], weights[0, [3, 100, 317]] = 0, 5
    pulled = permute(Rows(weights), 1).start(query, np.random.default_rng(0))
    pulled.pull(np.arange(len(weights)), 1)
    value, variance, jump = pulled.estimate(np.arange(1))
    assert value[0] == pytest.approx(weights[0].astype(float) @ query)
    assert variance[0] == jump[0] == 0


@pytest.mark.parametrize("count", [12, 40])
@pytest.mark.parametrize("hot", [1.0, 6.0])
def test_the_variance_of_a_few_columns_is_predicted(count, hot):
    # Most orders hit none of them in three blocks: the variance stated before must be that over all orders.
    rng = np.random.default_rng(0)
    weights, query = rng.standard_normal((300, 4096)).astype(np.float32), rng.choice([-1.0, 1.0], 4096)
    where = rng.choice(4096, count, replace=False)
    weights[0], weights[0, where] = 0, 30
    query[where] *= hot
    rows, found, stated = permute(Rows(weights), 0), [], []
    for seed in range(600):
        pulled = rows.start(query, np.random.default_rng([seed, 1]))
        pulled.pull(np.arange(1), 3)
        value, variance, _ = pulled.estimate(np.arange(1))
        found.append(value[0])
        stated.append(variance[0])
    assert min(stated) > 0.7 * np.var(found)


@pytest.mark.parametrize("d", [1, 15, 16, 17, 100, 320])
def test_every_column_stands_somewhere_once(d):
    weights = np.arange(1, d + 1, dtype=np.float32)[None]
    rows = permute(Rows(weights), 3)
    found = rows.blocks[:, 0].ravel()
    placed = rows.place(weights[0]).ravel()
    np.testing.assert_array_equal(np.sort(placed[placed > 0]), weights[0])
    # What is not in the blocks is among the heavy numbers.
    np.testing.assert_array_equal(np.sort([*found[found > 0], *rows.heavy[0]]), weights[0])
    np.testing.assert_array_equal(rows.heavy[0], rows.heavy_columns[0] + 1)
    np.testing.assert_array_equal(found, np.where(np.isin(placed, rows.heavy), 0, placed))


def test_blocks_without_weight_are_not_read():
    weights, query = made("normal", d=64)
    assert len(permute(Rows(weights), 0).start(np.zeros(64), np.random.default_rng(0)).drawn) == 0
    weights[:, 3:] = 0
    assert 1 <= len(permute(Rows(weights), 0).start(query, np.random.default_rng(0)).drawn) <= 3


def test_heavy_coordinates_come_first():
    weights, query = made("heavy query")
    rows = permute(Rows(weights), 0)
    marked = np.zeros(weights.shape[1], np.float32)
    marked[:5] = 1
    heavy = set(np.flatnonzero(rows.place(marked).any(axis=1)).tolist())
    firsts = [rows.start(query, np.random.default_rng(seed)).drawn[0] for seed in range(200)]
    assert np.mean([first in heavy for first in firsts]) > 1.5 * len(heavy) / len(rows.blocks)


@pytest.mark.parametrize("target", _native.targets())
def test_a_pull_does_what_it_says(target):
    rng = np.random.default_rng(0)
    n, which = 7, np.array([2, 0, 4, 1, 3, 5, 6, 8, 7])
    blocks = rng.standard_normal((9, n, LANES)).astype(np.float32)
    queries = rng.standard_normal((9, LANES)).astype(np.float32)
    scales, weights = rng.random(9) + 1, rng.random(9) + 0.5
    arms, state = np.array([0, 3, 6]), rng.random((5, n))
    expected = state.copy()
    for r, block in enumerate(which):
        reference.pull(expected, blocks[block], queries[r], arms, scales[r], weights[r])
    _native.pull(blocks, which, queries, arms, scales, weights, state, target)
    np.testing.assert_allclose(state, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="no such row"):
        _native.pull(blocks, which, queries, np.array([7]), scales, weights, state, target)
