"""Cut the items into clusters by k-means, so that a few thousand clusters can stand for millions of items."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

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


# On real word vectors the clusters improve less after ten iterations than from one seed to the next.
ITERATIONS = 10
# As many as faiss takes by default; fewer made visibly worse clusters.
POINTS_PER_CENTROID = 256
# The fewest items of a cluster that a probe samples (native/probe.cpp): smaller clusters are always taken whole.
SHORTEST_STRETCH = 64
# Fewer rows make faiss leave matrix products for a loop three times slower; more only cost memory.
BLOCK_ROWS = 4096
BLOCK_ELEMENTS = 1 << 22
# Every round splits each cluster that can be split, so this many rounds fill 2^32 clusters or there is nothing to split.
SPLIT_ROUNDS = 32


@dataclass(frozen=True, slots=True)
class Frame:
    """Coordinates in which squared distances neither overflow float32 nor drown in a common offset.

    x becomes x * scale - centre; the scale is a power of two and costs no accuracy.
    """

    scale: np.float32
    centre: Floats

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """Rows (m, d) float32 or float16 in these coordinates, as a new (m, d) float32 array."""
        framed = np.array(rows, dtype=np.float32, order="C", subok=False)
        # An item far longer than all that were sampled may overflow here; the search then leaves it to any cluster.
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
    trained on at most 256 random items a cluster; every item then goes to its nearest centroid (in float32; the lower
    index where distances are equal), except that clusters left empty take over the far part of a large cluster.  Clusters
    stay empty only where the items have fewer distinct vectors than there are clusters.

    The same seed gives the same partition whatever the number of threads: each block of rows is worked on by one
    thread.  `report(stage, done, total)` is called after each training iteration and each block of items.
    """
    n = len(vectors)
    check_clusters(clusters, n)
    if clusters == n:
        return Partition(np.arange(n, dtype=np.int32), clusters)
    if clusters == 1:
        return Partition(np.zeros(n, dtype=np.int32), clusters)
    random = np.random.default_rng(seed)
    tell = report or silent
    # The number of OpenMP threads belongs to the thread that sets it: set in our workers, it changes nobody else's.
    # One each, and the blocks shared out among workers: OpenMP's own threads spin while they wait for each other, and
    # on a busy machine that makes two of them slower than one.
    with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        frame, sample = _sample(vectors, clusters, random)
        centroids = train(sample, clusters, random, pool, iterations=iterations, report=tell)
        del sample
        assignment = np.empty(n, dtype=np.int32)
        for done in assign(vectors, centroids, pool, frame=frame, labels=assignment):
            tell("assigning", done, n)
    _fill_empty_clusters(vectors, assignment, clusters, frame)
    return Partition(assignment, clusters)


def check_clusters(clusters: int, n: int) -> None:
    """InputError unless n items can be cut into so many clusters."""
    if clusters < 1:
        raise InputError(f"{clusters} clusters were asked for; ask for at least 1.")
    if clusters > n:
        raise InputError(f"{clusters} clusters were asked of {n} items; ask for at most {n}.")


def order_by_cluster(partition: Partition) -> tuple[Integers, Integers]:
    """The items cluster by cluster, those of one cluster in their input order.

    Returns order (n,) int64 and offsets (clusters + 1,) int64: cluster c holds items order[offsets[c]:offsets[c + 1]].
    """
    sizes = np.bincount(partition.assignment, minlength=partition.clusters)
    offsets = np.zeros(partition.clusters + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    # NumPy sorts 16-bit keys by radix, 20 million of them in half the time that 32-bit keys take.
    narrow = partition.clusters <= 1 << 16
    keys = partition.assignment.astype(np.uint16) if narrow else partition.assignment
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False), offsets


def shuffle_clusters(order: Integers, offsets: Integers, *, seed: int) -> None:
    """Put the items of each cluster into random order, in place, so that any stretch of a cluster is a fair sample of it.

    Catalogues come sorted by popularity or date, and neighbours are alike.  Clusters that a sample takes whole stay.
    """
    random = np.random.default_rng(seed)
    for cluster in np.flatnonzero(np.diff(offsets) > SHORTEST_STRETCH).tolist():
        random.shuffle(order[offsets[cluster] : offsets[cluster + 1]])


