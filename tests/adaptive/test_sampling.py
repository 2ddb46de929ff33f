"""Draws fit the softmax, the softmax of the k best or a nucleus, and state their log-probability."""

import numpy as np
import pytest

import softindex
from softindex import AdaptiveSoftmax
from softindex.adaptive.goals import DRAWN_EPSILON
from softindex.testing import chi_square_score

OPTIONS = [{}, {"method": "top-k", "k": 9}, {"method": "top-k"}, {"top_p": 0.8}]


def layer(case):
    return AdaptiveSoftmax(case.weights, case.bias, log_bias=case.log_bias)


@pytest.mark.parametrize("d", [30, 300])
@pytest.mark.parametrize("planted", [2.0, 20.0])
def test_draws_are_from_the_softmax(make_case, d, planted):
    case = make_case(n=60, d=d, planted=planted)
    query, soft = case.queries[0], layer(case)
    log_prob = case.log_prob(query, 0.7)
    draws = soft.sample(query, 40_000, temperature=0.7, seed=1)
    assert chi_square_score(np.bincount(draws.ids, minlength=60), np.exp(log_prob)) < 4.5
    np.testing.assert_allclose(draws.log_prob, log_prob[draws.ids], atol=DRAWN_EPSILON)
    assert draws.method == "exact"
    assert draws.error == 0
    assert draws.seed == 1


def test_few_draws_at_a_time_are_from_the_softmax_too(make_case):
    case = make_case(n=2000, d=256, scale=3.0, planted=5.0)
    soft, counts = layer(case), np.zeros(2000)
    for seed in range(1500):
        counts += np.bincount(soft.sample(case.queries[0], 2, temperature=1.0, seed=seed).ids, minlength=2000)
    assert chi_square_score(counts, np.exp(case.log_prob(case.queries[0], 1.0))) < 4.5


@pytest.mark.parametrize(("n", "planted"), [(300, 2.0), (3000, 25.0)])
@pytest.mark.parametrize("temperature", [0.05, 0.5, 5.0])
def test_bounds_hold_the_true_log_probability(make_case, n, planted, temperature):
    case = make_case(n=n, planted=planted)
    soft, exclude = layer(case), [1, 2, 3]
    draws = soft.sample(case.queries, 5, temperature=temperature, exclude=exclude, seed=0)
    for row, query in enumerate(case.queries):
        logits = case.logits(query, temperature, exclude)
        log_z, truth = np.logaddexp.reduce(logits), case.log_prob(query, temperature, exclude)[draws.ids[row]]
        slack = 1e-13 * np.abs(logits[np.isfinite(logits)]).max()
        assert draws.log_partition.low[row] - slack <= log_z <= draws.log_partition.high[row] + slack
        assert (draws.low[row] - slack <= truth).all()
        assert (truth <= draws.high[row] + slack).all()
        assert (draws.low[row] <= draws.log_prob[row]).all()
        assert (draws.log_prob[row] <= draws.high[row]).all()
        assert (draws.high[row] - draws.low[row] <= 2.1 * DRAWN_EPSILON).all()


@pytest.mark.parametrize("epsilon", [0.5, 0.05])
def test_an_epsilon_makes_draws_cheaper_and_not_less_exact(make_case, epsilon):
    case = make_case(n=3000, d=512, planted=17.0)
    soft, query = AdaptiveSoftmax(case.weights), case.queries[0]
    logits = case.weights.astype(np.float64) @ query.astype(np.float64)
    log_prob = logits - np.logaddexp.reduce(logits)
    draws = soft.sample(query, 40_000, temperature=1.0, seed=1, epsilon=epsilon)
    assert chi_square_score(np.bincount(draws.ids, minlength=3000), np.exp(log_prob)) < 4.5
    assert (np.abs(np.expm1(log_prob[draws.ids] - draws.log_prob)) <= epsilon / (1 - epsilon) + 1e-9).all()
    assert (draws.low <= log_prob[draws.ids]).all()
    assert (log_prob[draws.ids] <= draws.high).all()
    few, many = (soft.sample(case.queries, temperature=1.0, seed=1, epsilon=one) for one in (epsilon, None))
    assert few.items_scored.sum() < many.items_scored.sum()
    for refused in ({"top_p": 0.5}, {"method": "top-k"}):
        with pytest.raises(softindex.InputError, match="epsilon is for draws from all classes"):
            soft.sample(query, temperature=1.0, epsilon=epsilon, **refused)


