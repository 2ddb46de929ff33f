"""Move centroids from where k-means has too many to where it has too few, which Lloyd's iterations cannot do."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from softindex.blas import blas_threads
from softindex.blocks import blocks
from softindex.partition.nearest import Search
from softindex.partition.order import order_by_cluster
from softindex.records import Doubles, Floats, Integers, Partition

__all__ = ["Nearest", "Relocation", "two_means"]

MARGIN = 1.2
"""A gain must exceed the cost by this factor, because both are estimates."""
CHANGE = 0.1
"""A cluster that gained too little is tried again when its size changed, or its sum of squares grew, by this part."""
PATIENCE = 2
"""Relocation ends when nothing moved in this many successive calls."""
# More items, rounds or starts cost time and hardly found better splits.
SPLIT_ITEMS = 512
SPLIT_ROUNDS = 4
STARTS = 4
BLOCK_CENTROIDS = 4096


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest centroid of each item: labels (m,) int32, and squared distances (m,) float32 to it and the second."""

    labels: NDArray[np.int32]
    squares: Floats
    second: Floats


@dataclass(frozen=True, slots=True)
class Split:
    """Two centroids (d,) for the items of a cluster, and by how much they lower the sum of squared distances."""

    gain: float
    first: Floats
    second: Floats


class Relocation:
    """Moves centroids between Lloyd's iterations, and remembers where that did not help."""

    def __init__(self, clusters: int) -> None:
        self._idle = 0
        self._gains = np.zeros(clusters)
        """The gain of each cluster, its sum of squares and its size when it was last tried."""
        self._sums = np.zeros(clusters)
        self._sizes = np.zeros(clusters)

    @property
    def finished(self) -> bool:
        """Whether further calls would hardly move a centroid."""
        return self._idle >= PATIENCE

    def __call__(
        self, sample: Floats, nearest: Nearest, centroids: Floats, pool: Executor, random: np.random.Generator
    ) -> Integers:
        """Move centroids, in place, where that lowers the sum of squares; returns the clusters that they left.

        Removing a centroid costs about the sum over its items of the difference between their second and their nearest
        squared distance.  A second centroid in a cluster gains as much as 2-means of its items.  The centroid that
        costs least moves to the cluster that gains most, and so on, while the gain exceeds the cost by a margin.

        The centroids are the means of the items that `nearest` assigns to them.
        """
        clusters, labels = len(centroids), nearest.labels
        sizes = np.bincount(labels, minlength=clusters)
        sums = np.bincount(labels, weights=nearest.squares, minlength=clusters)
        difference = nearest.second.astype(np.float64) - nearest.squares
        cost = np.bincount(labels, weights=difference, minlength=clusters).astype(np.float64, copy=False)
        changed = (sums > (1 + CHANGE) * self._sums) | (np.abs(sizes - self._sizes) > CHANGE * self._sizes)
        promising = _promising(np.where(changed, np.inf, self._gains), cost)
        with blas_threads(1):
            splits = _splits(sample, Partition(labels, clusters), promising, pool, random)
        self._sums[promising], self._sizes[promising] = sums[promising], sizes[promising]
        self._gains[promising] = [splits[cluster].gain if cluster in splits else 0.0 for cluster in promising]
        left = _move(centroids, splits, cost, _neighbours(centroids, pool))
        self._idle = 0 if left.size else self._idle + 1
        return left


def _promising(gains: Doubles, cost: Doubles) -> list[int]:
    """The clusters with the largest gains (k,), as many as can exceed the smallest costs (k,)."""
    order = np.argsort(-gains, kind="stable")
    worthwhile = gains[order] > MARGIN * np.sort(cost)
    clusters: list[int] = order[: len(order) if worthwhile.all() else int(np.argmin(worthwhile))].tolist()
    return clusters


def _splits(
    sample: Floats, parts: Partition, promising: list[int], pool: Executor, random: np.random.Generator
) -> dict[int, Split]:
    """2-means of each promising cluster, or of random members of a large one, where these can be separated."""
    rows, offsets = order_by_cluster(parts)

    def split(cluster: int, seed: int) -> Split | None:
        members = rows[offsets[cluster] : offsets[cluster + 1]]
        generator = np.random.default_rng(seed)
        chosen = members if len(members) <= SPLIT_ITEMS else generator.choice(members, SPLIT_ITEMS, replace=False)
        result = two_means(sample[chosen], generator)
        return result and replace(result, gain=result.gain * len(members) / len(chosen))

    seeds = random.integers(1 << 62, size=len(promising)).tolist()
    results = zip(promising, pool.map(split, promising, seeds), strict=True)
    return {cluster: result for cluster, result in results if result is not None}


