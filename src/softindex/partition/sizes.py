"""Even out the sizes of clusters: none empty, none far larger than the mean."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import blocks, rows_per_block
from softindex.partition.frame import Frame, fit_frame
from softindex.partition.nearest import BLOCK_ELEMENTS, assign
from softindex.partition.order import order_by_cluster
from softindex.partition.relocation import two_means
from softindex.records import Doubles, Floats, Integers, Partition

__all__ = ["LARGEST", "fill_empty_clusters", "limit_sizes"]

LARGEST = 8
"""Clusters of more than this many times the mean size are split."""
SMALLEST_SIDE = 1 / LARGEST
"""Of a split.  Both sides then hold more than the mean, so each split uses up a cluster smaller than it, and ends."""
SPLIT_ITEMS = 4096
HOMELESS_ITEMS = 1 << 16
# Each round splits every cluster that can be split, so this many rounds fill 2^32 clusters or leave none to split.
SPLIT_ROUNDS = 32


def limit_sizes(
    vectors: NDArray[Any],
    assignment: NDArray[np.int32],
    centroids: Floats,
    frame: Frame,
    pool: Executor,
    random: np.random.Generator,
    most: float = LARGEST,
) -> None:
    """Split every cluster of more than `most` times the mean size, in place, except where the items are mostly equal.

    One side of each split takes the place of the smallest cluster, whose items go to the nearest centroids that are
    left.  A cluster is not split where one vector makes up three quarters of it.  Changes the centroids, too.
    """
    clusters = len(centroids)
    limit = most * len(vectors) / clusters
    sizes = np.bincount(assignment, minlength=clusters)
    if sizes.max() <= limit:
        return
    rows, offsets = order_by_cluster(Partition(assignment, clusters))
    members = np.split(rows, offsets[1:-1])
    divisible = np.ones(clusters, dtype=bool)
    while sizes[largest := int(np.argmax(sizes * divisible))] * divisible[largest] > limit:
        right = _sides(vectors, members[largest], pool, random)
        if right is None:
            divisible[largest] = False
            continue
        smallest = int(np.argmin(sizes))
        homeless = members[smallest]
        members[largest], members[smallest] = members[largest][~right], members[largest][right]
        for cluster in (largest, smallest):
            centroids[cluster] = _centre(vectors, members[cluster], frame)
        labels = np.empty(len(homeless), dtype=np.int32)
        # In parts: a memmap may be larger than memory.
        for part in blocks(len(homeless), HOMELESS_ITEMS):
            list(assign(vectors[homeless[part]], centroids, pool, frame=frame, labels=labels[part]))
        for cluster in np.unique(labels).tolist():
            members[cluster] = np.concatenate([members[cluster], homeless[labels == cluster]])
            divisible[cluster] = True
        for cluster in {largest, smallest, *labels.tolist()}:
            sizes[cluster] = len(members[cluster])
    for cluster in range(clusters):
        assignment[members[cluster]] = cluster


def _sides(
    vectors: NDArray[Any], members: Integers, pool: Executor, random: np.random.Generator
) -> NDArray[np.bool_] | None:
    """Which members (m,) go to one side of a split by 2-means; None where at least three quarters are equal.

    A side that would be too small takes the items nearest to it.  Equal vectors stay on one side.
    """
    chosen = np.sort(random.choice(members, min(len(members), SPLIT_ITEMS), replace=False, shuffle=False))
    frame, points = fit_frame(vectors[chosen])
    axes = [random.standard_normal((vectors.shape[1],))]
    middle = frame.centre.astype(np.float64)
    split = two_means(points, random)
    if split is not None:
        axes.insert(0, split.second.astype(np.float64) - split.first)
        middle += (split.first.astype(np.float64) + split.second) / 2
    for axis in axes:
        right = _cut(_project(vectors, members, axis, pool), float(middle @ axis) / float(frame.scale))
        if right is not None:
            return right
    return None


def _project(vectors: NDArray[Any], members: Integers, axis: Doubles, pool: Executor) -> Doubles:
    """Dot products (m,) of the members with the axis (d,), the same for equal vectors."""
    step = rows_per_block(BLOCK_ELEMENTS, vectors.shape[1], least=256)

    def work(part: slice) -> Doubles:
        # Not a matrix product: BLAS may round differently for the last rows of a block.
        products: Doubles = (vectors[members[part]] * axis).sum(axis=1)
        return products

    return np.concatenate(list(pool.map(work, blocks(len(members), step))))


def _cut(values: Doubles, threshold: float) -> NDArray[np.bool_] | None:
    """Which values (m,) are above the threshold, or above the nearest one that leaves no side too small.

    None where no threshold does: then one value makes up at least three quarters.
    """
    m = len(values)
    least = int(np.ceil(SMALLEST_SIDE * m))
    ordered = np.sort(values)
    below = int(np.clip(np.searchsorted(ordered, threshold, side="right"), least, m - least))
    pivot = ordered[below]
    sides: list[NDArray[np.bool_]] = [values >= pivot, values > pivot]
    for right in sides:
        if least <= np.count_nonzero(right) <= m - least:
            return right
    return None


def _centre(vectors: NDArray[Any], members: Integers, frame: Frame) -> Floats:
    """The mean (d,) of evenly spaced members, in the frame."""
    mean: Floats = frame(vectors[members[:: 1 + len(members) // SPLIT_ITEMS]]).mean(axis=0)
    return mean


def fill_empty_clusters(vectors: NDArray[Any], assignment: NDArray[np.int32], clusters: int, frame: Frame) -> None:
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
