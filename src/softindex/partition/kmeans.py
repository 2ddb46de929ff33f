"""Divide the items into clusters by k-means, so that a few thousand clusters summarise millions of items."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blas import blas_threads
from softindex.blocks import blocks
from softindex.errors import InputError
from softindex.partition.frame import Frame, fit_frame, fit_frame_to
from softindex.partition.nearest import BLOCK_ROWS, assign
from softindex.partition.order import order_by_cluster
from softindex.partition.relocation import Nearest, Relocation
from softindex.partition.sizes import LARGEST, fill_empty_clusters, limit_sizes
from softindex.records import Doubles, Floats, Integers, Partition, Report
from softindex.workers import workers

__all__ = [
    "ITERATIONS",
    "POINTS_PER_CENTROID",
    "Frame",
    "assign",
    "check_clusters",
    "fit_frame",
    "partition",
    "silent",
    "train",
]

# On real word vectors, more than ten iterations improve the clusters less than another seed does.
ITERATIONS = 10
# The default of faiss; fewer made visibly worse clusters.
POINTS_PER_CENTROID = 256
BLOCK_CLUSTERS = 64
# The last iterations relocate no centroids: those moved last settle.
SETTLING = 2
# From the centroids of similar items: one iteration to follow them, one that relocates centroids, one to settle.
WARM_ITERATIONS, WARM_RELOCATIONS = 3, 1
# Centroids to start from that lie farther away would overflow; the items themselves are within 2 of the origin.
FAR = np.float32(1e15)


def partition(
    vectors: NDArray[Any],
    clusters: int,
    *,
    seed: int,
    threads: int,
    iterations: int = ITERATIONS,
    relocations: int | None = None,
    largest: float | None = LARGEST,
    report: Report | None = None,
    trained: Floats | None = None,
    start: Floats | None = None,
) -> Partition:
    """Assign every item to one of `clusters` clusters by k-means.

    vectors (n, d) float32 or float16, finite, an array or a memmap that is only read in blocks.  Centroids are
    trained on at most 256 random items per cluster.  Every item then goes to its nearest centroid (in float32; the
    lower index where distances are equal).

    Clusters of more than `largest` times the mean size are split (None: none are), and the smallest clusters make room
    for the parts: their items go to the next nearest centroid.  A cluster stays larger only where one vector, repeated,
    makes up three quarters of it.  Clusters left empty take over the far items of a large cluster; they stay empty only
    where the items have fewer distinct vectors than there are clusters.

    trained: centroids (clusters, d) to use instead of training some, as shards of one catalogue do; start: centroids
    of similar items to start from, which takes fewer iterations.

    relocations: iterations that also move centroids to where they are missed most; None: all but the last ones.

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
    with blas_threads(1), workers(threads) as pool:
        frame, sample = _sample(vectors, clusters, random)
        moving = max(0, iterations - 1 - SETTLING) if relocations is None else relocations
        if trained is not None:
            centroids = np.ascontiguousarray(frame(trained), np.float32)
        else:
            if start is not None:
                iterations, moving = WARM_ITERATIONS, WARM_RELOCATIONS
            given = None if start is None else frame(start)
            centroids = train(
                sample, clusters, random, pool, iterations=iterations, report=progress, start=given, relocations=moving
            )
        del sample
        assignment = np.empty(n, dtype=np.int32)
        for done in assign(vectors, centroids, pool, frame=frame, labels=assignment):
            progress("assigning", done, n)
        if largest is not None:
            limit_sizes(vectors, assignment, centroids, frame, pool, random, largest)
    fill_empty_clusters(vectors, assignment, clusters, frame)
    return Partition(assignment, clusters)


def check_clusters(clusters: int, n: int) -> None:
    """Raise InputError unless n items can form this many clusters."""
    if clusters < 1:
        raise InputError(f"clusters is {clusters}; expected at least 1.")
    if clusters > n:
        raise InputError(f"clusters is {clusters}, but there are only {n} items; pass at most {n}.")


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def _sample(vectors: NDArray[Any], clusters: int, random: np.random.Generator) -> tuple[Frame, Floats]:
    """Random training items in a frame fitted to them, (s, d) float32."""
    n = len(vectors)
    size = min(n, clusters * POINTS_PER_CENTROID)
    # In ascending order, so that a memmap is read from front to back.
    rows = np.sort(random.choice(n, size, replace=False, shuffle=False)) if size < n else np.arange(n)
    return fit_frame_to(vectors, rows)


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
    relocations: int = 0,
    block: int = BLOCK_ROWS,
) -> Floats:
    """Lloyd's iterations from random items, or from `start`; returns centroids (clusters, d) float32.

    A centroid that lost its items moves to an item drawn in proportion to its squared distance, as in k-means++.
    weights (m,), positive, say how much each item counts.  At most `relocations` iterations, from the second on, also
    move centroids to where they are missed most; this does not support weights.  `block` is that of assign.
    """
    if relocations and weights is not None:
        raise ValueError("relocations are not supported with weights; pass relocations=0.")
    if start is None:
        chances = None if weights is None else weights / weights.sum()
        centroids = sample[np.sort(random.choice(len(sample), clusters, replace=False, p=chances))]
    else:
        centroids = np.clip(start, -FAR, FAR)
    labels = np.full(len(sample), -1, dtype=np.int32)
    squares, second = (np.empty(len(sample), dtype=np.float32) for _ in range(2))
    relocate = Relocation(clusters)
    for iteration in range(iterations):
        before = labels.copy()
        relocating = 1 <= iteration <= relocations and not relocate.finished
        runner_up = second if relocating else None
        for _ in assign(sample, centroids, pool, labels=labels, squares=squares, second=runner_up, block=block):
            pass
        empty = _update(sample, labels, centroids, pool, weights)
        moved = np.empty(0, dtype=np.int64)
        if relocating:
            moved = relocate(sample, Nearest(labels, squares, second), centroids, pool, random)
            empty = np.setdiff1d(empty, moved)
        if empty.size:
            _reseed(sample, squares, centroids, empty, random, weights)
        elif not moved.size and np.array_equal(before, labels):
            report("clustering", iterations, iterations)
            break
        report("clustering", iteration + 1, iterations)
    return centroids


def _reseed(
    sample: Floats,
    squares: Floats,
    centroids: Floats,
    empty: Integers,
    random: np.random.Generator,
    weights: Doubles | None,
) -> None:
    """Move the centroids of empty clusters to items drawn in proportion to their squared distances (m,)."""
    distance = np.maximum(squares, 0).astype(np.float64) * (1.0 if weights is None else weights)
    moved = empty[: np.count_nonzero(distance)]
    if moved.size:
        far = random.choice(len(sample), moved.size, replace=False, p=distance / distance.sum())
        centroids[moved] = sample[far]


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
