"""Which level a query starts with, and which rows a finer one is read for: costs change, answers do not."""

import numpy as np
import pytest

from softindex import AdaptiveSoftmax
from softindex.adaptive.bounds import ALL, FEW, MANY, Bounds
from softindex.adaptive.goals import BestClasses

N, D = 3000, 512


@pytest.fixture(scope="module")
def layer():
    weights = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32) / np.float32(np.sqrt(D))
    return AdaptiveSoftmax(weights), weights


def planted(weights, logit, spread, seed):
    """A query whose logits are normal with this standard deviation, but for one."""
    rng = np.random.default_rng(seed)
    query = spread * rng.standard_normal(D)
    row = weights[rng.integers(N)].astype(np.float64)
    return (query + (logit - row @ query) / (row @ row) * row).astype(np.float32)


def truth(weights, query):
    logits = weights.astype(np.float64) @ query.astype(np.float64)
    return logits, np.logaddexp.reduce(logits)


QUERIES = [(0.0, 0.3), (0.0, 1.0), (0.0, 2.7), (8.0, 0.5), (16.0, 2.7), (20.0, 2.7), (40.0, 1.0), (60.0, 6.0)]
"""Logit of the planted class, and standard deviation of the others: some start in four bits, some in eight."""


@pytest.mark.parametrize("epsilon", [0.3, 0.01])
@pytest.mark.parametrize("k", [1, 5])
def test_the_best_and_log_z_are_right_from_any_level(layer, epsilon, k):
    soft, weights = layer
    for seed, (logit, spread) in enumerate(QUERIES):
        query = planted(weights, logit, spread, seed)
        found = soft.top_k(query, k, temperature=1.0, epsilon=epsilon)
        logits, log_z = truth(weights, query)
        np.testing.assert_array_equal(found.ids, np.argsort(-logits)[:k])
        assert found.log_partition.low <= log_z <= found.log_partition.high
        assert abs(np.expm1(found.log_partition.value - log_z)) <= epsilon


def test_queries_that_start_at_different_levels_do_not_change_each_other(layer):
    soft, weights = layer
    queries = np.stack([planted(weights, *kind, seed) for seed, kind in enumerate(QUERIES)])
    together = soft.top_k(queries, 3, temperature=1.0)
    backwards = soft.top_k(queries[::-1], 3, temperature=1.0)
    assert len({int(read) for read in together.bytes_read}) > 2
    for place, query in enumerate(queries):
        alone = soft.top_k(query, 3, temperature=1.0)
        for batch, row in ((together, place), (backwards, len(queries) - 1 - place)):
            np.testing.assert_array_equal(batch.ids[row], alone.ids)
            np.testing.assert_array_equal(batch.log_prob[row], alone.log_prob)
            assert batch.log_partition.value[row] == alone.log_partition.value
            assert batch.bytes_read[row] == alone.bytes_read


def test_a_level_that_cannot_settle_a_query_is_not_read(layer):
    soft, weights = layer
    # Radii of several nats in four bits, and of a few tenths in eight.
    found = soft.top_k(planted(weights, 20.0, 2.7, 1), 1, temperature=1.0)
    assert found.guarantee == "deterministic"
    assert N * D <= found.bytes_read <= 1.1 * N * D  # eight bits alone; with four bits before it would be 1.5


def test_the_second_level_is_read_only_for_rows_in_doubt(layer):
    soft, weights = layer
    # Four bits leave log Z unclear, but a minority of the rows makes up most of what is unclear.
    query = planted(weights, 14.0, 1.2, 3)
    found = soft.top_k(query, 1, temperature=1.0, epsilon=0.05)
    assert found.guarantee == "deterministic"
    assert found.ids[0] == truth(weights, query)[0].argmax()
    assert N * D / 2 < found.bytes_read < N * D


def test_noise_is_answered_without_scoring_every_row(layer):
    soft, weights = layer
    found = soft.top_k(np.random.default_rng(5).standard_normal(D).astype(np.float32), 1, temperature=1.0)
    assert found.guarantee == "deterministic"
    assert found.bytes_read < weights.nbytes


@pytest.mark.parametrize("seed", range(8))
def test_exact_scores_of_the_rows_in_doubt_settle_everything(seed):
    rng = np.random.default_rng(seed)
    logits, radii = rng.normal(0, 1 + seed % 4, 800), rng.uniform(0.1, 2.0, 800)
    estimates, goal = logits + rng.uniform(-1, 1, 800) * radii, BestClasses(1 + seed, 0.1)
    bounds = Bounds(estimates, radii, lambda rows: (logits[rows], np.zeros(len(rows))), ALL)
    doubtful = goal.doubtful(bounds)
    bounds.tighten(doubtful, logits[doubtful], np.zeros(len(doubtful)), MANY)
    solution = goal.find(bounds)
    np.testing.assert_array_equal(solution.positions, np.argsort(-logits)[: 1 + seed])
    assert abs(np.expm1(solution.log_partition[0] - np.logaddexp.reduce(logits))) <= 0.1
    # The k best are scored because their logits are returned; Z needs at most one more step.
    assert bounds.scored <= 1 + seed + 64


def test_a_limit_is_a_share_of_the_rows():
    many = np.zeros(8000)
    limits = [Bounds(many, many, lambda rows: (many[rows], many[rows]), share).limit for share in (ALL, MANY, FEW)]
    assert limits == [8000, 2000, 500]
