"""The listed outliers are the items farthest from the mean of their cluster, and no other is as far."""

import numpy as np
import pytest

import softindex
from softindex.outliers import UNUSUAL, list_outliers


def made(n, d, clusters, *, far=0, seed=0):
    """Vectors in cluster order, offsets and means; `far` of the items are thrown far out."""
    rng = np.random.default_rng(seed)
    assignment = np.sort(rng.integers(clusters, size=n))
    vectors = (rng.standard_normal((clusters, d))[assignment] + 0.1 * rng.standard_normal((n, d))).astype(np.float32)
    thrown = rng.choice(n, size=far, replace=False)
    vectors[thrown] += 30 * rng.standard_normal((far, d)).astype(np.float32)
    offsets = np.searchsorted(assignment, np.arange(clusters + 1)).astype(np.int64)
    means = np.zeros((clusters, d), np.float32)
    for cluster in range(clusters):
        if offsets[cluster + 1] > offsets[cluster]:
            means[cluster] = vectors[offsets[cluster] : offsets[cluster + 1]].mean(axis=0)
    return vectors, offsets, means, np.sort(thrown), assignment


@pytest.mark.parametrize(("n", "d", "clusters"), [(5000, 16, 70), (3000, 3, 2900), (900, 100, 1)])
def test_items_thrown_far_out_are_listed_and_no_other_is_as_far(n, d, clusters):
    vectors, offsets, means, thrown, assignment = made(n, d, clusters, far=12)
    found = list_outliers(vectors, offsets, means, threads=2)
    away = np.linalg.norm(vectors.astype(np.float64) - means[assignment], axis=1)
    # A thrown item that is alone in its cluster is its own mean.
    alone = np.diff(offsets)[assignment[thrown]] == 1
    assert set(thrown[~alone]) <= set(found.positions.tolist())
    assert (np.diff(found.positions) > 0).all()
    np.testing.assert_array_equal(found.vectors, vectors[found.positions])
    assert np.delete(away, found.positions).max() <= found.farthest[0]
    assert len(found.positions) <= 8 * n**0.5 + 1
    assert (away[found.positions] > 0.99 * UNUSUAL * np.sqrt((away**2).mean())).all()


def test_nothing_is_listed_where_all_are_about_as_far():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((4000, 100)).astype(np.float32)
    assert len(list_outliers(vectors, np.array([0, 4000]), vectors.mean(axis=0)[None], threads=1).positions) == 0


def test_the_number_of_threads_changes_nothing():
    vectors, offsets, means, _, _ = made(60_000, 128, 50, far=100)
    first, second = (list_outliers(vectors, offsets, means, threads=threads) for threads in (1, 3))
    np.testing.assert_array_equal(first.positions, second.positions)
    assert first.farthest[0] == second.farthest[0]


def test_an_outlier_that_carries_the_mass_is_found_in_its_cluster():
    """One item of length five among thousands of length one, in a cluster of another direction: no moment shows it."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((20_000, 32))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = vectors[7].copy()
    vectors[11] = 5 * query + 0.1 * rng.standard_normal(32)
    index = softindex.build(vectors.astype(np.float32), threads=1)
    law = index.log_prob(query.astype(np.float32), [11], temperature=0.1)
    assert law[0] == pytest.approx(
        index.log_prob(query.astype(np.float32), [11], temperature=0.1, method="exact")[0], abs=1e-3
    )
