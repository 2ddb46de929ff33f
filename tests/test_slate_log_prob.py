"""`log_prob(replace=False)`: the log-probability of each step of an ordered slate, exactly as `sample` reports it."""

import itertools

import numpy as np
import pytest

import softindex
from probed_indexes import conditioned
from softindex.kernels import reference
from softindex.laws import METHODS

every_method = pytest.mark.parametrize("method", METHODS)
OPTIONS = [
    {},
    {"exclude": [3, 5, 8]},
    {"exclude": list(range(0, 300, 2))},
    {"exclude": [[1, 2]] * 10 + [None] * 10 + [list(range(200))] * 10},
    {"allow": list(range(40))},
    {"allow": list(range(290)), "exclude": [7]},
    {"top_p": 0.9},
    {"top_p": 0.95, "exclude": [[4, 9]] * 30},
]


def made(n=300, d=6, *, biased=True, **options):
    rng = np.random.default_rng(3)
    log_bias = rng.standard_normal(n).astype(np.float32) if biased else None
    index = softindex.build(
        rng.standard_normal((n, d)).astype(np.float32), clusters=17, log_bias=log_bias, tree=True, **options
    )
    return index, rng.standard_normal((30, d)).astype(np.float32)


@every_method
@pytest.mark.parametrize("number", range(len(OPTIONS)))
@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_it_is_what_sample_reported_bit_for_bit(method, number, temperature):
    index, queries = made()
    asked = {"temperature": temperature, "method": method, "replace": False, **OPTIONS[number]}
    n = 8 if temperature == 2.0 or "top_p" not in asked else 1
    draws = index.sample(queries, n, seed=number, **asked)
    np.testing.assert_array_equal(index.log_prob(queries, draws.ids, **asked), draws.log_prob)
    np.testing.assert_array_equal(draws.slate_log_prob, draws.log_prob.sum(axis=1))
    alone = index.sample(queries[3], n, seed=1, **asked) if number not in (3, 7) else None
    if alone is not None:
        np.testing.assert_array_equal(index.log_prob(queries[3], alone.ids, **asked), alone.log_prob)
        assert alone.slate_log_prob == alone.log_prob.sum()


@pytest.mark.parametrize("options", [{"probes": 0}, {"probes": 3}, {"tolerance": 0.5}, {"method": "top-k", "k": 20}])
@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_probes_tolerances_and_stored_bits_change_nothing(options, storage, tmp_path):
    index, queries = made(storage=storage)
    asked = {"temperature": 0.5, "replace": False, "exclude": [1, 2], **options}
    draws = index.sample(queries, 10, seed=5, **asked)
    index.save(tmp_path / "index")
    for one in (index, softindex.load(tmp_path / "index")):
        for threads in (1, 3):
            np.testing.assert_array_equal(one.log_prob(queries, draws.ids, threads=threads, **asked), draws.log_prob)


def test_clusters_that_dominate_keep_every_bit():
    """A few items carry nearly all mass: each step changes the masses by far more than it leaves."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((20_000, 16)).astype(np.float32)
    vectors[:5] *= 4
    index = softindex.build(vectors)
    asked = {"temperature": 0.2, "replace": False}
    draws = index.sample(vectors[:40], 30, seed=0, **asked)
    np.testing.assert_array_equal(index.log_prob(vectors[:40], draws.ids, **asked), draws.log_prob)


@every_method
def test_the_probabilities_of_all_ordered_pairs_sum_to_one(method):
    rng = np.random.default_rng(1)
    index = softindex.build(rng.standard_normal((9, 3)).astype(np.float32), clusters=3, tree=True)
    slates = np.array(list(itertools.permutations(range(9), 2)))
    steps = index.log_prob(
        np.tile(rng.standard_normal(3), (len(slates), 1)), slates, temperature=0.7, method=method, replace=False
    )
    assert np.exp(steps.sum(axis=1)).sum() == pytest.approx(1, abs=1e-6)


@every_method
def test_the_steps_are_those_of_the_sequential_law(method):
    index, queries = made(60)
    asked = {"temperature": 0.5, **conditioned(method)}
    law = index.log_prob(queries[0], np.arange(60), **asked)
    slate = np.random.default_rng(0).permutation(60)[:12]
    steps = index.log_prob(queries[0], slate, replace=False, **asked)
    np.testing.assert_allclose(steps, reference.sequential_law(law, slate), rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("options", [{}, {"method": "top-k"}, {"allow": [0, 1, 2, 3, 4, 5, 6]}, {"top_p": 0.999999}])
def test_a_step_that_cannot_be_made_is_impossible_and_takes_nothing_away(options):
    index, queries = made()
    asked = {"temperature": 5.0, "replace": False, "exclude": [9], **options}
    plain = index.log_prob(queries[0], [1, 2, 3], **asked)
    steps = index.log_prob(queries[0], [1, 1, 9, 2, 12345, 2, 3], missing="-inf", **asked)
    assert np.isneginf(steps[[1, 2, 4, 5]]).all()
    np.testing.assert_array_equal(steps[[0, 3, 6]], plain)


def test_a_slate_of_everything_and_more():
    index, queries = made(20)
    asked = {"temperature": 1.0, "replace": False}
    steps = index.log_prob(queries[0], [*range(20), 4, 19], **asked)
    assert steps[19] == pytest.approx(0, abs=1e-9)
    assert np.isneginf(steps[20:]).all()
    listed = index.log_prob(queries[0], [4, 2, 2, 4], allow=[2, 4], **asked)
    assert listed[1] == pytest.approx(0, abs=1e-6)
    assert np.isneginf(listed[2:]).all()


def test_subsets_and_snapshots_answer_for_slates(tmp_path):
    index, queries = made()
    asked = {"temperature": 0.5, "replace": False, "seed": 2}
    part = index.subset(np.arange(0, 300, 3))
    with softindex.open(tmp_path / "live", create=np.eye(6, dtype=np.float32), ids=list(range(6))) as live:
        live.upsert([10, 11], queries[:2])
        live.remove([3])
        for one in (part, live.snapshot()):
            draws = one.sample(queries, 4, **asked)
            steps = one.log_prob(queries, draws.ids, temperature=0.5, replace=False)
            np.testing.assert_array_equal(steps, draws.log_prob)


def test_replace_is_a_flag():
    index, queries = made(20)
    with pytest.raises(softindex.InputError, match="replace is 1"):
        index.log_prob(queries[0], [1], temperature=1.0, replace=1)