def inverse_order(order: Integers) -> NDArray[Any]:
    """Where each item goes: positions (n,) with positions[order[p]] = p.

    int32 below two thousand million items, which is half the memory; int64 from there on.
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
    # In ascending order a memmap is read from front to back.
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

    A centroid that lost its items moves onto an item drawn in proportion to its squared distance, as k-means++ does.
    weights (m,), positive: how much each item counts.
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

    vectors are framed already where no frame is given; `squares` receives the squared distances.
    """
    n, d = vectors.shape
    index = faiss.IndexFlatL2(d)
    index.add(centroids)
    step = min(BLOCK_ROWS, max(256, BLOCK_ELEMENTS // d))

    def work(start: int) -> int:
        rows = vectors[start : start + step]
        distances, nearest = index.search(frame(rows) if frame else rows, 1)
        # An item 1e19 times longer than all sampled ones overflows and has no nearest centroid; any cluster will do.
        labels[start : start + step] = np.maximum(nearest[:, 0], 0)
        if squares is not None:
            squares[start : start + step] = distances[:, 0]
        return int(min(start + step, n))

    yield from pool.map(work, range(0, n, step))


def _update(
    sample: Floats, labels: NDArray[np.int32], centroids: Floats, pool: Executor, weights: Doubles | None
) -> Integers:
    """Move each centroid to the mean of its items; returns the clusters (e,) int64 that have none."""
    rows, offsets = order_by_cluster(Partition(labels, len(centroids)))

    def work(clusters: range) -> None:
        for cluster in clusters:
            members = rows[offsets[cluster] : offsets[cluster + 1]]
            if members.size:
                rows_of_cluster = sample.take(members, axis=0)
                centroids[cluster] = (
                    rows_of_cluster.mean(axis=0)
                    if weights is None
                    else np.average(rows_of_cluster, axis=0, weights=weights[members])
                )

    step = 64
    starts = range(0, len(centroids), step)
    for _ in pool.map(work, [range(start, min(start + step, len(centroids))) for start in starts]):
        pass
    return np.flatnonzero(np.diff(offsets) == 0)


def _fill_empty_clusters(vectors: NDArray[Any], assignment: NDArray[np.int32], clusters: int, frame: Frame) -> None:
    """Give each empty cluster the far part of one of the largest clusters, in place, as long as any can be split."""
    whole = np.zeros(clusters, dtype=bool)
    for _ in range(SPLIT_ROUNDS):
        rows, offsets = order_by_cluster(Partition(assignment, clusters))
        sizes = np.diff(offsets)
        empty = np.flatnonzero(sizes == 0)
        candidates = np.flatnonzero((sizes > 1) & ~whole)
        if not empty.size or not candidates.size:
            return
        donors = candidates[np.argsort(-sizes[candidates], kind="stable")][: empty.size]
        for donor, cluster in zip(donors, empty, strict=False):
            far = _far_part(vectors, rows[offsets[donor] : offsets[donor + 1]], frame)
            assignment[far] = cluster
            whole[donor] = not far.size


def _far_part(vectors: NDArray[Any], members: Integers, frame: Frame) -> Integers:
    """The members nearer to the farthest member than to the mean; none where all members are equal."""
    step = max(256, BLOCK_ELEMENTS // vectors.shape[1])
    blocks = [members[start : start + step] for start in range(0, len(members), step)]
    mean = sum(frame(vectors[block]).sum(axis=0, dtype=np.float64) for block in blocks) / len(members)
    squares = np.concatenate([_squares(frame(vectors[block]), mean) for block in blocks])
    far = frame(vectors[members[np.argmax(squares), None]])[0]
    nearer = np.concatenate([_squares(frame(vectors[block]), far) for block in blocks]) < squares
    # Rounding of the mean can send equal members all to one side; that is no split.
    return members[nearer] if not nearer.all() else members[:0]


def _squares(rows: Floats, point: NDArray[np.floating[Any]]) -> Doubles:
    """Squared distances (m,) float64 of rows (m, d) from a point (d,)."""
    difference = rows - point.astype(np.float64)
    squares: Doubles = np.einsum("md,md->m", difference, difference)
    return squares
