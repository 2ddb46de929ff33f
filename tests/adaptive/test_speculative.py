"""Speculative draws follow the softmax of the layer, whatever the draft proposes."""

import numpy as np
import pytest

import softindex
from softindex.adaptive import speculate
from softindex.records import Draws

N, D, DRAWS = 60, 300, 1200


@pytest.fixture(scope="module")
def layer():
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((N, D)) / np.sqrt(D)).astype(np.float32)
    return softindex.AdaptiveSoftmax(weights), weights, (1.5 * rng.standard_normal(D)).astype(np.float32)


class Fixed:
    """A draft with the same probabilities for every query."""

    def __init__(self, chances):
        self.chances = np.asarray(chances)

    def sample(self, queries, n=1, *, temperature, seed=None, **law):
        ids = np.random.default_rng(seed).choice(len(self.chances), (len(queries), n), p=self.chances)
        return Draws(ids, np.log(self.chances[ids]), np.zeros(len(queries)), 0, "fixed", seed)

    def log_prob(self, queries, ids, *, temperature, **law):
        with np.errstate(divide="ignore"):
            return np.log(self.chances)[ids]


def truth(weights, query, temperature):
    logits = weights.astype(np.float64) @ query.astype(np.float64) / temperature
    return np.exp(logits - np.logaddexp.reduce(logits))


def drafts(weights, chances):
    rng = np.random.default_rng(1)
    return {
        "uniform": Fixed(np.full(N, 1 / N)),
        "the softmax itself": Fixed(chances),
        "half of the classes": Fixed(np.where(np.arange(N) % 2, 2 / N, 0.0)),
        "unrelated": Fixed(rng.dirichlet(np.ones(N))),
        "index": softindex.build(weights, clusters=6),
    }


@pytest.mark.parametrize("name", ["uniform", "the softmax itself", "half of the classes", "unrelated", "index"])
def test_the_draws_follow_the_softmax_of_the_layer(layer, name):
    soft, weights, query = layer
    chances = truth(weights, query, 0.8)
    law = {"method": "2ls", "probes": 0} if name == "index" else {}
    found = speculate(soft, drafts(weights, chances)[name], np.tile(query, (DRAWS, 1)), temperature=0.8, seed=4, **law)
    # Classes in order of probability, in eight groups: the statistic exceeds 29.9 with probability 1e-4.
    order = np.argsort(-chances)
    groups = np.minimum((np.cumsum(chances[order]) * 8).astype(int), 7)
    group_of = np.empty(N, int)
    group_of[order] = groups
    expected = np.bincount(group_of, chances, minlength=8) * DRAWS
    counts = np.bincount(group_of[found.ids], minlength=8)
    assert ((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum() < 29.9
    if name == "the softmax itself":
        assert found.accepted.all()


def test_the_share_of_rejections_is_the_total_variation(layer):
    soft, weights, query = layer
    chances, draft = truth(weights, query, 1.0), np.full(N, 1 / N)
    found = speculate(soft, Fixed(draft), np.tile(query, (DRAWS, 1)), temperature=1.0, seed=5)
    distance = np.maximum(chances - draft, 0).sum()
    # Four standard deviations: one false alarm in 16,000.
    assert abs((~found.accepted).mean() - distance) < 4 * np.sqrt(distance * (1 - distance) / DRAWS)


def test_the_same_seed_draws_the_same(layer):
    soft, weights, query = layer
    index = softindex.build(weights, clusters=6)
    queries = np.stack([query, -query, 0.5 * query])
    first, second = (speculate(soft, index, queries, temperature=[1.0, 0.5, 2.0], seed=6) for _ in range(2))
    np.testing.assert_array_equal(first.ids, second.ids)
    assert first.seed == 6


def test_a_draft_over_other_ids_is_refused(layer):
    soft, weights, query = layer
    index = softindex.build(weights, ids=np.arange(N) + 1000)
    with pytest.raises(softindex.InputError, match="no class of the layer"):
        speculate(soft, index, query[None], temperature=1.0, seed=7)


def test_a_layer_that_cannot_score_everything_is_refused_before_anything_is_drawn(layer):
    _, weights, query = layer
    index = softindex.build(weights)
    with pytest.raises(softindex.InputError, match="expected an AdaptiveSoftmax"):
        speculate(softindex.adaptive.IndexedSoftmax(index), index, query[None], temperature=1.0, seed=7)