# In few dimensions BLAS also multiplies what happens to lie behind a vector and discards the products, but the
# processor's flag for an invalid operation stays up.  The points are finite: builds check them.
@np.errstate(invalid="ignore")
def two_means(points: Floats, random: np.random.Generator) -> Split | None:
    """2-means of the points (m, d); None where they cannot be separated."""
    if len(points) < 2:
        return None
    mean = points.mean(axis=0)
    points = points - mean
    start = _start(points, random)
    if start is None:
        return None
    first, second = start
    gain = 0.0
    for _ in range(SPLIT_ROUNDS):
        axis = first - second
        side = points @ axis > (first + second) @ axis / 2
        count = np.count_nonzero(side)
        if not 0 < count < len(points):
            return None
        # The points sum to zero, so one side's sum gives both means and the gain.
        total: Floats = side.astype(np.float32) @ points
        first, second = total / np.float32(count), -total / np.float32(len(points) - count)
        gain = float(total @ (first - second))
    return Split(gain, mean + first, mean + second)


def _start(points: Floats, random: np.random.Generator) -> tuple[Floats, Floats] | None:
    """Two of the points (m, d), whose mean is 0, to start from; None where all are equal.

    The first is the best of several, as a centroid beside the mean: the farthest point alone finds a small group, but
    also an outlier.  The second is drawn in proportion to the squared distance from the first, as in k-means++.
    """
    squares = np.einsum("md,md->m", points, points)
    chosen = [int(np.argmax(squares)), *_draw(squares, STARTS - 1, random)]
    products = points @ points[chosen].T
    gains = np.maximum(2 * products - squares[chosen], 0).sum(axis=0)
    best = int(np.argmax(gains))
    first = chosen[best]
    away = np.maximum(squares - 2 * products[:, best] + squares[first], 0)
    away[first] = 0
    return next(((points[first], points[second]) for second in _draw(away, 1, random)), None)


def _draw(weights: Floats, count: int, random: np.random.Generator) -> list[int]:
    """Positions drawn in proportion to weights (m,); none where all are zero."""
    running = np.cumsum(weights, dtype=np.float64)
    if not running[-1] > 0:
        return []
    # Rounding can reach the total itself, which belongs to no position.
    found = np.searchsorted(running, random.random(count) * running[-1], side="right")
    positions: list[int] = np.minimum(found, len(weights) - 1).tolist()
    return positions


def _move(centroids: Floats, splits: dict[int, Split], cost: Doubles, heirs: Integers) -> Integers:
    """Give the splits that gain most the centroids that cost least; returns the clusters that these left."""
    cheapest = iter(np.argsort(cost, kind="stable").tolist())
    kept, left = set[int](), set[int]()
    for cluster in sorted(splits, key=lambda cluster: -splits[cluster].gain):
        if cluster in left:
            continue
        # The cost of a removal is right only while the nearest centroid, which takes over the items, stays.
        free = next((c for c in cheapest if c != cluster and c not in kept and heirs[c] not in left), None)
        if free is None or splits[cluster].gain <= MARGIN * cost[free]:
            break
        kept |= {cluster, int(heirs[free])}
        left.add(free)
        centroids[cluster], centroids[free] = splits[cluster].first, splits[cluster].second
    return np.array(sorted(left), dtype=np.int64)


def _neighbours(centroids: Floats, pool: Executor) -> Integers:
    """The nearest other centroid of each centroid, (k,) int64."""
    search = Search(centroids)

    def others(part: slice) -> Integers:
        found = np.empty(part.stop - part.start, np.int64)
        for block, products in search.closeness(centroids[part]):
            places = np.arange(len(products))
            products[places, part.start + block.start + places] = -np.inf
            found[block] = products.argmax(axis=1)
        return found

    return np.concatenate(list(pool.map(others, blocks(len(centroids), BLOCK_CENTROIDS))))
