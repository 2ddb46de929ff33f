"""pac keeps its probability where rows live in few columns, tails are heavy, or equal signs stand together."""

import numpy as np
import pytest

from softindex import AdaptiveSoftmax
from softindex.adaptive.columns import transpose
from softindex.adaptive.rows import Rows
from softindex.quantiles import normal_quantile
from tests.adaptive import twin

EPSILON, N, D = 0.3, 200, 8192


def noise(rng, scale=0.003):
    return (scale * rng.standard_normal((N, D))).astype(np.float32), rng.choice([-1.0, 1.0], D).astype(np.float32)


def dense(query, logit):
    """A row of this logit, spread over all columns."""
    return np.sign(query) * (logit / np.abs(query).sum())


def heavy_columns(count):
    """The best row lives in columns that no other has; the next is spread out."""

    def make(rng):
        weights, query = noise(rng)
        where = rng.choice(D, count, replace=False)
        weights[:, where] = 0
        weights[0], weights[1] = 0, dense(query, 26.0)
        weights[0, where] = query[where] * 30 / count
        return weights, query

    return make


def heavy_competitors(count):
    """The best row is spread out; twenty others share columns that no other has."""

    def make(rng):
        weights, query = noise(rng)
        where = rng.choice(D, count, replace=False)
        weights[:20] = 0
        weights[1:20, where] = query[where] * 26 / count
        weights[0] = dense(query, 34.0)
        return weights, query

    return make


def sparse(count):
    """Every row has few numbers, in columns of its own, but for the best one, which is spread out."""

    def make(rng):
        weights = np.zeros((N, D), np.float32)
        for row in weights:
            row[rng.choice(D, count, replace=False)] = 8 / count
        weights[0] = 15 / D
        return weights, (1 + 0.01 * rng.random(D)).astype(np.float32)

    return make


def hot_query(count):
    """The query is large where the best row lives, and other rows there are like elsewhere."""

    def make(rng):
        weights, query = noise(rng, 0.001)
        where = rng.choice(D, count, replace=False)
        query[where] *= 6
        weights[0], weights[1] = 0, dense(query, 22.0)
        weights[0, where] = np.sign(query[where]) * 30 / (6 * count)
        return weights, query

    return make


def heavy_tails(freedom):
    """Numbers of Student's t, and a query that leans to a row."""

    def make(rng):
        weights = rng.standard_t(freedom, (N, D))
        weights /= np.linalg.norm(weights, axis=1, keepdims=True)
        query = 30 * weights[0] + 0.05 * rng.standard_t(freedom, D)
        return weights.astype(np.float32), query.astype(np.float32)

    return make


def heavy_tailed_columns(freedom):
    """Columns and queries whose sizes are of Student's t."""

    def make(rng):
        weights, query = rng.standard_normal((N, D)) * rng.standard_t(freedom, D), rng.standard_t(freedom, D)
        weights *= 2 / (weights @ query).std()
        weights[0] += query * (25 / (query @ query))
        return weights.astype(np.float32), query.astype(np.float32)

    return make


