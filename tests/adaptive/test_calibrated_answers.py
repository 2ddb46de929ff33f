"""Answers that were calibrated for a question are wrong about as often as their confidence allows."""

import numpy as np
import pytest

from softindex import AdaptiveSoftmax, InputError
from softindex.adaptive.conformal import critical

CONFIDENCE, EPSILON = 0.9, 0.3


def made(kind, n=600, d=320):
    """Weights, and what makes m queries."""
    rng = np.random.default_rng(1)
    weights = (rng.standard_normal((n, d)) / np.sqrt(d)).astype(np.float32)
    if kind == "planted":
        return weights, lambda m: (
            2 * rng.standard_normal((m, d)) + rng.uniform(0, 15, (m, 1)) * weights[rng.integers(n, size=m)]
        ).astype(np.float32)
    if kind == "heavy tails":
        weights = (rng.standard_t(3, (n, d)) / np.sqrt(d)).astype(np.float32)
        return weights, lambda m: 2 * rng.standard_t(4, (m, d)).astype(np.float32)
    return weights, lambda m: 2 * rng.standard_normal((m, d)).astype(np.float32)


def is_wrong(found, weights, query):
    logits = weights.astype(np.float64) @ query.astype(np.float64)
    log_prob = (logits - np.logaddexp.reduce(logits))[found.ids]
    best = np.argsort(-logits)[: len(found.ids)]
    return set(found.ids) != set(best) or (np.abs(np.expm1(found.log_prob - log_prob)) > EPSILON).any()


@pytest.mark.parametrize("kind", ["normal", "planted", "heavy tails"])
@pytest.mark.parametrize("k", [1, 3])
def test_answers_are_wrong_no_more_often_than_allowed(kind, k):
    weights, queries = made(kind)
    soft = AdaptiveSoftmax(weights)
    options = {"temperature": 1.0, "epsilon": EPSILON, "threads": 1}
    soft.calibrate(queries(99), confidence=CONFIDENCE, k=k, **options)
    tried, options = queries(200), options | {"confidence": CONFIDENCE, "guarantee": "calibrated"}
    found = soft.top_k(tried, k, **options)
    wrong = sum(is_wrong(soft.top_k(query, k, **options), weights, query) for query in tried)
    # A share of Beta(10, 90) of 200: above 51 with probability 1e-4, and above 0 unless answers need no radius at all.
    assert wrong <= 51
    soft.calibrate(queries(99), confidence=CONFIDENCE, threads=1)
    careful = soft.top_k(tried, k, **options)
    assert found.bytes_read.mean() <= careful.bytes_read.mean()
    assert found.items_scored.mean() < careful.items_scored.mean()


def test_other_questions_keep_the_calibration_of_scores():
    weights, queries = made("normal")
    plain, asked, held = AdaptiveSoftmax(weights), AdaptiveSoftmax(weights), queries(59)
    plain.calibrate(held, confidence=CONFIDENCE, threads=1)
    asked.calibrate(held, confidence=CONFIDENCE, k=1, temperature=1.0, epsilon=EPSILON, threads=1)
    query = queries(1)[0]
    for change in ({"k": 2}, {"temperature": 0.5}, {"epsilon": 0.1}, {"exclude": [3]}):
        options = {"k": 1, "temperature": 1.0, "epsilon": EPSILON, "confidence": CONFIDENCE} | change
        first, second = (soft.top_k(query, guarantee="calibrated", **options) for soft in (plain, asked))
        np.testing.assert_array_equal(first.log_prob, second.log_prob)
        assert first.bytes_read == second.bytes_read


def test_a_fraction_is_right_with_all_above_it():
    assert critical(lambda fraction: fraction > 0.01, 0.5) == pytest.approx(10 ** (-2 + 0.1), rel=0.3)
    # What fails in between counts, though smaller ones are right again.
    assert critical(lambda fraction: not 0.05 < fraction < 0.2, 0.5) >= 0.2
    assert critical(lambda fraction: True, 0.5) == 0
    assert critical(lambda fraction: False, 0.5) >= 0.5


def test_a_question_must_be_one_that_can_be_asked():
    soft = AdaptiveSoftmax(made("normal")[0])
    for wrong in ({"k": 0}, {"k": 601}, {"k": 1, "temperature": 0}, {"k": 1, "epsilon": 2}):
        with pytest.raises(InputError):
            soft.calibrate(np.ones((59, 320), np.float32), confidence=CONFIDENCE, **wrong)
