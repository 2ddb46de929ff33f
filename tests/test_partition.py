"""Every item gets one cluster, its nearest; the same seed gives the same clusters; nothing is printed."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from softindex.errors import InputError
from softindex.partition import order_by_cluster, partition, shuffle_clusters
from softindex.partition.nearest import assign
from softindex.records import Partition


def normal(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def blas_settings():
    return sorted((pool["filepath"], pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas")


def sizes_of(parts):
    return np.bincount(parts.assignment, minlength=parts.clusters)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 70), clusters=st.integers(1, 40), d=st.integers(1, 20), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_search_finds_the_nearest_and_the_second_nearest_distance(rows, clusters, d, seed):
    items, centroids = normal(rows, d, seed), normal(clusters, d, seed + 1)
    labels, squares, second = np.empty(rows, np.int32), np.empty(rows, np.float32), np.empty(rows, np.float32)
    with ThreadPoolExecutor(1) as pool:
        done = list(assign(items, centroids, pool, labels=labels, squares=squares, second=second, block=32))
    assert done[-1] == rows
    distances = ((items[:, None].astype(np.float64) - centroids) ** 2).sum(axis=2)
    ordered = np.sort(np.concatenate([distances, np.full((rows, 1), np.inf)], axis=1), axis=1)
    np.testing.assert_allclose(distances[np.arange(rows), labels], ordered[:, 0], atol=1e-4)
    np.testing.assert_allclose(squares, ordered[:, 0], atol=1e-4)
    np.testing.assert_allclose(second, ordered[:, 1], atol=1e-4)


def test_of_equal_centroids_the_first_is_nearest_and_an_overflow_is_some_cluster():
    items = np.array([[1, 2], [1e38, -1e38], [3, 4]], np.float32)
    labels = np.full(3, -1, np.int32)
    with ThreadPoolExecutor(1) as pool:
        list(assign(items, np.array([[3, 4], [1, 2], [1, 2]], np.float32), pool, labels=labels))
    assert labels[0] == 1
    assert 0 <= labels[1] < 3
    assert labels[2] == 0


def test_every_item_is_assigned_to_a_cluster_and_no_cluster_is_empty():
    parts = partition(normal(5000, 8), 70, seed=0, threads=2)
    assert parts.assignment.shape == (5000,)
    assert parts.assignment.dtype == np.int32
    assert parts.clusters == 70
    assert parts.assignment.min() >= 0
    assert parts.assignment.max() < 70
    assert sizes_of(parts).min() > 0


def test_the_same_seed_gives_the_same_clusters_and_another_seed_gives_others():
    vectors = normal(4000, 8)
    first = partition(vectors, 60, seed=1, threads=2)
    assert np.array_equal(first.assignment, partition(vectors, 60, seed=1, threads=2).assignment)
    assert not np.array_equal(first.assignment, partition(vectors, 60, seed=2, threads=2).assignment)


def test_the_number_of_threads_changes_neither_the_clusters_nor_the_callers_blas_setting():
    vectors, before = normal(20_000, 16), blas_settings()
    one, three = (partition(vectors, 141, seed=0, threads=threads) for threads in (1, 3))
    assert np.array_equal(one.assignment, three.assignment)
    assert blas_settings() == before


def test_almost_every_item_is_in_the_cluster_of_the_nearest_mean():
    # Centroids move a little less at each iteration, so the means of the final clusters lag by a few border items.
    vectors = normal(5000, 6)
    parts = partition(vectors, 50, seed=0, threads=2, iterations=60)
    means = np.stack([vectors[parts.assignment == cluster].mean(axis=0) for cluster in range(50)])
    squares = ((vectors[:, None].astype(np.float64) - means) ** 2).sum(axis=2)
    assert np.mean(squares.argmin(axis=1) == parts.assignment) > 0.97


def test_more_iterations_never_leave_a_worse_partition_than_random_centroids():
    vectors = normal(4000, 10)

    def objective(iterations):
        parts = partition(vectors, 64, seed=0, threads=2, iterations=iterations)
        clusters = [vectors[parts.assignment == cluster].astype(np.float64) for cluster in range(64)]
        return sum(((cluster - cluster.mean(axis=0)) ** 2).sum() for cluster in clusters if len(cluster))

    assert objective(10) < objective(1)


def test_separated_groups_are_found():
    groups = np.repeat(np.arange(4), 200)
    vectors = (100 * np.eye(4)[groups] + normal(800, 4)).astype(np.float32)
    best = max(
        len({(group, cluster) for group, cluster in zip(groups, parts.assignment, strict=True)}) == 4
        for parts in (partition(vectors, 4, seed=seed, threads=1) for seed in range(8))
    )
    assert best


def test_a_common_offset_and_a_common_factor_do_not_change_the_clusters():
    # Small integers, so that shifting and scaling by powers of two is exact in float32.
    vectors = np.random.default_rng(0).integers(-8, 9, (3000, 6)).astype(np.float32)
    plain = partition(vectors, 40, seed=0, threads=1).assignment
    assert np.array_equal(plain, partition(vectors * np.float32(2.0**90), 40, seed=0, threads=1).assignment)
    assert np.array_equal(plain, partition(vectors * np.float32(2.0**-90), 40, seed=0, threads=1).assignment)
    far = partition(vectors + np.float32(4096), 40, seed=0, threads=1)
    assert sizes_of(far).max() < 10 * 3000 / 40


@pytest.mark.parametrize("clusters", [1, 2, 7, 19, 20])
def test_any_number_of_clusters_up_to_the_number_of_items_is_served(clusters):
    parts = partition(normal(20, 3), clusters, seed=0, threads=1)
    assert sizes_of(parts).sum() == 20
    assert sizes_of(parts).min() > 0


def test_one_cluster_per_item_when_there_are_as_many_clusters_as_items():
    parts = partition(normal(30, 3), 30, seed=0, threads=1)
    assert np.array_equal(np.sort(parts.assignment), np.arange(30))


def test_more_clusters_than_items_are_refused_with_what_to_ask_instead():
    with pytest.raises(InputError, match="clusters is 11, but there are only 10 items; pass at most 10"):
        partition(normal(10, 3), 11, seed=0, threads=1)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 3e38, 1e-45])
def test_identical_vectors_share_one_cluster_and_leave_the_others_empty(value):
    parts = partition(np.full((500, 5), value, np.float32), 20, seed=0, threads=2)
    assert np.count_nonzero(sizes_of(parts)) == 1


def test_clusters_stay_empty_only_where_there_are_too_few_distinct_vectors():
    vectors = normal(10, 4)[np.random.default_rng(0).integers(0, 10, 2000)]
    parts = partition(vectors, 64, seed=0, threads=2)
    assert np.count_nonzero(sizes_of(parts)) == 10
    half = np.where(np.random.default_rng(1).random((2000, 1)) < 0.5, 0, normal(2000, 4)).astype(np.float32)
    assert sizes_of(partition(half, 400, seed=0, threads=2)).min() > 0


def test_equal_vectors_are_always_in_one_cluster_unless_an_empty_cluster_had_to_be_filled():
    vectors = np.repeat(normal(400, 5), 5, axis=0)
    clusters = partition(vectors, 20, seed=0, threads=2).assignment.reshape(400, 5)
    assert np.all(clusters == clusters[:, :1])


def assert_sizes_are_bounded(vectors, parts):
    """No cluster holds more than 8 times the mean, unless one vector makes up three quarters of it."""
    sizes = sizes_of(parts)
    assert sizes.sum() == len(vectors)
    for cluster in np.flatnonzero(sizes > 8 * len(vectors) / parts.clusters):
        repeats = np.unique(vectors[parts.assignment == cluster], axis=0, return_counts=True)[1]
        assert repeats.max() >= 0.75 * sizes[cluster]


def uneven(kind):
    random = np.random.default_rng(0)
    if kind == "groups of heavy-tailed size":
        counts = np.maximum(1, 6000 / np.arange(1, 201) ** 1.3).astype(int)
        return np.repeat(random.standard_normal((200, 8)), counts, axis=0) + 0.01 * normal(counts.sum(), 8)
    if kind == "a dense ball":
        return np.concatenate([1e-6 * normal(9000, 8), normal(1000, 8)]) + np.float32(1)
    if kind == "lengths of all scales":
        return normal(10_000, 4) * 10.0 ** random.uniform(-12, 0, (10_000, 1))
    if kind == "one coordinate each":
        return np.eye(300)[random.integers(0, 300, 3000)] * random.uniform(1, 2, (3000, 1))
    return normal(10_000, 1) ** 7


@pytest.mark.parametrize(
    "kind",
    [
        "groups of heavy-tailed size",
        "a dense ball",
        "lengths of all scales",
        "one coordinate each",
        "one dimension with heavy tails",
    ],
)
@pytest.mark.parametrize("clusters", [20, 100])
def test_no_cluster_holds_more_than_eight_times_the_mean(kind, clusters):
    vectors = uneven(kind).astype(np.float32)
    parts = partition(vectors, clusters, seed=0, threads=2)
    sizes = sizes_of(parts)
    assert sizes.max() <= 8 * len(vectors) / clusters
    assert sizes.min() > 0
    assert np.array_equal(parts.assignment, partition(vectors, clusters, seed=0, threads=1).assignment)


def test_a_vector_repeated_very_often_keeps_one_cluster_and_all_others_are_bounded():
    vectors = np.concatenate([np.full((5000, 6), 0.3, np.float32), 0.01 * normal(5000, 6) + np.float32(0.3)])
    parts = partition(vectors, 100, seed=0, threads=2)
    assert_sizes_are_bounded(vectors, parts)
    assert np.unique(parts.assignment[:5000]).size == 1


def test_equal_vectors_stay_together_when_a_large_cluster_is_split():
    vectors = np.repeat(np.concatenate([1e-3 * normal(1800, 5), normal(200, 5)]), 5, axis=0)
    parts = partition(vectors, 100, seed=0, threads=2)
    assert sizes_of(parts).max() <= 8 * len(vectors) / 100
    clusters = parts.assignment.reshape(-1, 5)
    assert np.all(clusters == clusters[:, :1])


@settings(max_examples=40, deadline=None)
@given(st.integers(20, 400), st.integers(1, 4), st.integers(1, 9), st.floats(0, 12), st.integers(0, 2**32))
def test_sizes_are_bounded_for_any_skew(n, d, levels, skew, seed):
    random = np.random.default_rng(seed)
    vectors = (random.integers(0, levels, (n, d)) * 10.0 ** random.uniform(-skew, 0, (n, 1))).astype(np.float32)
    clusters = int(random.integers(10, n + 1))
    assert_sizes_are_bounded(vectors, partition(vectors, clusters, seed=seed, threads=1))


@pytest.mark.parametrize(("n", "d", "clusters"), [(1000, 1, 32), (300, 4096, 17), (101, 3, 100), (1, 1, 1), (2, 1, 1)])
def test_extreme_shapes_are_served(n, d, clusters):
    assert sizes_of(partition(normal(n, d), clusters, seed=0, threads=2)).sum() == n


def test_float16_gives_the_clusters_of_the_same_numbers_in_float32():
    vectors = normal(3000, 8).astype(np.float16)
    half = partition(vectors, 50, seed=0, threads=1)
    assert np.array_equal(half.assignment, partition(vectors.astype(np.float32), 50, seed=0, threads=1).assignment)


def test_a_memmap_and_a_strided_view_give_the_clusters_of_the_array(tmp_path):
    vectors = normal(3000, 8)
    np.save(tmp_path / "vectors.npy", vectors)
    expected = partition(vectors, 50, seed=0, threads=1).assignment
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    assert np.array_equal(expected, partition(mapped, 50, seed=0, threads=1).assignment)
    wide = np.repeat(vectors, 2, axis=1)
    assert np.array_equal(expected, partition(wide[:, ::2], 50, seed=0, threads=1).assignment)


def test_nothing_is_printed_even_with_few_points_a_centroid(capfd):
    partition(normal(120, 4), 100, seed=0, threads=1)
    partition(np.zeros((50, 4), np.float32), 49, seed=0, threads=2)
    assert capfd.readouterr() == ("", "")


def test_progress_is_reported_in_stages_that_reach_their_total():
    calls = []
    partition(normal(9000, 4), 40, seed=0, threads=2, report=lambda *call: calls.append(call))
    stages = list(dict.fromkeys(stage for stage, _, _ in calls))
    assert len(stages) == 2
    for stage in stages:
        done = [done for name, done, _ in calls if name == stage]
        total = {total for name, _, total in calls if name == stage}
        assert done == sorted(done)
        assert total == {done[-1]}


@given(st.lists(st.integers(0, 6), max_size=200), st.booleans())
def test_order_lists_each_cluster_in_turn_and_its_items_in_input_order(owners, many):
    clusters = 70_000 if many else 7
    order, offsets = order_by_cluster(Partition(np.array(owners, np.int32), clusters))
    assert order.dtype == offsets.dtype == np.int64
    assert offsets.shape == (clusters + 1,)
    for cluster in range(7):
        members = order[offsets[cluster] : offsets[cluster + 1]].tolist()
        assert members == [item for item, owner in enumerate(owners) if owner == cluster]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**32))
def test_any_small_input_is_partitioned(n, d, levels, seed):
    random = np.random.default_rng(seed)
    vectors = random.integers(0, levels, (n, d)).astype(np.float32)
    clusters = int(random.integers(1, n + 1))
    parts = partition(vectors, clusters, seed=seed, threads=1, iterations=3)
    occupied = np.count_nonzero(sizes_of(parts))
    assert sizes_of(parts).sum() == n
    assert occupied >= min(clusters, len(np.unique(vectors, axis=0)))


def test_shuffling_keeps_every_item_in_its_cluster_and_moves_it_there():
    rng = np.random.default_rng(0)
    clusters = rng.integers(7, size=2000).astype(np.int32)
    order, offsets = order_by_cluster(Partition(clusters, 7))
    shuffled = order.copy()
    shuffle_clusters(shuffled, offsets, seed=3)
    for cluster in range(7):
        part = slice(offsets[cluster], offsets[cluster + 1])
        assert sorted(shuffled[part]) == sorted(order[part])
        assert (shuffled[part] != order[part]).mean() > 0.9
    again = order.copy()
    shuffle_clusters(again, offsets, seed=3)
    np.testing.assert_array_equal(shuffled, again)
