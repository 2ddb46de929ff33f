"""Estimates never cost much more than scoring every row, and say so when every row was scored."""

import numpy as np
import pytest

from softindex import AdaptiveSoftmax, InputError

MOST = 1.25
"""Multiplications, relative to a plain product.  A row that counts twice, or estimates in vain, cost less than it."""


def leading(n, d, ahead, rng):
    """Rows of variance 1 / d, a query of length sqrt(d), and the first row ahead of all others by this much."""
    weights = (rng.standard_normal((n, d)) / np.sqrt(d)).astype(np.float32)
    query = rng.standard_normal(d).astype(np.float32)
    query *= np.float32(np.sqrt(d) / np.linalg.norm(query))
    scores = weights @ query
    weights[0] += ((scores[1:].max() + ahead - scores[0]) / d * query).astype(np.float32)
    return weights, query


def sparse(n, d, rng):
    weights = np.zeros((n, d), np.float32)
    for row in weights:
        row[rng.choice(d, 50, replace=False)] = 2 + rng.random(50)
    return weights, (1 + 0.01 * rng.random(d)).astype(np.float32)


def heavy_tails(n, d, rng):
    weights = (rng.standard_t(2, (n, d)) / np.sqrt(d)).astype(np.float32)
    return weights, 12 * weights[3] / np.linalg.norm(weights[3])


HARD = {
    "12 ahead": lambda rng: leading(100, 10_000, 12, rng),
    "12 ahead, long rows": lambda rng: leading(100, 30_000, 12, rng),
    "12 ahead, many rows": lambda rng: leading(1000, 2000, 12, rng),
    "3 ahead": lambda rng: leading(100, 10_000, 3, rng),
    "40 ahead": lambda rng: leading(300, 4096, 40, rng),
    "noise": lambda rng: leading(300, 4096, 0, rng),
    "equal rows": lambda rng: (np.ones((100, 10_000), np.float32) / 100, np.ones(10_000, np.float32)),
    "sparse": lambda rng: sparse(400, 4096, rng),
    "heavy tails": lambda rng: heavy_tails(200, 10_000, rng),
    "short rows": lambda rng: leading(4000, 300, 12, rng),
}


@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("k", [1, 5])
def test_pac_never_multiplies_much_more_than_a_scan(kind, k):
    rng = np.random.default_rng(0)
    weights, query = HARD[kind](rng)
    soft = AdaptiveSoftmax(weights)
    assert weights.size >= 1e6
    for epsilon in (0.3, 0.01):
        found = soft.top_k(query, k, temperature=1.0, guarantee="pac", epsilon=epsilon)
        assert found.multiplications <= MOST * weights.size


@pytest.mark.parametrize("d", [64, 300, 1000])
def test_short_rows_are_not_estimated(d):
    """The first look at all rows would cost too much of a scan to be worth a try."""
    weights, query = leading(1_200_000 // d, d, 300, np.random.default_rng(0))
    found = AdaptiveSoftmax(weights).top_k(query, 1, temperature=1.0, guarantee="pac")
    assert found.guarantee == "exact"
    assert found.multiplications == weights.size


@pytest.mark.parametrize("kind", HARD)
def test_the_label_says_what_was_done(kind):
    """An answer called exact scored every row, and is that of float64; one called pac did not score them all."""
    rng = np.random.default_rng(1)
    weights, query = HARD[kind](rng)
    found = AdaptiveSoftmax(weights).top_k(query, 3, temperature=1.0, guarantee="pac")
    logits = np.einsum("nd,d->n", weights.astype(np.float64), query.astype(np.float64))
    chances = np.exp(logits - np.logaddexp.reduce(logits))
    if found.guarantee == "exact":
        assert found.multiplications >= weights.size
        np.testing.assert_array_equal(found.ids, np.lexsort((np.arange(len(logits)), -logits))[:3])
        np.testing.assert_allclose(np.exp(found.log_prob), chances[found.ids], rtol=0.3)
        assert found.proven.all()
    else:
        assert found.guarantee == "pac"
        assert found.multiplications < weights.size / 2
        assert not found.proven.any()


def test_pulls_stop_where_they_cannot_win():
    """Long before the budget is spent: the rows' own estimates say how many would stay in doubt."""
    weights, query = leading(100, 30_000, 12, np.random.default_rng(2))
    found = AdaptiveSoftmax(weights).top_k(query, 1, temperature=1.0, guarantee="pac")
    assert found.guarantee == "exact"
    # The scan, the winner again in float64, and what was pulled before.
    assert found.multiplications <= (1 + 0.01 + 0.05) * weights.size


def test_pac_still_wins_where_it_can():
    weights, query = leading(100, 30_000, 300, np.random.default_rng(3))
    found = AdaptiveSoftmax(weights).top_k(query, 1, temperature=1.0, guarantee="pac")
    assert found.guarantee == "pac"
    assert found.ids[0] == 0
    assert found.multiplications <= 0.06 * weights.size


def test_zeros_of_a_query_are_not_multiplied():
    """As in the last layer of a digit classifier: ten long rows, and a query that is mostly zeros."""
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((10, 25_088)).astype(np.float32)
    query = np.where(rng.random(25_088) < 0.16, rng.standard_normal(25_088), 0).astype(np.float32)
    found = AdaptiveSoftmax(weights).top_k(query, 1, temperature=1.0, guarantee="pac")
    assert found.guarantee == "exact"
    assert found.multiplications == 10 * np.count_nonzero(query)
    assert found.items_scored == 10


@pytest.mark.parametrize("wrong", [{"k": True}, {"k": 1.0}, {"epsilon": 1}, {"confidence": 1}, {"temperature": True}])
def test_what_was_checked_once_is_not_taken_for_something_equal(wrong):
    """Checked arguments are remembered, and True equals 1."""
    weights, query = leading(20, 300, 5, np.random.default_rng(5))
    soft, asked = AdaptiveSoftmax(weights), {"k": 1, "epsilon": 0.3, "confidence": 0.9, "temperature": 1}
    soft.top_k(query, guarantee="pac", **asked)
    with pytest.raises(InputError, match=min(wrong)):
        soft.top_k(query, guarantee="pac", **asked | wrong)


def test_one_temperature_may_be_an_array():
    weights, query = leading(20, 300, 5, np.random.default_rng(6))
    soft = AdaptiveSoftmax(weights)
    one, other = (soft.top_k(query, 1, temperature=each, guarantee="pac") for each in (0.5, np.array([0.5])))
    assert one.log_prob == other.log_prob