def test_draws_read_less_where_few_classes_stand_out(make_case):
    case = make_case(n=5000, d=512, planted=60.0)
    draws = AdaptiveSoftmax(case.weights).sample(case.queries, 3, temperature=1.0, seed=0)
    assert (draws.items_scored < 600).all()


@pytest.mark.parametrize("d", [30, 300])
def test_draws_among_the_k_best(make_case, d):
    case = make_case(n=60, d=d, planted=2.0)
    query, soft = case.queries[0], layer(case)
    chances = np.exp(case.log_prob(query, 0.7))
    best = np.argsort(-chances)[:10]
    draws = soft.sample(query, 40_000, temperature=0.7, method="top-k", k=10, seed=2)
    assert set(draws.ids) <= set(best)
    among = chances / chances[best].sum()
    assert chi_square_score(np.bincount(draws.ids, minlength=60)[best], among[best]) < 4.5
    np.testing.assert_allclose(draws.log_prob, np.log(among[draws.ids]), atol=1e-9)
    left_out = 1 - chances[best].sum()
    # An upper bound, with Z known within one per cent.
    assert left_out <= draws.error <= left_out + 0.03
    assert draws.method == "top-k"
    assert soft.sample(query, temperature=0.7, method="top-k").error == 0


def test_draws_from_a_nucleus(make_case):
    case = make_case(n=60, d=300, planted=2.0)
    query, soft = case.queries[0], layer(case)
    chances = np.exp(case.log_prob(query, 2.0))
    nucleus = soft.nucleus(query, 0.7, temperature=2.0).ids
    draws = soft.sample(query, 40_000, temperature=2.0, top_p=0.7, seed=2)
    among = chances / chances[nucleus].sum()
    assert set(draws.ids) == set(nucleus)
    assert chi_square_score(np.bincount(draws.ids, minlength=60)[nucleus], among[nucleus]) < 4.5
    np.testing.assert_allclose(draws.log_prob, np.log(among[draws.ids]), atol=1e-9)
    assert draws.error == 0


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("d", [40, 300])
def test_a_query_has_the_same_draws_in_any_batch_and_order(make_case, options, d):
    case = make_case(n=60, d=d, planted=2.0)
    soft, batch = layer(case), np.concatenate([case.queries[:5], case.queries[:1]])

    def draw(queries, seed=3, threads=2):
        return soft.sample(queries, 8, temperature=1.0, seed=seed, threads=threads, **options)

    drawn = draw(batch)
    assert drawn.ids.shape == drawn.log_prob.shape == (6, 8)
    assert drawn.error.shape == drawn.items_scored.shape == drawn.log_partition.value.shape == (6,)
    np.testing.assert_array_equal(draw(batch[4::-1]).ids, drawn.ids[4::-1])
    for row in range(5):
        alone = draw(batch[row], threads=1)
        np.testing.assert_array_equal(alone.ids, drawn.ids[row])
        np.testing.assert_array_equal(alone.log_prob, drawn.log_prob[row])
        assert isinstance(alone.error, float)
        assert alone.items_scored == drawn.items_scored[row]
    # A copy draws differently, and so does another seed.
    assert (drawn.ids[5] != drawn.ids[0]).any()
    assert (draw(batch[0], seed=4).ids != drawn.ids[0]).any()


def test_a_fresh_seed_is_reported(make_case):
    case = make_case(n=60)
    soft = layer(case)
    first = soft.sample(case.queries[0], 20, temperature=9.0)
    np.testing.assert_array_equal(soft.sample(case.queries[0], 20, temperature=9.0, seed=first.seed).ids, first.ids)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"n": 0}, "n is 0"),
        ({"method": "top-p"}, "there is no method 'top-p'; use one of exact, top-k"),
        ({"k": 3}, "k is for method 'top-k' only"),
        ({"method": "top-k", "k": 3, "top_p": 0.5}, "top_p does not go with method 'top-k'"),
        ({"method": "top-k", "k": 61}, "k is 61; expected one integer from 1 to 60"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(make_case, options, sentence):
    case = make_case(n=60)
    with pytest.raises(softindex.InputError, match=sentence):
        layer(case).sample(case.queries, **{"temperature": 1.0, **options})
