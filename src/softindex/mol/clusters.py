"""ItemClusters: items close to each other, and what they differ in, in few dimensions: a first stage of searches."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_threads
from softindex.blas import blas_threads
from softindex.blocks import blocks
from softindex.partition.kmeans import partition
from softindex.partition.nearest import assign
from softindex.partition.order import inverse_order, order_by_cluster
from softindex.records import Doubles, Floats, Integers, Partition
from softindex.workers import workers

__all__ = ["ItemClusters", "default_clusters"]

STALE = 4
"""Clusters are formed anew once a share of the items larger than one in so many has come or gone."""
ITERATIONS = 4
"""Of k-means: more take longer than they help."""
RANK = 32
"""Directions in which the differences of items from their centres are kept; most of what changes scores is there."""
SAMPLED = 1 << 16
"""Items that the directions are fitted to."""
BLOCK, BLOCK_VALUES = 8192, 1 << 22
"""Items handled at a time, and the numbers of their components."""
SPARE, TURNS = 8, 8
"""Vectors beyond the rank, and iterations, that find the directions."""


@dataclass(frozen=True, slots=True)
class ItemClusters:
    """Clusters of n items, as the kernels read them."""

    offsets: Integers
    """(k + 1,) cluster c holds the items order[offsets[c]:offsets[c + 1]]."""
    order: Integers
    """(n,) position of the item at each place."""
    centres: Floats
    """(k, P_x, d) mean components; zeros for an empty cluster."""
    gates: Floats | None
    """(k, P) mean gates; None where items have none."""
    basis: Floats
    """(r, P_x, d) orthonormal directions in which items differ most from their centres."""
    features: Floats
    """(n, r) of the item at each place: its difference from the centre, in these directions."""
    spreads: Floats
    """(k, r) root mean square of the features."""
    fitted: int
    """Number of items that the clusters were formed of."""
    changed: int
    """Number of items that were added or removed since."""

    @classmethod
    def fit(cls, components: Floats, gates: Floats | None, count: int) -> ItemClusters:
        """Form `count` clusters of items with these components and gates; the same ones for any number of threads."""
        threads, step = check_threads(None), 1 + len(components) // SAMPLED
        scale = 0.0 if gates is None else _gate_scale(components[::step], gates[::step])
        rows: Any = _Joined(components, gates, scale)
        order, offsets = order_by_cluster(
            partition(rows, count, seed=0, threads=threads, iterations=ITERATIONS, relocations=1)
        )
        with blas_threads(1), workers(threads) as pool:
            centres = _means(components, order, offsets, pool)
            centre_gates = None if gates is None else _means(gates, order, offsets, pool)
            basis = _directions(components, order, (labels := _labels(offsets)), centres, pool)
            features = _features(components, order, labels, centres, basis, pool)
            spreads = np.sqrt(_means(np.square(features), np.arange(len(order)), offsets, pool))
        return cls(offsets, order, centres, centre_gates, basis, features, spreads, len(components), 0)

    def __len__(self) -> int:
        return len(self.centres)

    def problem(self) -> str | None:
        """What is wrong with these clusters, in words; None if every item is in one cluster and has features."""
        n = len(self.order)
        if len(self.basis) == 0:
            return "clusters.basis has no directions"
        # Differences of lies may overflow.
        if self.offsets[0] != 0 or self.offsets[-1] != n or (self.offsets[1:] < self.offsets[:-1]).any():
            return "clusters.offsets do not divide the items into clusters"
        if self.order.min() < 0 or self.order.max() >= n or (np.bincount(self.order, minlength=n) != 1).any():
            return "clusters.order does not hold every item once"
        return None

    def places(self) -> Integers:
        """(n,) place of each item in the order of the clusters."""
        return inverse_order(self.order).astype(np.int64)

    def join(self, components: Floats, gates: Floats | None) -> ItemClusters:
        """These clusters with more items after the present ones, each in the cluster with the nearest centre."""
        old, labels = len(self.order), np.empty(len(components), np.int32)
        scale = 0.0 if gates is None or self.gates is None else _gate_scale(self.centres, self.gates)
        rows: Any = _Joined(components, gates, scale)
        with blas_threads(1), workers(check_threads(None)) as pool:
            # An empty cluster has no centre.
            held = np.flatnonzero(np.diff(self.offsets)).astype(np.int32)
            for _ in assign(rows, _Joined(self.centres, self.gates, scale)[held], pool, labels=labels):
                pass
            labels = held[labels]
            features = _features(components, np.arange(len(labels)), labels, self.centres, self.basis, pool)
        present = np.empty(old, np.int32)
        present[self.order] = _labels(self.offsets)
        order, offsets = order_by_cluster(Partition(np.concatenate([present, labels]), len(self)))
        # Rows of the present features, and of the new ones after them, in the new order.
        source = np.concatenate([self.places(), np.arange(old, old + len(labels))])[order]
        joined = np.concatenate([self.features, features])[source]
        changed = self.changed + len(labels)
        return replace(self, offsets=offsets, order=order, features=joined, changed=changed)

    def take(self, positions: Integers) -> ItemClusters:
        """The clusters with only the items at these positions, which increase; these are numbered anew."""
        renumbered = np.full(len(self.order), -1, np.int64)
        renumbered[positions] = np.arange(len(positions))
        order = renumbered[self.order]
        kept = order >= 0
        offsets = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
        changed = self.changed + len(order) - len(positions)
        return replace(self, offsets=offsets, order=order[kept], features=self.features[kept], changed=changed)

    def current(self, components: Floats, gates: Floats | None) -> ItemClusters:
        """These clusters of the items; formed anew where changes since then are more than a quarter of them."""
        n = len(components)
        if STALE * self.changed <= n:
            return self
        return ItemClusters.fit(components, gates, min(n, max(1, round(len(self) * math.sqrt(n / self.fitted)))))

    def size(self) -> float:
        """The largest length of a component of a centre."""
        return float(np.sqrt(np.square(self.centres, dtype=np.float64).sum(axis=2).max()))

    def feature_error(self, components: Floats) -> float:
        """Largest difference of a feature from that of the item."""
        with blas_threads(1), workers(check_threads(None)) as pool:
            again = _features(components, self.order, _labels(self.offsets), self.centres, self.basis, pool)
        with np.errstate(invalid="ignore", over="ignore"):
            return float(np.abs(again - self.features).max())


def _labels(offsets: Integers) -> Integers:
    """(n,) cluster of each place."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _means(values: Floats, order: Integers, offsets: Integers, pool: Executor) -> Floats:
    """(k, ...) mean of the values of each cluster; zeros for an empty one."""
    means = np.zeros((len(offsets) - 1, *values.shape[1:]), np.float32)

    def work(cluster: int) -> None:
        members = order[offsets[cluster] : offsets[cluster + 1]]
        means[cluster] = values[members].mean(axis=0, dtype=np.float64)

    list(pool.map(work, np.flatnonzero(np.diff(offsets)).tolist()))
    return means


