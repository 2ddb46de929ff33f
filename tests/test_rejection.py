"""Rejection under upper bounds draws from the softmax itself, however wide the bounds and small the budget."""

import numpy as np
import pytest

from softindex.rejection import choose, draw
from softindex.testing import chi_square_score


def logits_and_bounds(width, m=200, seed=0):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal(m)
    return logits, logits + width * rng.random(m)


@pytest.mark.parametrize("width", [0.0, 0.5, 5.0, 60.0])
@pytest.mark.parametrize("budget", [1, 20, 10_000])
def test_draws_fit_the_softmax_for_any_bounds_and_budget(width, budget):
    logits, upper = logits_and_bounds(width)
    upper[7] = -np.inf
    chances = np.where(np.isfinite(upper), np.exp(logits), 0)
    counts = np.zeros(len(logits))
    # Few draws per call: what is scored within a call must not show in the draws.
    for seed in range(3000):
        accepted = draw(upper, lambda rows: logits[rows], 5, np.random.default_rng([seed, budget]), budget=budget)
        np.testing.assert_array_equal(accepted.logits, logits[accepted.positions])
        counts += np.bincount(accepted.positions, minlength=len(logits))
    assert chi_square_score(counts, chances / chances.sum()) < 4.5


@pytest.mark.parametrize("width", [0.0, 5.0, 60.0, 2000.0])
@pytest.mark.parametrize("share", [0, 50, 200])
def test_weights_of_the_caller_may_be_larger_than_they_must(width, share):
    logits, upper = logits_and_bounds(width)
    known, peak = np.arange(share), float(upper.max()) + 1.0
    weights = 1.3 * np.exp(upper - peak)
    upper[known] = logits[known]
    counts = np.zeros(len(logits))
    for seed in range(3000):
        drawn = draw(
            upper,
            lambda rows: logits[rows],
            5,
            np.random.default_rng([seed, share]),
            budget=100,
            known=known,
            weights=(peak, weights.copy()),
        )
        counts += np.bincount(drawn.positions, minlength=len(logits))
    assert chi_square_score(counts, np.exp(logits) / np.exp(logits).sum()) < 4.5


def test_no_item_is_scored_twice_and_known_ones_never():
    logits, upper = logits_and_bounds(3.0)
    known = np.arange(0, 200, 3)
    upper[known] = logits[known]
    seen = []

    def score(rows):
        seen.extend(rows.tolist())
        return logits[rows]

    accepted = draw(upper, score, 500, np.random.default_rng(0), budget=10_000, known=known)
    assert len(seen) == len(set(seen)) == accepted.scored
    assert not set(seen) & set(known.tolist())


def test_hopeless_bounds_end_in_scoring_everything_once():
    logits, upper = logits_and_bounds(0.0, m=5000)
    upper += np.random.default_rng(1).random(5000) * 1e5
    accepted = draw(upper, lambda rows: logits[rows], 100, np.random.default_rng(0), budget=50)
    assert accepted.scored == 5000


def test_good_bounds_score_few_items():
    logits, upper = logits_and_bounds(1e-6, m=100_000)
    assert draw(upper, lambda rows: logits[rows], 3, np.random.default_rng(0), budget=10_000).scored < 30


def test_an_item_without_weight_is_never_chosen():
    weights = np.array([0.0, 1.0, 0.0, 2.0, 0.0])
    assert set(choose(weights, 1000, np.random.default_rng(0)).tolist()) == {1, 3}

    class Last:
        def random(self, n):
            return np.full(n, np.nextafter(1.0, 0.0))

    assert choose(weights, 1, Last())[0] == 3
