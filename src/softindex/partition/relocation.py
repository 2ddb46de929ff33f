"""Move centroids from where k-means has too many to where it has too few, which Lloyd's iterations cannot do."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, replace

import faiss
import numpy as np
from numpy.typing import NDArray

from softindex.partition.order import order_by_cluster
from softindex.records import Doubles, Floats, Integers, Partition

__all__ = ["Nearest", "Relocation", "two_means"]

MARGIN = 1.2
"""A gain must exceed the cost by this factor, because both are estimates."""
CHANGE = 1.05
"""A cluster that gained too little is tried again once its sum of squares has grown by this factor."""
SPLIT_ITEMS = 512
SPLIT_ROUNDS = 4


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
        self.finished = False
        """Whether the last call moved no centroid; further calls would not either."""
        self._gains = np.zeros(clusters)
        self._sums = np.zeros(clusters)

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
        sums = np.bincount(labels, weights=nearest.squares, minlength=clusters)
        difference = nearest.second.astype(np.float64) - nearest.squares
        cost = np.bincount(labels, weights=difference, minlength=clusters).astype(np.float64, copy=False)
        promising = self._promising(sums, cost)
        splits = _splits(sample, Partition(labels, clusters), promising, pool, random)
        self._sums[promising] = sums[promising]
        self._gains[promising] = [splits[cluster].gain if cluster in splits else 0.0 for cluster in promising]
        # In a worker: only there does faiss use one thread.
        heirs = next(iter(pool.map(_neighbours, [centroids])))
        left, split = _move(centroids, splits, cost, heirs)
        self._sums[left] = self._sums[split] = 0.0
        self.finished = not left.size
        return left

    def _promising(self, sums: Doubles, cost: Doubles) -> list[int]:
        """The clusters whose gain, if it is the last one known, is among the largest that can exceed a cost."""
        gains = np.where(sums > CHANGE * self._sums, np.inf, self._gains)
        order = np.argsort(-gains, kind="stable")
        worthwhile = gains[order] > MARGIN * np.sort(cost)
        return order[: len(order) if worthwhile.all() else int(np.argmin(worthwhile))].tolist()


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


def two_means(points: Floats, random: np.random.Generator) -> Split | None:
    """2-means of the points (m, d), from a start as in k-means++; None where they cannot be separated."""
    if len(points) < 2:
        return None
    mean = points.mean(axis=0)
    points = points - mean
    here = _distant(points, np.zeros_like(mean), random)
    there = None if here is None else _distant(points, points[here], random)
    if here is None or there is None:
        return None
    first, second, gain = points[here], points[there], 0.0
    for _ in range(SPLIT_ROUNDS):
        axis = first - second
        side = np.einsum("md,d->m", points, axis) > (first + second) @ axis / 2
        count = np.count_nonzero(side)
        if not 0 < count < len(points):
            return None
        # The points sum to zero, so one side's sum gives both means and the gain.
        total = points[side].sum(axis=0)
        first, second = total / count, -total / (len(points) - count)
        gain = float(total @ (first - second))
    return Split(gain, mean + first, mean + second)


def _distant(points: Floats, origin: Floats, random: np.random.Generator) -> int | None:
    """A random point, drawn in proportion to its squared distance from the origin; None where all are at distance 0."""
    difference = points - origin
    running = np.cumsum(np.einsum("md,md->m", difference, difference), dtype=np.float64)
    if not running[-1] > 0:
        return None
    return int(np.searchsorted(running, random.random() * running[-1], side="right"))


def _move(centroids: Floats, splits: dict[int, Split], cost: Doubles, heirs: Integers) -> tuple[Integers, Integers]:
    """Give the splits that gain most the centroids that cost least; returns the clusters left, and those split."""
    cheapest = iter(np.argsort(cost, kind="stable").tolist())
    kept, left, split = set[int](), set[int](), list[int]()
    for cluster in sorted(splits, key=lambda cluster: -splits[cluster].gain):
        if cluster in left:
            continue
        # The cost of a removal is right only while the nearest centroid, which takes over the items, stays.
        free = next((c for c in cheapest if c != cluster and c not in kept and heirs[c] not in left), None)
        if free is None or splits[cluster].gain <= MARGIN * cost[free]:
            break
        kept |= {cluster, int(heirs[free])}
        left.add(free)
        split.append(cluster)
        centroids[cluster], centroids[free] = splits[cluster].first, splits[cluster].second
    return np.array(sorted(left), dtype=np.int64), np.array(split, dtype=np.int64)


def _neighbours(centroids: Floats) -> Integers:
    """The nearest other centroid of each centroid, (k,) int64."""
    index = faiss.IndexFlatL2(centroids.shape[1])
    index.add(centroids)
    nearest = index.search(centroids, 2)[1]
    own = nearest[:, 0] == np.arange(len(centroids))
    return np.where(own, nearest[:, 1], nearest[:, 0])