def _directions(components: Floats, order: Integers, labels: Integers, centres: Floats, pool: Executor) -> Floats:
    """Nearly the principal directions of the differences of items from their centres; some of the items are enough.

    Items may have thousands of numbers: these are power iterations on a few vectors, from a random start.
    """
    step, length = 1 + len(order) // SAMPLED, components[0].size
    some, centre_of = order[::step], labels[::step]

    def turn(part: slice) -> Doubles:
        differences = components[some[part]].astype(np.float64) - centres[centre_of[part]]
        flat = differences.reshape(len(differences), -1)
        return np.asarray(flat.T @ (flat @ vectors))

    parts = list(blocks(len(some), max(1, min(BLOCK, BLOCK_VALUES // length))))
    vectors = np.random.default_rng(0).standard_normal((length, min(length, RANK + SPARE)))
    for _ in range(TURNS):
        vectors, _ = np.linalg.qr(sum(pool.map(turn, parts)))
    best = vectors[:, :RANK].T
    return np.ascontiguousarray(best.reshape(-1, *components.shape[1:]), np.float32)


def _features(
    components: Floats, order: Integers, labels: NDArray[Any], centres: Floats, basis: Floats, pool: Executor
) -> Floats:
    """(n, r) differences of the items in this order from their centres, along the basis."""
    features, directions = np.empty((len(order), len(basis)), np.float32), basis.reshape(len(basis), -1).T

    def work(part: slice) -> None:
        differences = components[order[part]] - centres[labels[part]]
        features[part] = differences.reshape(len(differences), -1) @ directions

    list(pool.map(work, blocks(len(order), BLOCK)))
    return features


@dataclass(frozen=True, slots=True)
class _Joined:
    """Components and scaled gates side by side, as k-means reads them: in blocks, so that no copy of all is made."""

    components: NDArray[np.float32]
    gates: NDArray[np.float32] | None
    scale: float

    def __len__(self) -> int:
        return len(self.components)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        gates = 0 if self.gates is None else self.gates.shape[1]
        return len(self), self.components[0].size + gates

    def __getitem__(self, rows: Any) -> Floats:
        components = self.components[rows]
        flat: Floats = components.reshape(len(components), -1)
        if self.gates is None:
            return flat
        return np.concatenate([flat, self.gates[rows] * np.float32(self.scale)], axis=1)


def default_clusters(n: int) -> int:
    """The number of clusters of n items: smaller ones are expanded better, and more centres take longer to score."""
    return min(n, round(2 * math.sqrt(n)))


def _gate_scale(components: Floats, gates: Floats) -> float:
    """The factor that makes gates spread as widely as components, or as numbers of size one if all items are alike."""
    spread = float(gates.std(axis=0, dtype=np.float64).mean())
    wanted = float(components.std(axis=0, dtype=np.float64).mean()) or 1.0
    return wanted / spread if spread > 1e-30 else 0.0
