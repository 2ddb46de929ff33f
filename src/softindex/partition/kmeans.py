"""Divide the items into clusters by k-means, so that a few thousand clusters summarise millions of items."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from softindex.blocks import blocks, rows_per_block
from softindex.errors import InputError
from softindex.records import Doubles, Floats, Integers, Partition, Report

__all__ = [
    "ITERATIONS",
    "POINTS_PER_CENTROID",
    "Frame",
    "assign",
    "check_clusters",
    "fit_frame",
    "inverse_order",
    "order_by_cluster",
    "partition",
    "shuffle_clusters",
    "silent",
    "train",
]


# On real word vectors, more than ten iterations improve the clusters less than another seed does.
ITERATIONS = 10
# The default of faiss; fewer made visibly worse clusters.
POINTS_PER_CENTROID = 256
# The fewest items of a cluster that a probe samples (native/index/probe.cpp); smaller ones are always scanned fully.
SHORTEST_STRETCH = 64
# With fewer rows faiss uses a loop that is three times slower than its matrix products; more rows only cost memory.
BLOCK_ROWS = 4096
BLOCK_ELEMENTS = 1 << 22
BLOCK_CLUSTERS = 64
# Each round splits every cluster that can be split, so this many rounds fill 2^32 clusters or leave none to split.
SPLIT_ROUNDS = 32


@dataclass(frozen=True, slots=True)
class Frame:
    """Coordinates in which squared distances neither overflow float32 nor lose precision to a common offset.

    x becomes x * scale - centre.  The scale is a power of two and loses no accuracy.
    """

    scale: np.float32
    centre: Floats

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """Rows (m, d) float32 or float16 in these coordinates, as a new (m, d) float32 array."""
        framed = np.array(rows, dtype=np.float32, order="C", subok=False)
        # An item far longer than all sampled ones can overflow here; it then goes to an arbitrary cluster.
        with np.errstate(all="ignore"):
            framed *= self.scale
            framed -= self.centre
        return framed


def partition(
    vectors: NDArray[Any],
    clusters: int,
    *,
    seed: int,
    threads: int,
    iterations: int = ITERATIONS,
    report: Report | None = None,
) -> Partition:
    """Assign every item to one of `clusters` clusters by k-means.

    vectors (n, d) float32 or float16, finite, an array or a memmap that is only read in blocks.  Centroids are
    trained on at most 256 random items per cluster.  Every item then goes to its nearest centroid (in float32; the
    lower index where distances are equal), and clusters left empty take over the far items of a large cluster.
    Clusters stay empty only where the items have fewer distinct vectors than there are clusters.

    The same seed gives the same partition for any number of threads, because one thread computes each block of rows.
    `report(stage, done, total)` is called after each training iteration and each block of items.
    """
    n = len(vectors)
    check_clusters(clusters, n)
    if clusters == n:
        return Partition(np.arange(n, dtype=np.int32), clusters)
    if clusters == 1:
        return Partition(np.zeros(n, dtype=np.int32), clusters)
    random = np.random.default_rng(seed)
    progress = report or silent
    # The number of OpenMP threads belongs to the thread that sets it, so setting it in our workers affects no one else.
    # Each worker uses one, and takes blocks in turn: OpenMP's own threads spin while they wait for each other, which on
    # a busy machine makes two of them slower than one.
    with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        frame, sample = _sample(vectors, clusters, random)
        centroids = train(sample, clusters, random, pool, iterations=iterations, report=progress)
        del sample
        assignment = np.empty(n, dtype=np.int32)
        for done in assign(vectors, centroids, pool, frame=frame, labels=assignment):
            progress("assigning", done, n)
    _fill_empty_clusters(vectors, assignment, clusters, frame)
    return Partition(assignment, clusters)


def check_clusters(clusters: int, n: int) -> None:
    """Raise InputError unless n items can form this many clusters."""
    if clusters < 1:
        raise InputError(f"clusters is {clusters}; expected at least 1.")
    if clusters > n:
        raise InputError(f"clusters is {clusters}, but there are only {n} items; pass at most {n}.")


def order_by_cluster(partition: Partition) -> tuple[Integers, Integers]:
    """The items in cluster order; items of the same cluster stay in their input order.

    Returns order (n,) int64 and offsets (clusters + 1,) int64: cluster c holds items order[offsets[c]:offsets[c + 1]].
    """
    sizes = np.bincount(partition.assignment, minlength=partition.clusters)
    offsets = np.zeros(partition.clusters + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    # NumPy sorts 16-bit keys by radix: 20 million of them take half as long as 32-bit keys.
    narrow = partition.clusters <= 1 << 16
    keys = partition.assignment.astype(np.uint16) if narrow else partition.assignment
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False), offsets


def shuffle_clusters(order: Integers, offsets: Integers, *, seed: int) -> None:
    """Shuffle the items of each cluster, in place, so that any contiguous part of a cluster is a fair sample of it.

    Input is often sorted, by popularity or date, so neighbours are similar.  Clusters that are always scanned fully are
    not shuffled.
    """
    random = np.random.default_rng(seed)
    for cluster in np.flatnonzero(np.diff(offsets) > SHORTEST_STRETCH).tolist():
        random.shuffle(order[offsets[cluster] : offsets[cluster + 1]])


def inverse_order(order: Integers) -> NDArray[Any]:
    """The position of each item: positions (n,) with positions[order[p]] = p.

    int32 below 2^31 items, to halve the memory; int64 from there on.
    """
    positions = np.empty(len(order), np.int32 if len(order) < 2**31 else np.int64)
    positions[order] = np.arange(len(order), dtype=positions.dtype)
    return positions


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def _sample(vectors: NDArray[Any], clusters: int, random: np.random.Generator) -> tuple[Frame, Floats]:
    """Random training items in a frame fitted to them, (s, d) float32."""
    n = len(vectors)
    size = min(n, clusters * POINTS_PER_CENTROID)
    # In ascending order, so that a memmap is read from front to back.
    rows = np.sort(random.choice(n, size, replace=False, shuffle=False)) if size < n else slice(None)
    return fit_frame(vectors[rows])


def fit_frame(rows: NDArray[Any]) -> tuple[Frame, Floats]:
    """A frame fitted to the rows (m, d), and the rows in it as a new (m, d) float32 array."""
    sample = np.array(rows, dtype=np.float32, order="C", subok=False)
    peak = max(float(sample.max()), -float(sample.min()))
    scale = np.float32(2.0 ** -np.clip(np.frexp(peak)[1], -126, 126))
    sample *= scale
    centre = sample.mean(axis=0, dtype=np.float64).astype(np.float32)
    sample -= centre
    return Frame(scale, centre), sample


def train(
    sample: Floats,
    clusters: int,
    random: np.random.Generator,
    pool: Executor,
    *,
    iterations: int,
    report: Report,
    weights: Doubles | None = None,
    start: Floats | None = None,
) -> Floats:
    """Lloyd's iterations from random items, or from `start`; returns centroids (clusters, d) float32.

    A centroid that lost its items moves to an item drawn in proportion to its squared distance, as in k-means++.
    weights (m,), positive, say how much each item counts.
    """
    if start is None:
        chances = None if weights is None else weights / weights.sum()
        centroids = sample[np.sort(random.choice(len(sample), clusters, replace=False, p=chances))]
    else:
        centroids = start.copy()
    labels = np.full(len(sample), -1, dtype=np.int32)
    squares = np.empty(len(sample), dtype=np.float32)
    for iteration in range(iterations):
        before = labels.copy()
        for _ in assign(sample, centroids, pool, labels=labels, squares=squares):
            pass
        empty = _update(sample, labels, centroids, pool, weights)
        if empty.size:
            distance = np.maximum(squares, 0).astype(np.float64) * (1.0 if weights is None else weights)
            moved = empty[: np.count_nonzero(distance)]
            if moved.size:
                far = random.choice(len(sample), moved.size, replace=False, p=distance / distance.sum())
                centroids[moved] = sample[far]
        elif np.array_equal(before, labels):
            report("clustering", iterations, iterations)
            break
        report("clustering", iteration + 1, iterations)
    return centroids


def assign(
    vectors: NDArray[Any],
    centroids: Floats,
    pool: Executor,
    *,
    labels: NDArray[np.int32],
    frame: Frame | None = None,
    squares: Floats | None = None,
) -> Iterator[int]:
    """Write the nearest centroid of each item into `labels`, block by block; yields how many items are done.

    Without a frame, the vectors must be framed already.  `squares` receives the squared distances.
    """
    n, d = vectors.shape
    index = faiss.IndexFlatL2(d)
    index.add(centroids)
    step = min(BLOCK_ROWS, rows_per_block(BLOCK_ELEMENTS, d, least=256))

    def work(part: slice) -> int:
        rows = vectors[part]
        distances, nearest = index.search(frame(rows) if frame else rows, 1)
        # An item 1e19 times longer than all sampled ones overflows and has no nearest centroid; any cluster will do.
        labels[part] = np.maximum(nearest[:, 0], 0)
        if squares is not None:
            squares[part] = distances[:, 0]
        return int(part.stop)

    yield from pool.map(work, blocks(n, step))


def _update(
    sample: Floats, labels: NDArray[np.int32], centroids: Floats, pool: Executor, weights: Doubles | None
) -> Integers:
    """Move each centroid to the mean of its items; returns the clusters (e,) int64 that have none."""
    rows, offsets = order_by_cluster(Partition(labels, len(centroids)))

    def work(part: slice) -> None:
        for cluster in range(part.start, part.stop):
            members = rows[offsets[cluster] : offsets[cluster + 1]]
            if members.size:
                rows_of_cluster = sample.take(members, axis=0)
                centroids[cluster] = (
                    rows_of_cluster.mean(axis=0)
                    if weights is None
                    else np.average(rows_of_cluster, axis=0, weights=weights[members])
                )

    for _ in pool.map(work, blocks(len(centroids), BLOCK_CLUSTERS)):
        pass
    return np.flatnonzero(np.diff(offsets) == 0)


def _fill_empty_clusters(vectors: NDArray[Any], assignment: NDArray[np.int32], clusters: int, frame: Frame) -> None:
    """Give each empty cluster the far items of one of the largest clusters, in place, while any can be split."""
    indivisible = np.zeros(clusters, dtype=bool)
    for _ in range(SPLIT_ROUNDS):
        rows, offsets = order_by_cluster(Partition(assignment, clusters))
        sizes = np.diff(offsets)
        empty = np.flatnonzero(sizes == 0)
        candidates = np.flatnonzero((sizes > 1) & ~indivisible)
        if not empty.size or not candidates.size:
            return
        donors = candidates[np.argsort(-sizes[candidates], kind="stable")][: empty.size]
        for donor, cluster in zip(donors, empty, strict=False):
            far = _far_items(vectors, rows[offsets[donor] : offsets[donor + 1]], frame)
            assignment[far] = cluster
            indivisible[donor] = not far.size


def _far_items(vectors: NDArray[Any], members: Integers, frame: Frame) -> Integers:
    """The members nearer to the farthest member than to the mean; none where all members are equal."""
    step = rows_per_block(BLOCK_ELEMENTS, vectors.shape[1], least=256)
    parts = [members[part] for part in blocks(len(members), step)]
    mean = sum(frame(vectors[part]).sum(axis=0, dtype=np.float64) for part in parts) / len(members)
    squares = np.concatenate([_squares(frame(vectors[part]), mean) for part in parts])
    far = frame(vectors[members[np.argmax(squares), None]])[0]
    nearer = np.concatenate([_squares(frame(vectors[part]), far) for part in parts]) < squares
    # Rounding of the mean can send all of several equal members to one side; that is not a split.
    return members[nearer] if not nearer.all() else members[:0]


def _squares(rows: Floats, point: NDArray[np.floating[Any]]) -> Doubles:
    """Squared distances (m,) float64 of rows (m, d) from a point (d,)."""
    difference = rows - point.astype(np.float64)
    squares: Doubles = np.einsum("md,md->m", difference, difference)
    return squares
