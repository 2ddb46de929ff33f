"""A temperature per query: every row of a call is what a call with that temperature alone returns."""

import numpy as np
import pytest

import softindex
from softindex.laws import METHODS, PROVEN_METHODS, TREE_METHODS

RNG = np.random.default_rng(0)
ITEMS = RNG.standard_normal((400, 20)).astype(np.float32)
QUERIES = RNG.standard_normal((25, 20)).astype(np.float32)
EACH = np.geomspace(0.05, 5.0, 25)


@pytest.fixture(scope="module")
def index():
    bias = RNG.standard_normal(400).astype(np.float32)
    return softindex.build(ITEMS, clusters=20, tree=True, codes=True, log_bias=bias)


def check_draws(draws, alone, row):
    np.testing.assert_array_equal(draws.ids[row], alone.ids)
    np.testing.assert_array_equal(draws.log_prob[row], alone.log_prob)
    np.testing.assert_array_equal(draws.error[row], alone.error)
    if draws.log_partition is not None:
        np.testing.assert_array_equal(draws.log_partition.value[row], alone.log_partition.value)
    if draws.low is not None:
        np.testing.assert_array_equal(draws.low[row], alone.low)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"replace": False}, {"exclude": [3, 4]}, {"top_p": 0.9}, {"allow": [1, 2, 3]}])
def test_each_query_draws_at_its_own(index, method, options):
    draws = index.sample(QUERIES, 1, temperature=EACH, method=method, seed=3, **options)
    law = index.log_prob(QUERIES, draws.ids, temperature=EACH.tolist(), method=method, **options)
    for row in range(25):
        alone = index.sample(QUERIES[row], 1, temperature=EACH[row], method=method, seed=3, **options)
        check_draws(draws, alone, row)
        part = index.log_prob(QUERIES[row], alone.ids, temperature=EACH[row], method=method, **options)
        np.testing.assert_array_equal(law[row], part)


@pytest.mark.parametrize("method", [method for method in METHODS if method not in (*TREE_METHODS, "top-k")])
def test_each_log_partition_is_at_its_own(index, method):
    found = index.log_partition(QUERIES, temperature=EACH, method=method)
    for row in range(25):
        alone = index.log_partition(QUERIES[row], temperature=EACH[row], method=method)
        assert found.value[row] == alone.value
        if method in PROVEN_METHODS:
            assert (found.low[row], found.high[row]) == (alone.low, alone.high)


def test_top_k_and_masses(index):
    best = index.top_k(QUERIES, 10, temperature=EACH)
    masses, _, _ = index.cluster_log_masses(QUERIES, temperature=EACH, method="sd-2ls")
    for row in range(25):
        alone = index.top_k(QUERIES[row], 10, temperature=EACH[row])
        np.testing.assert_array_equal(best.ids[row], alone.ids)
        np.testing.assert_array_equal(best.scores[row], alone.scores)
        part, _, _ = index.cluster_log_masses(QUERIES[row : row + 1], temperature=EACH[row], method="sd-2ls")
        np.testing.assert_array_equal(masses[row], part[0])


def test_a_calibration_covers_a_call_if_it_covers_every_temperature(index):
    rng = np.random.default_rng(1)
    made = index.calibrate(rng.standard_normal((60, 20)).astype(np.float32), temperatures=[0.05, 0.5, 5.0])
    draws = made.sample(QUERIES, temperature=EACH, seed=0)
    assert draws.confidence is not None
    found = made.log_partition(QUERIES, temperature=EACH, confidence=0.8)
    for row in range(25):
        alone = made.sample(QUERIES[row], temperature=EACH[row], seed=0)
        assert draws.error[row] == alone.error
        one = made.log_partition(QUERIES[row], temperature=EACH[row], confidence=0.8)
        assert (found.low[row], found.high[row]) == (one.low, one.high)
    assert made.sample(QUERIES, temperature=EACH * 1.5, seed=0).confidence is None


