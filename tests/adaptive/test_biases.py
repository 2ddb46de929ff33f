"""A layer's bias is divided by the temperature and a log prior is not, whatever the guarantee."""

import numpy as np
import pytest

from softindex import AdaptiveSoftmax

TEMPERATURES = [0.05, 0.5, 1.0, 3.0, 40.0]


@pytest.mark.parametrize("guarantee", ["exact", "deterministic", "calibrated", "pac"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("d", [40, 320])
def test_the_law_is_that_of_both_biases(make_case, guarantee, temperature, d):
    case = make_case(d=d)
    soft = AdaptiveSoftmax(case.weights, case.bias, log_bias=case.log_bias)
    soft.calibrate(case.queries, confidence=0.7)
    best = soft.top_k(case.queries, 4, temperature=temperature, epsilon=0.05, confidence=0.7, guarantee=guarantee)
    wrong = 0
    for row, query in enumerate(case.queries):
        logits = case.logits(query, temperature)
        right = best.ids[row].tolist() == np.argsort(-logits, kind="stable")[:4].tolist()
        log_prob = case.log_prob(query, temperature)[best.ids[row]]
        close = np.abs(np.expm1(best.log_prob[row] - log_prob)).max() <= 0.05
        wrong += not (right and close)
    assert wrong == 0 or guarantee in ("pac", "calibrated")
    assert wrong <= 6


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("exclude", [None, [3, 5, 8, 11]])
def test_estimates_know_both_biases(make_case, temperature, exclude):
    case = make_case(n=400, d=8192, planted=30.0, noise=0.05)
    soft = AdaptiveSoftmax(case.weights, case.bias, log_bias=case.log_bias)
    exclude = None if exclude is None else [*exclude, *case.logits(case.queries[0], 1.0).argsort()[-1:]]
    best = soft.top_k(case.queries, 1, temperature=temperature, guarantee="pac", exclude=exclude, confidence=0.99)
    assert (best.guarantee == "pac").sum() >= 4
    for row, query in enumerate(case.queries):
        log_prob = case.log_prob(query, temperature, exclude or ())
        assert best.ids[row, 0] == log_prob.argmax()
        assert abs(np.expm1(best.log_prob[row, 0] - log_prob.max())) <= 0.3


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_scores_are_the_logits_times_the_temperature(make_case, temperature):
    case = make_case()
    soft = AdaptiveSoftmax(case.weights, case.bias, log_bias=case.log_bias)
    best = soft.top_k(case.queries[0], 5, temperature=temperature)
    expected = case.scores(case.queries[0]) + temperature * case.log_bias.astype(np.float64)
    np.testing.assert_allclose(best.scores, expected[best.ids], rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_bounds_hold_with_large_biases(make_case, scale):
    case = make_case(d=300)
    bias = (scale * np.random.default_rng(3).uniform(-1, 1, len(case.bias))).astype(np.float32)
    for biases in ({"bias": bias}, {"log_bias": bias}, {"bias": bias, "log_bias": -bias}):
        soft = AdaptiveSoftmax(case.weights, **biases)
        for temperature in (0.01, 1.0, 7.0):
            for query in case.queries[:3]:
                dots = case.weights.astype(np.longdouble) @ query.astype(np.longdouble)
                first, second = (np.longdouble(biases.get(name, 0)) for name in ("bias", "log_bias"))
                logits = (dots + first) / np.longdouble(temperature) + second
                log_z = logits.max() + np.log(np.exp(logits - logits.max()).sum())
                for guarantee in ("exact", "deterministic"):
                    z = soft.log_partition(query, temperature=temperature, epsilon=1e-9, guarantee=guarantee)
                    assert z.low <= log_z <= z.high


def test_a_bias_is_a_log_bias_at_temperature_one_only(make_case):
    case = make_case()
    one, other = AdaptiveSoftmax(case.weights, case.bias), AdaptiveSoftmax(case.weights, log_bias=case.bias)
    for temperature, equal in ((1.0, True), (0.5, False)):
        first, second = (
            soft.log_partition(case.queries, temperature=temperature, epsilon=1e-6) for soft in (one, other)
        )
        assert np.allclose(first.value, second.value, atol=1e-5) == equal
