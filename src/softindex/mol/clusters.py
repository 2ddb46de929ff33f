"""ItemClusters: items close to each other, and what they differ in, in few dimensions: a first stage of searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
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

RANK = 32
"""Directions in which the differences of items from their centres are kept; most of what changes scores is there."""
SAMPLED = 1 << 16
"""Items that the directions are fitted to."""
BLOCK = 8192
"""Items handled at a time."""


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

    @classmethod
    def fit(cls, components: Floats, gates: Floats | None, count: int) -> ItemClusters:
        """Form `count` clusters of items with these components and gates; the same ones for any number of threads."""
        threads, n = check_threads(None), len(components)
        scale = 0.0 if gates is None else _gate_scale(components[:: 1 + n // SAMPLED], gates[:: 1 + n // SAMPLED])
        rows: Any = _Joined(components, gates, scale)
        order, offsets = order_by_cluster(partition(rows, count, seed=0, threads=threads))
        centres = np.zeros((count, *components.shape[1:]), np.float32)
        centre_gates = None if gates is None else np.zeros((count, gates.shape[1]), np.float32)
        features = np.empty((n, 0), np.float32)
        clusters = cls(offsets, order, centres, centre_gates, centres[:0], features, np.empty((count, 0), np.float32))
        with blas_threads(1), workers(threads) as pool:
            clusters._fill_centres(components, gates, pool)
            basis = clusters._fit_basis(components, pool)
            rank = len(basis)
            features, spreads = np.empty((n, rank), np.float32), np.zeros((count, rank), np.float32)
            clusters = cls(offsets, order, centres, centre_gates, basis, features, spreads)
            clusters._fill_features(components, pool)
        return clusters

    def __len__(self) -> int:
        return len(self.centres)

    def problem(self) -> str | None:
        """What is wrong with these clusters, in words; None if every item is in one cluster and has features."""
        n = len(self.order)
        if len(self.basis) == 0:
            return "clusters.basis has no directions"
        if self.offsets[0] != 0 or self.offsets[-1] != n or (np.diff(self.offsets) < 0).any():
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
            for _ in assign(rows, _Joined(self.centres, self.gates, scale)[:], pool, labels=labels):
                pass
            features = np.concatenate([self._project(components[part], labels[part]) for part in _parts(components)])
        present = np.empty(old, np.int32)
        present[self.order] = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.offsets))
        order, offsets = order_by_cluster(Partition(np.concatenate([present, labels]), len(self)))
        # Rows of the present features, and of the new ones after them, in the new order.
        source = np.concatenate([self.places(), np.arange(old, old + len(labels))])[order]
        joined = np.concatenate([self.features, features])[source]
        return ItemClusters(offsets, order, self.centres, self.gates, self.basis, joined, self.spreads)

    def take(self, positions: Integers) -> ItemClusters:
        """The clusters with only the items at these positions, which increase; these are numbered anew."""
        renumbered = np.full(len(self.order), -1, np.int64)
        renumbered[positions] = np.arange(len(positions))
        order = renumbered[self.order]
        kept = order >= 0
        offsets = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
        return ItemClusters(
            offsets, order[kept], self.centres, self.gates, self.basis, self.features[kept], self.spreads
        )

    def feature_error(self, components: Floats) -> float:
        """Largest difference of a feature from that of the item."""
        error = 0.0
        for cluster, place in self._clusters():
            members = components[self.order[place]]
            again = self._project(members, np.full(len(members), cluster))
            error = max(error, float(np.abs(again - self.features[place]).max()))
        return error

    def _clusters(self) -> Iterator[tuple[int, slice]]:
        """The clusters that are not empty, and their places."""
        for cluster in np.flatnonzero(np.diff(self.offsets)).tolist():
            yield cluster, slice(*self.offsets[cluster : cluster + 2].tolist())

    def _project(self, components: Floats, labels: NDArray[Any]) -> Floats:
        differences = (components - self.centres[labels]).reshape(len(components), -1)
        return np.asarray(differences @ self.basis.reshape(len(self.basis), -1).T)

    def _fill_centres(self, components: Floats, gates: Floats | None, pool: Executor) -> None:
        def work(one: tuple[int, slice]) -> None:
            cluster, place = one
            members = self.order[place]
            self.centres[cluster] = components[members].mean(axis=0, dtype=np.float64)
            if self.gates is not None and gates is not None:
                self.gates[cluster] = gates[members].mean(axis=0, dtype=np.float64)

        _run(pool, work, self._clusters())

    def _fit_basis(self, components: Floats, pool: Executor) -> Floats:
        """The principal directions of the differences of items from their centres."""
        shape, step = components.shape[1:], 1 + len(self.order) // SAMPLED
        labels = np.repeat(np.arange(len(self)), np.diff(self.offsets))

        def squares(part: slice) -> Doubles:
            some = slice(part.start * step, part.stop * step, step)
            members = components[self.order[some]].astype(np.float64)
            differences = (members - self.centres[labels[some]]).reshape(len(members), -1)
            return np.asarray(differences.T @ differences)

        total = sum(pool.map(squares, blocks(-(-len(self.order) // step), BLOCK)))
        _, vectors = np.linalg.eigh(total)
        best = vectors[:, ::-1][:, :RANK].T
        return np.ascontiguousarray(best.reshape(-1, *shape), np.float32)

    def _fill_features(self, components: Floats, pool: Executor) -> None:
        def work(one: tuple[int, slice]) -> None:
            cluster, place = one
            members = self.order[place]
            self.features[place] = self._project(components[members], np.full(len(members), cluster))
            self.spreads[cluster] = np.sqrt(np.square(self.features[place], dtype=np.float64).mean(axis=0))

        _run(pool, work, self._clusters())


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
    """The number of clusters of n items: a query scores as many centres as a cluster has items."""
    return round(math.sqrt(n))


def _gate_scale(components: Floats, gates: Floats) -> float:
    """The factor that makes gates spread as widely as components."""
    spread = float(gates.std(axis=0, dtype=np.float64).mean())
    return float(components.std(axis=0, dtype=np.float64).mean()) / spread if spread > 0 else 0.0


def _parts(rows: Floats) -> Iterator[slice]:
    return blocks(len(rows), BLOCK)


def _run(pool: Executor, work: Callable[[tuple[int, slice]], None], tasks: Iterator[tuple[int, slice]]) -> None:
    for _ in pool.map(work, tasks):
        pass