def test_adaptive_softmax():
    rng = np.random.default_rng(2)
    layer = softindex.AdaptiveSoftmax(rng.standard_normal((700, 300)).astype(np.float32), rng.standard_normal(700) / 2)
    queries, each = rng.standard_normal((9, 300)).astype(np.float32), np.geomspace(1.0, 20.0, 9)
    each[4] = each[3]
    gone = [[row] for row in range(9)]
    for guarantee in ("deterministic", "exact", "pac"):
        best = layer.top_k(queries, 5, temperature=each, guarantee=guarantee, exclude=gone)
        law = layer.log_prob(queries, best.ids, temperature=each, guarantee=guarantee, exclude=gone)
        z = layer.log_partition(queries, temperature=each, guarantee=guarantee, exclude=gone)
        for row in range(9):
            asked = {"temperature": each[row], "guarantee": guarantee, "exclude": gone[row]}
            alone = layer.top_k(queries[row], 5, **asked)
            np.testing.assert_array_equal(best.ids[row], alone.ids)
            np.testing.assert_allclose(best.scores[row], alone.scores, rtol=1e-12)
            np.testing.assert_allclose(law[row], layer.log_prob(queries[row], alone.ids, **asked), rtol=1e-12)
            assert z.value[row] == pytest.approx(layer.log_partition(queries[row], **asked).value, rel=1e-12)
    for options in ({}, {"method": "top-k", "k": 20}, {"top_p": 0.5}):
        draws = layer.sample(queries, 4, temperature=each, seed=1, **options)
        for row in range(9):
            check_draws(draws, layer.sample(queries[row], 4, temperature=each[row], seed=1, **options), row)
    nucleus = layer.nucleus(queries, 0.3, temperature=each)
    for row in range(9):
        assert nucleus.sizes[row] == layer.nucleus(queries[row], 0.3, temperature=each[row]).sizes


class Products:
    """A similarity that is the dot product, without torch."""

    def spec(self):
        return softindex.mol.SimilaritySpec(1, 1, 20, 1.0, False, None, None, False)

    def item_side(self, items):
        return softindex.mol.ItemSide(np.asarray(items, np.float32)[:, None], None)


def test_learned_similarities():
    index = softindex.mol.build(Products(), ITEMS)
    for method in ("exact", "candidates"):
        draws = index.sample(QUERIES, 5, temperature=EACH, seed=4, method=method)
        for row in range(25):
            alone = index.sample(QUERIES[row], 5, temperature=EACH[row], seed=4, method=method)
            np.testing.assert_array_equal(draws.ids[row], alone.ids)
            np.testing.assert_array_equal(draws.log_prob[row], alone.log_prob)
            assert draws.error[row] == alone.error


@pytest.mark.parametrize(
    ("temperature", "message"),
    [
        (EACH[:-1], "one per query"),
        (np.stack([EACH, EACH]), "one per query"),
        ([True] * 25, "one per query"),
        (["a"] * 25, "one per query"),
        ([], "one per query"),
        (np.where(np.arange(25) == 3, np.nan, EACH), "temperature of query 3 is nan"),
        (np.where(np.arange(25) == 7, 0.0, EACH), "temperature of query 7 is 0"),
        (-EACH, "temperature of query 0 is -0.05"),
    ],
)
def test_what_is_no_temperature_for_each_is_refused(index, temperature, message):
    layer = softindex.AdaptiveSoftmax(ITEMS)
    for ask in (
        lambda t: index.sample(QUERIES, temperature=t),
        lambda t: index.log_prob(QUERIES, [1], temperature=t),
        lambda t: index.log_partition(QUERIES, temperature=t),
        lambda t: index.top_k(QUERIES, 1, temperature=t),
        lambda t: layer.sample(QUERIES, temperature=t),
    ):
        with pytest.raises(softindex.InputError, match=message):
            ask(temperature)


def test_one_query_may_come_with_an_array_of_one(index):
    draws = index.sample(QUERIES[0], 3, temperature=np.array([0.5]), seed=0)
    np.testing.assert_array_equal(draws.ids, index.sample(QUERIES[0], 3, temperature=0.5, seed=0).ids)
