"""Distances between distributions over clusters, and the intervals of their means."""

import numpy as np
import pytest

from softindex.evaluate.distances import between, mean_interval, median_interval


def test_distances_of_a_known_pair():
    law, softmax = np.array([[np.log(0.5), np.log(0.5), -np.inf]]), np.log([[0.25, 0.5, 0.25]])
    found = between(law, softmax)
    assert found.kl[0] == pytest.approx(0.5 * np.log(2))
    assert np.isinf(found.reverse_kl[0])
    assert found.total_variation[0] == pytest.approx(0.25)
    assert found.ratio_spread[0] == pytest.approx(np.sqrt(0.25 * 1 + 0.25 * 1))


def test_distances_ignore_scale_and_empty_clusters():
    rng = np.random.default_rng(0)
    law, softmax = rng.standard_normal((5, 8)), rng.standard_normal((5, 8))
    law[:, 3] = softmax[:, 3] = -np.inf
    first, second = between(law, softmax), between(law + 700.0, softmax - 300.0)
    for name in ("kl", "reverse_kl", "total_variation", "ratio_spread"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=1e-9)
    assert (first.kl > 0).all()


def test_the_ratio_spread_of_laws_far_apart_is_right():
    far, farther = np.array([[0.0, -300.0]]), np.array([[0.0, -700.0]])
    assert between(far, farther).ratio_spread[0] == pytest.approx(np.exp(50), rel=1e-6)
    assert between(np.array([[0.0, -1.0]]), np.array([[0.0, -800.0]])).ratio_spread[0] > 1e170
    near = np.array([[0.0, 1e-9]])
    assert between(near, np.zeros((1, 2))).ratio_spread[0] == pytest.approx(5e-10, rel=1e-3)


@pytest.mark.parametrize("count", [3, 10, 100])
def test_intervals_of_normal_values_cover_the_mean(count):
    rng, hits = np.random.default_rng(1), 0
    for _ in range(300):
        _, low, high = mean_interval(rng.standard_normal(count))
        hits += low <= 0 <= high
    # The interval never leaves the values themselves, which three of them need not do.
    assert hits >= (0.7 if count == 3 else 0.9) * 300


def test_a_resampled_interval_has_about_the_width_of_the_normal_one():
    values = np.random.default_rng(0).standard_normal(400)
    mean, low, high = mean_interval(values)
    assert mean == pytest.approx(values.mean())
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.15)
    assert mean_interval(np.full(5, 2.0)) == (2.0, 2.0, 2.0)
    assert mean_interval(np.array([1.0, np.inf])) == (np.inf, np.inf, np.inf)
    middle, low, high = median_interval(values)
    assert low < middle < high
