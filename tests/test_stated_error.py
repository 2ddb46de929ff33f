"""The stated error of a probed law is close to its distance from the softmax, or above it."""

import numpy as np
import pytest

import softindex
from probed_indexes import MADE, distances, large_index

T = (0.05, 0.1, 0.2)


def pooled(name, kind, temperature, seeds=(5, 6, 7), **options):
    """Measured and stated errors of the queries of three catalogues: one may be kinder to the law than another."""
    found = [
        distances(index, queries[kind], temperature, **options)
        for index, queries in (large_index(name, seed) for seed in seeds)
    ]
    return np.concatenate([one[0] for one in found]), np.concatenate([one[2] for one in found])


def too_far(measured, stated):
    """The part of queries whose error is well beyond what was stated."""
    return np.mean(measured > 0.01 + 2 * stated)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("kind", ["items", "others"])
@pytest.mark.parametrize("temperature", T)
def test_the_stated_error_is_honest(name, kind, temperature):
    measured, stated = pooled(name, kind, temperature)
    assert too_far(measured, stated) <= 0.02
    assert stated.mean() >= measured.mean() / 2
    # Nor is it so large as to say nothing.
    assert stated.mean() <= 5 * measured.mean() + 0.01


def test_the_stated_error_is_honest_for_queries_unlike_the_items():
    """The single items far out in their clusters, which no normal tail foresees, count by the radius."""
    assert too_far(*pooled("mixture", "strange", 0.05)) <= 0.025


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("temperature", [*T, 1.0, 5.0])
def test_the_expected_error_of_log_z_is_honest(name, temperature):
    """Also at high temperatures, where errors of log Z and of the law differ: the tail is nearly everything."""
    for kind in ("items", "others", "strange"):
        index, queries = large_index(name)
        found = index.log_partition(queries[kind], temperature=temperature)
        exact = index.log_partition(queries[kind], temperature=temperature, method="exact").value
        measured = np.abs(found.value - exact)
        # An expectation: it is exceeded by half of the queries, and seldom by far.
        assert too_far(measured, found.error) <= 0.06
        assert found.error.mean() >= 0.8 * measured.mean()
        assert (np.asarray(index.sample(queries[kind], temperature=temperature).log_partition.error) >= 0).all()


@pytest.mark.parametrize("temperature", T)
@pytest.mark.parametrize("name", MADE)
def test_the_stated_error_of_a_law_without_dispersion_is_nearly_as_honest(name, temperature):
    """Nothing tells it the variance of wide clusters that it did not sample: queries unlike the items are left out."""
    for kind in ("items", "others"):
        assert too_far(*pooled(name, kind, temperature, method="s-2ls")) <= 0.04


def test_the_stated_error_is_honest_on_the_leaves_of_a_tree():
    index, queries = large_index("mixture", tree=True)
    measured, _, stated = distances(index, queries["items"], 0.03)
    assert too_far(measured, stated) <= 0.02


@pytest.mark.parametrize("name", MADE)
def test_more_probes_bring_the_law_closer_to_the_softmax(name):
    index, queries = large_index(name)
    batch = np.concatenate([queries["items"], queries["others"]])
    for temperature in (0.05, 0.1):
        means = [distances(index, batch, temperature, probes=probes)[1].mean() for probes in (1, 5, 20, 80)]
        assert (np.diff(means) < 0).all()
        loose, default = (distances(index, batch, temperature, tolerance=most)[1].mean() for most in (0.5, 0.03))
        assert default < loose


def test_a_tolerance_below_the_default_makes_no_worse_a_law():
    index, queries = large_index("heavy-tailed")
    default, tight = (distances(index, queries["others"], 0.1, tolerance=most)[1].mean() for most in (0.03, 0.003))
    assert tight <= default


@pytest.mark.parametrize("name", MADE)
def test_at_low_temperature_the_default_is_ten_times_closer_than_the_published_law(name):
    index, queries = large_index(name)
    batch = np.concatenate([queries["items"], queries["others"]])
    published, default = (distances(index, batch, 0.05, probes=probes)[1].mean() for probes in (0, None))
    assert default < published / 10


@pytest.mark.parametrize("popular", [True, False])
def test_the_error_is_honest_where_a_few_biased_items_carry_their_clusters(popular):
    """Sixty items of bias 8, or a Zipf law of popularity: a stretch of a cluster would miss what it weighs."""
    rng = np.random.default_rng(0)
    vectors, batch = (rng.standard_normal((size, 32)).astype(np.float32) for size in (20_000, 40))
    order = rng.permutation(20_000)
    bias = np.where(order < 60, 8.0, 0.0) if popular else -1.5 * np.log(1.0 + order)
    index = softindex.build(vectors, log_bias=bias, threads=1)
    for temperature in (10.0, 100.0):
        measured, _, stated = distances(index, batch, temperature)
        assert too_far(measured, stated) <= 0.025
        assert measured.mean() < 0.01
