"""Exclusions from clusters too large to scan for a few lost items: the law, its draws and its slates."""

import numpy as np
import pytest

import softindex
from softindex.kernels import reference
from softindex.testing import chi_square_score

LAW = {"temperature": 1.0, "probes": 1}
"""Flat, and one cluster probed: the masses of most others are estimates."""


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "biased"])
def made(request):
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((4000, 12)).astype(np.float32) / 3
    bias = rng.standard_normal(4000).astype(np.float32) / 2 if request.param else None
    return softindex.build(vectors, clusters=10, log_bias=bias), rng.standard_normal(12).astype(np.float32) * 2


def definition(index, query, excluded):
    """The law in float64, in the order in which items are stored, from the masses of the law of all items."""
    items = index.items
    logits = items.scores(slice(None), query.astype(np.float64)) / LAW["temperature"]
    logits += 0.0 if items.log_bias is None else items.log_bias
    masses = index.cluster_log_masses(query[None], method="sd-2ls", **LAW)[0][0]
    split = lambda values: np.split(values, items.offsets[1:-1])  # noqa: E731
    gone = np.isin(index.ids, excluded)
    left = reference.masses_without(masses, split(logits), split(gone))
    logits[gone] = -np.inf
    true = np.array([reference.log_sum_exp(part) for part in split(logits)])
    # Nothing is left of a cluster whose sum is zero.
    inside = logits - np.repeat(np.where(np.isneginf(true), 0.0, true), index.sizes)
    return inside + np.repeat(left - reference.log_sum_exp(left), index.sizes)


def cases(index):
    rng = np.random.default_rng(0)
    law = index.log_prob(np.ones(12) / 4, index.ids, temperature=1.0)
    largest = np.argmax(index.sizes)
    members = index.ids[index.items.offsets[largest] : index.items.offsets[largest + 1]]
    return {
        "one": index.ids[:1],
        "scattered": rng.choice(4000, 60, replace=False),
        "many": rng.choice(4000, 3000, replace=False),
        "few of a cluster": members[:20],
        "most of a cluster": members[: len(members) // 2],
        "a cluster": members,
        "the best": index.ids[np.argsort(-law)[:40]],
    }


@pytest.mark.parametrize("case", ["one", "scattered", "many", "few of a cluster", "most of a cluster", "a cluster"])
def test_the_law_is_its_definition(made, case):
    index, query = made
    excluded = cases(index)[case]
    law = index.log_prob(query, index.ids, exclude=excluded, **LAW)
    assert np.exp(law).sum() == pytest.approx(1, abs=1e-6)
    np.testing.assert_array_equal(np.isneginf(law), np.isin(index.ids, excluded))
    np.testing.assert_allclose(law, definition(index, query, excluded), atol=2e-5)


def test_the_definition_differs_from_the_scan_of_every_cluster_that_lost_items(made):
    """Otherwise the tests above would test nothing; both are within the error of the estimated masses."""
    index, query = made
    excluded = cases(index)["scattered"]
    law = index.log_prob(query, index.ids, exclude=excluded, **LAW)
    scanned = reference.conditional_law(
        index.log_prob(query, index.ids, **LAW), np.flatnonzero(np.isin(index.ids, excluded))
    )
    apart = 0.5 * np.abs(np.exp(law) - np.exp(scanned)).sum()
    assert 1e-7 < apart < 0.01


@pytest.mark.parametrize("case", ["scattered", "the best"])
def test_frequencies_fit_the_law(made, case):
    """Chi-square on 100,000 draws; false alarm about 3e-7 a case."""
    index, query = made
    excluded = cases(index)[case]
    law = index.log_prob(query, np.arange(4000), exclude=excluded, **LAW)
    draws = index.sample(query, 100_000, exclude=excluded, seed=1, **LAW)
    np.testing.assert_array_equal(draws.log_prob, law[draws.ids])
    assert chi_square_score(np.bincount(draws.ids, minlength=4000), np.exp(law)) < 5


def test_steps_of_a_slate_are_the_law_of_what_is_left(made):
    index, query = made
    excluded = cases(index)["scattered"]
    draws = index.sample(query, 300, replace=False, exclude=excluded, seed=2, **LAW)
    assert not np.isin(draws.ids, excluded).any()
    assert len(np.unique(draws.ids)) == 300
    for step in (0, 1, 2, 50, 150, 299):
        before = np.concatenate([excluded, draws.ids[:step]])
        law = index.log_prob(query, draws.ids[step : step + 1], exclude=before, **LAW)
        assert draws.log_prob[step] == pytest.approx(law[0], abs=1e-5)


def test_an_excluded_item_that_dominates_its_cluster_is_not_subtracted():
    """Its cluster is scanned, and what is left keeps its digits."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((3000, 8)).astype(np.float32)
    index = softindex.build(vectors, clusters=6)
    query = vectors[17] * 3
    law = index.log_prob(query, np.arange(3000), temperature=0.1)
    best = np.argsort(-law)[:3]
    part = index.log_prob(query, np.arange(3000), temperature=0.1, exclude=best)
    np.testing.assert_allclose(part, reference.conditional_law(law, best), rtol=1e-6, atol=2e-6)


def test_few_exclusions_score_few_items():
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((60_000, 16)).astype(np.float32) / 4
    index = softindex.build(vectors, clusters=60)
    query = vectors[0]
    plain = index.sample(query, temperature=1.0, probes=1, seed=0).items_scored
    excluded = rng.choice(60_000, 200, replace=False)
    part = index.sample(query, temperature=1.0, probes=1, seed=0, exclude=excluded)
    assert part.items_scored < plain + 200 + 2 * index.sizes.max()
    log_partition = index.log_partition(query, temperature=1.0, exclude=excluded, probes=1)
    left = np.setdiff1d(np.arange(60_000), excluded)
    truth = reference.log_sum_exp(vectors[left].astype(np.float64) @ query.astype(np.float64))
    assert log_partition.value == pytest.approx(truth, abs=0.05)
