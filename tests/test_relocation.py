"""Relocated centroids find every separated group and never leave a worse partition."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softindex.partition import ITERATIONS, partition
from softindex.partition.kmeans import silent, train
from softindex.partition.relocation import two_means

RELOCATIONS = ITERATIONS - 3


def groups_of(sizes, d, *, distance, seed):
    """Standard normal groups around means on different axes of a space of d dimensions, and the group of each item."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    noise = np.random.default_rng(seed).standard_normal((len(group), d))
    return (distance * np.eye(d)[group] + noise).astype(np.float32), group


def sum_of_squares(vectors, assignment):
    parts = [vectors[assignment == cluster].astype(np.float64) for cluster in np.unique(assignment)]
    return sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts)


def objective(sample, clusters, *, relocations, seed, threads=1):
    """The sum of squared distances to the nearest trained centroid."""
    with ThreadPoolExecutor(threads) as pool:
        random = np.random.default_rng(seed)
        centroids = train(sample, clusters, random, pool, iterations=ITERATIONS, report=silent, relocations=relocations)
    squares = np.square(sample[:, None].astype(np.float64) - centroids).sum(axis=2)
    return squares.min(axis=1).sum()


def matches(assignment, group):
    """Whether the clusters are the groups."""
    pairs = np.unique(np.stack([assignment, group]), axis=1).shape[1]
    return pairs == len(np.unique(group)) == len(np.unique(assignment))


@pytest.mark.parametrize("sizes", [[200] * 5, [1000, 500, 200, 50, 20]], ids=["equal", "unequal"])
@pytest.mark.parametrize("seed", range(24))
def test_five_separated_groups_are_found_from_every_seed(seed, sizes):
    vectors, group = groups_of(sizes, 8, distance=20, seed=seed)
    assert matches(partition(vectors, 5, seed=seed, threads=1).assignment, group)


@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_separated_groups_are_found(seed):
    vectors, group = groups_of([60] * 100, 100, distance=20, seed=seed)
    assert matches(partition(vectors, 100, seed=seed, threads=2).assignment, group)


def shapes(kind):
    random = np.random.default_rng(0)
    if kind == "heavy tails":
        return random.standard_t(2, (3000, 8)).astype(np.float32)
    if kind == "one dimension":
        return random.exponential(size=(3000, 1)).astype(np.float32)
    if kind == "many dimensions":
        return random.standard_normal((1000, 300)).astype(np.float32)
    if kind == "repeated vectors":
        return random.standard_normal((300, 8)).astype(np.float32)[random.integers(0, 300, 3000)]
    return groups_of([100] * 30, 30, distance=8, seed=1)[0]


@pytest.mark.parametrize("kind", ["heavy tails", "one dimension", "many dimensions", "repeated vectors", "groups"])
def test_relocations_do_not_raise_the_objective(kind):
    # Another local minimum can be worse by chance; the mean over seeds is not.
    sample = shapes(kind)
    plain, relocated = (
        np.mean([objective(sample, 32, relocations=count, seed=seed) for seed in range(5)])
        for count in (0, RELOCATIONS)
    )
    assert relocated <= 1.002 * plain


def test_relocations_lower_the_objective_of_groups_by_far():
    sample = shapes("groups")
    plain, relocated = (objective(sample, 30, relocations=count, seed=0) for count in (0, RELOCATIONS))
    assert relocated < 0.9 * plain


def test_the_number_of_threads_does_not_change_where_centroids_move():
    sample = shapes("groups")
    assert len({objective(sample, 30, relocations=RELOCATIONS, seed=2, threads=threads) for threads in (1, 2, 5)}) == 1


@pytest.mark.parametrize(("n", "clusters"), [(2, 2), (3, 2), (40, 2), (40, 39), (40, 40), (600, 599)])
def test_any_number_of_clusters_is_trained(n, clusters):
    sample = np.random.default_rng(0).standard_normal((n, 3)).astype(np.float32)
    assert np.isfinite(objective(sample, clusters, relocations=RELOCATIONS, seed=0))


def test_items_with_weights_are_refused():
    sample = np.ones((4, 2), np.float32)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="not supported with weights"):
        train(
            sample,
            2,
            np.random.default_rng(0),
            pool,
            iterations=5,
            report=silent,
            weights=np.ones(4),
            relocations=1,
        )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50), st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**32))
def test_the_gain_of_two_means_is_the_decrease_of_the_sum_of_squares(m, d, levels, seed):
    random = np.random.default_rng(seed)
    points = random.integers(0, levels, (m, d)).astype(np.float32)
    split = two_means(points, random)
    if split is None:
        return
    before = sum_of_squares(points, np.zeros(m))
    two = np.stack([split.first, split.second]).astype(np.float64)
    after = np.square(points[:, None] - two).sum(axis=2).min(axis=1).sum()
    # The gain is that of the last sides; the nearest of the two means can only be better.
    assert 0 <= split.gain <= before - after + 1e-3 * before


def test_equal_points_and_a_single_point_cannot_be_separated():
    random = np.random.default_rng(0)
    assert two_means(np.full((9, 3), 0.1, np.float32), random) is None
    assert two_means(np.ones((1, 3), np.float32), random) is None
