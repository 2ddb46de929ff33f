"""Every temperature: probabilities, draws and nuclei are those of float64, far beyond where rounding exceeds a nat."""

import numpy as np
import pytest

from softindex import AdaptiveSoftmax
from softindex.adaptive.bounds import ALL, Bounds
from softindex.adaptive.goals import DRAWN_EPSILON
from softindex.rejection import draw

TEMPERATURES = [1e-30, *(10.0**power for power in range(-12, 4)), 1e30]
EPSILON = 0.3


class Truth:
    """The softmax of a layer in extended precision, for one query."""

    def __init__(self, weights, query, temperature):
        scores = weights.astype(np.longdouble) @ query.astype(np.longdouble)
        logits = scores / np.longdouble(temperature)
        self.order = np.argsort(-scores, kind="stable")
        shares = np.exp(logits - logits.max())
        self.log_partition = float(logits.max() + np.log(shares.sum()))
        self.log_prob = (logits - logits.max() - np.log(shares.sum())).astype(float)
        self.chances = np.exp(self.log_prob)
        # What float64 may make of the largest logits: a few units of their last digits.
        self.rounding = 64 * 2.0**-52 * float(np.abs(logits).max())


@pytest.fixture(scope="module", params=[(1000, 300), (300, 4096)], ids=["300", "4096"])
def layer(request):
    n, d = request.param
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((n, d)).astype(np.float32)
    soft = AdaptiveSoftmax(weights)
    soft.calibrate(rng.standard_normal((39, d)).astype(np.float32))
    return soft, weights, rng.standard_normal((2, d)).astype(np.float32)


@pytest.mark.parametrize("guarantee", ["exact", "deterministic", "calibrated", "pac"])
def test_probabilities_are_within_epsilon_at_any_temperature(layer, guarantee):
    """The gap between the best two is far above the rounding of scores, so that float64 knows their probabilities."""
    soft, weights, queries = layer
    for temperature in TEMPERATURES:
        found = soft.top_k(queries, 5, temperature=temperature, guarantee=guarantee)
        sums = soft.log_partition(queries, temperature=temperature, guarantee=guarantee)
        for row, query in enumerate(queries):
            truth = Truth(weights, query, temperature)
            best = truth.order[:5]
            listed = soft.log_prob(query, best, temperature=temperature, guarantee=guarantee)
            np.testing.assert_array_equal(np.sort(found.ids[row]), np.sort(best))
            for log_prob, ids in ((found.log_prob[row], found.ids[row]), (listed, best)):
                np.testing.assert_allclose(np.exp(log_prob), truth.chances[ids], rtol=EPSILON, atol=1e-12)
            for low, high in ((sums.low, sums.high), (found.log_partition.low, found.log_partition.high)):
                assert low[row] - truth.rounding <= truth.log_partition <= high[row] + truth.rounding


@pytest.mark.parametrize("options", [{}, {"method": "top-k", "k": 7}, {"method": "top-k"}, {"top_p": 0.9}])
def test_draws_end_and_are_from_the_softmax_at_any_temperature(layer, options):
    soft, weights, queries = layer
    for temperature in TEMPERATURES:
        draws = soft.sample(queries, 20, temperature=temperature, seed=1, **options)
        for row, query in enumerate(queries):
            truth = Truth(weights, query, temperature)
            ids, log_prob = draws.ids[row], draws.log_prob[row]
            assert np.isfinite(log_prob).all()
            if truth.chances.max() > 1 - 1e-9:
                assert set(ids) == {truth.order[0]}
                np.testing.assert_allclose(log_prob, 0, atol=1e-3)
            if not options:
                slack = DRAWN_EPSILON + min(truth.rounding, 1e-3)
                np.testing.assert_allclose(log_prob, truth.log_prob[ids], atol=slack)
                assert (draws.low[row] <= log_prob).all()
                assert (log_prob <= draws.high[row]).all()


def test_a_nucleus_is_the_smallest_at_any_temperature(layer):
    soft, weights, queries = layer
    for temperature in TEMPERATURES:
        found = soft.nucleus(queries, 0.9, temperature=temperature)
        for row, query in enumerate(queries):
            truth = Truth(weights, query, temperature)
            reached = np.cumsum(truth.chances[truth.order])
            assert reached[found.sizes[row] - 1] >= 0.9 - 1e-6
            assert found.sizes[row] == 1 or reached[found.sizes[row] - 2] < 0.9 + 1e-6


def test_rounding_of_scored_rows_is_in_the_bounds_and_not_in_the_estimate():
    values, slack = np.array([50.0, 20.0, 0.0]), 40.0
    bounds = Bounds(values, np.full(3, 41.0), lambda here: (values[here], np.full(len(here), slack)), ALL)
    assert bounds.best(1).tolist() == [0]
    value, low, high = bounds.log_partition(1e-6)
    assert value == pytest.approx(np.logaddexp.reduce(values), abs=1e-6)
    assert low <= value - slack
    assert high >= value + slack
    np.testing.assert_array_equal(bounds.logits(np.array([0])), [50.0])
    np.testing.assert_array_equal(bounds.slacks(np.array([0])), [slack])


def test_bounds_that_are_wrong_end_all_the_same():
    """As calibrated ones may be: logits far above every bound."""
    values = np.array([0.0, 1.0, 5000.0, 4999.0])
    bounds = Bounds(np.zeros(4), np.ones(4), lambda here: (values[here], np.zeros(len(here))), ALL)
    assert bounds.log_partition(1e-3)[0] == pytest.approx(5000.3133, abs=1e-3)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_rejection_scores_every_item_where_proposals_are_never_accepted():
    """Weights that are not those of the bounds: nothing would ever be accepted."""
    logits = np.array([0.0, -1.0, -900.0])
    weights = (0.0, np.array([0.0, 0.0, np.inf]))
    found = draw(np.zeros(3), lambda here: logits[here], 50, np.random.default_rng(0), budget=3, weights=weights)
    assert set(found.positions) == {0, 1}