def runs_of_signs(length):
    """Neighbours have the same sign, so that blocks of neighbours would have large products that cancel."""

    def make(rng):
        weights = np.repeat(rng.choice([-1.0, 1.0], (N, D // length)), length, axis=1) * 30 / D
        weights -= weights.mean(axis=1, keepdims=True)
        weights[0], weights[1] = 12 / D, weights[1] + 8 / D
        return weights.astype(np.float32), np.ones(D, np.float32)

    return make


FAMILIES = {
    **{f"{count} heavy columns": heavy_columns(count) for count in (1, 2, 8, 12)},
    **{f"{count} heavy columns of competitors": heavy_competitors(count) for count in (1, 2, 8, 12)},
    **{f"rows of {count}": sparse(count) for count in (1, 4, 64, 512)},
    **{f"{count} hot columns": hot_query(count) for count in (4, 64, 512)},
    **{f"Student's t of {freedom}": heavy_tails(freedom) for freedom in (2, 3)},
    **{f"columns of Student's t of {freedom}": heavy_tailed_columns(freedom) for freedom in (2, 3)},
    **{f"runs of {length}": runs_of_signs(length) for length in (16, 512)},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_it_fails_no_more_often_than_it_may(name):
    delta, runs, failures, estimated = 0.05, 40, 0, 0
    for seed in range(2):
        rng = np.random.default_rng([seed, 7])
        weights, query = FAMILIES[name](rng)
        soft = AdaptiveSoftmax(weights, seed=seed)
        # Something small makes every query another one, with an order of its own.
        queries = query * (1 + 1e-4 * rng.random((runs // 2, 1))).astype(np.float32)
        found = soft.top_k(queries, 1, temperature=1.0, confidence=1 - delta, guarantee="pac", epsilon=EPSILON)
        logits = queries.astype(float) @ weights.astype(float).T
        chances = np.exp(logits - np.logaddexp.reduce(logits, axis=1)[:, None])
        best = chances.argmax(axis=1)
        near = np.abs(np.exp(found.log_prob[:, 0]) / chances[np.arange(len(best)), best] - 1) <= EPSILON
        failures += int((~((found.ids[:, 0] == best) & near)).sum())
        estimated += int((found.guarantee == "pac").sum())
    assert failures <= delta * runs + 2 * np.sqrt(delta * runs)
    assert not name.startswith(("1 ", "2 ", "4 ", "8 ", "rows of 1", "rows of 4")) or estimated


def test_bounds_hold_where_all_rows_share_a_component():
    """Errors of all rows then have the same sign, and the shares of a softmax of estimates are off by a factor."""
    n, d, delta, runs, outside, wrong = 200, 16_384, 0.01, 100, 0, 0
    for seed in range(2):
        rng = np.random.default_rng([seed, 11])
        query = rng.standard_normal(d)
        query *= np.sqrt(d) / np.linalg.norm(query)
        shared = rng.standard_normal(d)
        shared -= query * (shared @ query) / d
        weights = ((0.1 * rng.standard_normal((n, d)) + shared) / np.sqrt(d)).astype(np.float32)
        weights[0] += ((10.3 - weights[0] @ query) / d * query).astype(np.float32)
        queries = (query * (1 + 1e-4 * rng.random((runs // 2, 1)))).astype(np.float32)
        found = AdaptiveSoftmax(weights, seed=seed).top_k(
            queries, 1, temperature=1.0, confidence=1 - delta, guarantee="pac", epsilon=EPSILON
        )
        truth = np.logaddexp.reduce(queries.astype(float) @ weights.astype(float).T, axis=1)
        outside += int(((truth < found.log_partition.low) | (truth > found.log_partition.high)).sum())
        wrong += int((found.ids[:, 0] != 0).sum())
    # More than five of a hundred at a rate of 0.01: probability 5e-4.
    assert outside <= 5
    assert wrong <= 5


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_the_bounds_of_the_twin_hold_where_rows_share_a_component(scale):
    """The law itself, on every draw, not only where the answer is accepted: low <= log Z <= high."""
    rng = np.random.default_rng(3)
    n, d, delta, runs = 50, 4096, 0.02, 300
    query = rng.standard_normal(d).astype(np.float32)
    shared = rng.standard_normal(d)
    shared -= query * (shared @ query) / (query @ query)
    weights = (scale * (0.1 * rng.standard_normal((n, d)) + shared) / d).astype(np.float32)
    truth = np.logaddexp.reduce(weights.astype(float) @ query.astype(float))
    importance, outside = np.abs(query * transpose(Rows(weights)).scales[:d].astype(float)), 0
    for _ in range(runs):
        values, variances, jumps = twin.estimate(weights, query, twin.draw(importance, rng, 64))
        low, high = twin.log_z_bounds(values, variances, jumps, 64, normal_quantile(delta))
        outside += not low <= truth <= high
    # Binomial of 300 at 0.02: above 16 with probability 5e-4.
    assert outside <= 16
