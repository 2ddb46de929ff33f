"""The moments of clusters that lost items: downdated in float64 while most is left, measured again where little is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from softindex.moments import measure
from softindex.outward import round_up
from softindex.records import Doubles, Floats, Integers, Json

__all__ = ["MOMENTS", "Clusters", "Remaining"]

MOMENTS = (
    "means",
    "log_sizes",
    "radii",
    "norm_min",
    "norm_max",
    "min_cosine",
    "reach",
    "bias_max",
    "forms",
    "scales",
    "spread",
    "excess",
)
"""Arrays with one entry per cluster."""

LEAST_LEFT = 0.5
"""A cluster that kept less than this part of its weight is measured again: a difference would lose digits."""
BLOCK_ITEMS = 1 << 15
"""Items that leave at a time, in float64."""
MOST_WAITING = 64
"""Removals that are not subtracted yet, at most: whoever needs the moments next pays for them."""


class Clusters(Protocol):
    """Clusters that lose items."""

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """MOMENTS of k clusters; "offsets" (k + 1,); "gone" (g,) positions of items that were removed before they were
        measured; "sums" (k, w) the items of each cluster, each times exp(log_bias - bias_max), added up in float64; and
        "log_bias" (n,) where items have one."""

    @property
    def parameters(self) -> Json:
        """Those of the index, "dispersion" and "rank" among them."""

    def cluster_of(self, positions: Integers) -> Integers:
        """The cluster at each position."""

    def vectors_at(self, positions: Integers) -> Floats:
        """(m, w) the vectors at these positions."""


class Remaining:
    """Moments of clusters without the items removed since they were measured; what is left is a subset.

    Norms stay bounds.  Radii and cones grow by what the mean moves.  A covariance of what is left is at most the old
    one times the old weight over the new one, which bounds the excess.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        k, w = clusters.arrays["means"].shape
        self._kind, self._rank = clusters.parameters["dispersion"], clusters.parameters["rank"]
        self._waiting: list[Integers] = []
        self._items_waiting = 0
        self._lost = np.zeros(k, np.int64)
        self._weights = np.zeros(k)
        self._sums = np.zeros((k, w))
        self._squares = np.zeros((k, max(1, self._rank)))
        self._traces = np.zeros(k)
        self._stale = np.zeros(k, bool)
        self.arrays: dict[str, NDArray[Any]] = {
            name: clusters.arrays[name] for name in MOMENTS if name in clusters.arrays
        }
        self._moved = np.zeros(k)
        """How far each mean moved."""

    def remove(self, positions: Integers) -> None:
        """Count the items at these positions, increasing, as gone; their share is subtracted when it is needed."""
        # A removal is cut into blocks from its start, whatever waits with it: the sums must not depend on that.
        if self._items_waiting + len(positions) > BLOCK_ITEMS or len(self._waiting) >= MOST_WAITING:
            self._subtract()
        self._waiting.append(positions)
        self._items_waiting += len(positions)

    def _subtract(self) -> None:
        """Subtract what left, each removal by itself: sums in another order would round differently."""
        if not self._waiting:
            return
        waiting, self._waiting, self._items_waiting = self._waiting, [], 0
        positions = np.concatenate(waiting)
        clusters = self._clusters.cluster_of(positions)
        new = np.diff(clusters, prepend=-1) != 0
        new[np.cumsum([len(one) for one in waiting[:-1]], dtype=np.int64)] = True
        starts = np.append(np.flatnonzero(new), len(positions))
        # As many clusters at a time as hold few items in float64.
        for start in range(0, len(positions), BLOCK_ITEMS):
            stop = min(start + BLOCK_ITEMS, len(positions))
            items = self._clusters.vectors_at(positions[start:stop]).astype(np.float64)
            weights = self._weights_of(positions[start:stop], clusters[start:stop])
            inside = starts[np.searchsorted(starts, start, "right") : np.searchsorted(starts, stop, "left")]
            for first, last in pairwise([0, *(inside - start).tolist(), stop - start]):
                self._remove_from(int(clusters[start + first]), items[first:last], weights[first:last])

    @property
    def lost(self) -> Integers:
        """(k,) the items that each cluster lost."""
        self._subtract()
        return self._lost

    def _weights_of(self, positions: Integers, clusters: Integers) -> Doubles:
        arrays = self._clusters.arrays
        if "log_bias" not in arrays:
            return np.ones(len(positions))
        relative: Doubles = arrays["log_bias"][positions].astype(np.float64) - arrays["bias_max"][clusters]
        return np.exp(relative)

    def _remove_from(self, cluster: int, items: Doubles, weights: Doubles) -> None:
        arrays = self._clusters.arrays
        self._lost[cluster] += len(items)
        self._weights[cluster] += weights.sum()
        self._sums[cluster] += weights @ items
        self._stale[cluster] = True
        if self._kind != "rank":
            return
        away = items - arrays["means"][cluster]
        self._traces[cluster] += weights @ np.einsum("nd,nd->n", away, away)
        along = away @ _directions(arrays["forms"][cluster : cluster + 1])[0].T
        self._squares[cluster] += weights @ along**2

    def sums(self) -> Doubles:
        """(k, w) the sums of the clusters without what left."""
        self._subtract()
        return self._clusters.arrays["sums"] - self._sums

    def reached(self, farthest: float) -> float:
        """Bound on the distance of an item from its mean, if none was farther than `farthest` before items left.

        Clusters that nothing left are not looked at: `farthest` is the bound for them.
        """
        moved = self._moved > 0
        if not moved.any():
            return farthest
        # No item is farther from the mean than the radius, even where the mean moved a long way.
        away = np.minimum(farthest + self._moved[moved], self.arrays["radii"][moved].astype(np.float64))
        return max(farthest, float(away.max()))

    def update(self, removed: NDArray[np.bool_]) -> None:
        """Bring `arrays` up to date.  removed (extent,): whether the item at a position is gone."""
        self._subtract()
        stale = np.flatnonzero(self._stale)
        if not len(stale):
            return
        arrays = self._clusters.arrays
        self.arrays = {name: array if name == "forms" else array.copy() for name, array in self.arrays.items()}
        before = np.exp(arrays["log_sizes"][stale] - (arrays["bias_max"][stale] if "bias_max" in arrays else 0.0))
        left = before - self._weights[stale]
        count = np.diff(arrays["offsets"])[stale] - np.diff(np.searchsorted(arrays["gone"], arrays["offsets"]))[stale]
        empty = count == self._lost[stale]
        few = ~empty & ((left < LEAST_LEFT * before) | (self._kind == "full"))
        self._clear(stale[empty])
        self._measure(stale[few], removed)
        kept = ~empty & ~few
        self._downdate(stale[kept], before[kept], left[kept], (count - self._lost[stale])[kept])
        self._stale[:] = False

    def _clear(self, clusters: Integers) -> None:
        self.arrays["log_sizes"][clusters] = -np.inf
        self._moved[clusters] = 0.0

    def _measure(self, clusters: Integers, removed: NDArray[np.bool_]) -> None:
        """Measure clusters from the items that are left."""
        if not len(clusters):
            return
        source = self._clusters
        if "forms" in self.arrays:
            self.arrays["forms"] = self.arrays["forms"].copy()
        dispersion = self._rank if self._kind == "rank" else self._kind
        offsets = source.arrays["offsets"]
        for cluster in clusters.tolist():
            places = np.arange(offsets[cluster], offsets[cluster + 1])
            places = places[~removed[places]]
            bias = source.arrays["log_bias"][places] if "log_bias" in source.arrays else None
            items, span = source.vectors_at(places), np.array([0, len(places)])
            moments = measure(items, span, log_bias=bias, dispersion=dispersion, threads=1)
            self._store(cluster, moments)
        away = self.arrays["means"][clusters].astype(np.float64) - source.arrays["means"][clusters]
        self._moved[clusters] = np.linalg.norm(away, axis=1) * (1 + 1e-12)

    def _store(self, cluster: int, moments: Any) -> None:
        for name in ("means", "log_sizes", "radii", "norm_min", "norm_max", "min_cosine", "reach", "bias_max"):
            if name in self.arrays:
                self.arrays[name][cluster] = getattr(moments, name)[0]
        for name in ("forms", "scales", "spread", "excess"):
            if name in self.arrays:
                self.arrays[name][cluster] = getattr(moments.dispersion, name)[0]

    def _downdate(self, clusters: Integers, before: Doubles, left: Doubles, count: Integers) -> None:
        old, new = self._clusters.arrays, self.arrays
        means = (old["sums"][clusters] - self._sums[clusters]) / left[:, None]
        stored = means.astype(np.float32)
        centre = old["means"][clusters].astype(np.float64)
        moved = np.linalg.norm(stored - centre, axis=1) * (1 + 1e-12)
        new["means"][clusters] = stored
        # Without biases the weight is a count, and exact.
        new["log_sizes"][clusters] = (
            np.log(left) + old["bias_max"][clusters] if "bias_max" in old else np.log(count.astype(np.float64))
        )
        new["radii"][clusters] = round_up(old["radii"][clusters].astype(np.float64) + moved)
        new["min_cosine"][clusters] = _wider(old["min_cosine"][clusters], centre, stored.astype(np.float64))
        lengths = np.einsum("kd,kd->k", stored, stored, dtype=np.float64)
        reach = old["reach"][clusters] * np.einsum("kd,kd->k", centre, centre) + old["norm_max"][clusters] * moved
        new["reach"][clusters] = np.where(lengths > 0, np.clip(reach / np.maximum(lengths, 1e-300), 1.0, 1e30), 1.0)
        self._moved[clusters] = moved
        if self._kind == "rank":
            self._downdate_forms(clusters, before / left, left, means - centre)

    def _downdate_forms(self, clusters: Integers, growth: Doubles, left: Doubles, shift: Doubles) -> None:
        """The variance along every kept direction and in total, without what left; the directions stay."""
        old, new = self._clusters.arrays, self.arrays
        forms, d = old["forms"][clusters], shift.shape[1]
        lengths = old["scales"][clusters].astype(np.float64) ** 2 * np.einsum(
            "krd,krd->kr", forms, forms, dtype=np.float64
        )
        spread = old["spread"][clusters].astype(np.float64)
        units = _directions(forms)
        along = growth[:, None] * (lengths + spread[:, None]) - self._squares[clusters] / left[:, None]
        along = np.maximum(along - np.einsum("krd,kd->kr", units, shift) ** 2, 0.0)
        total = growth * (lengths.sum(axis=1) + d * spread) - self._traces[clusters] / left
        total = np.maximum(total - np.einsum("kd,kd->k", shift, shift), along.sum(axis=1))
        rest = np.maximum(0.0, total - along.sum(axis=1)) / max(1, d - self._rank) * (d > self._rank)
        kept = np.maximum(along - rest[:, None], 0.0)
        scale = np.sqrt(np.divide(kept, lengths, out=np.zeros_like(kept), where=lengths > 0))
        new["scales"][clusters], new["spread"][clusters] = old["scales"][clusters] * scale, rest
        # The old form times its growth is a bound, and its excess over the new one goes into the excess.  The rows of
        # |units units'| bound the largest eigenvalue, as rounded directions are not quite orthogonal.
        overlap = np.abs(np.einsum("krd,ksd->krs", units, units)).sum(axis=2).max(axis=1)
        above = np.maximum(growth[:, None] * lengths - kept, 0.0).max(axis=1) * overlap
        above += np.maximum(growth * spread - rest, 0.0)
        slack = 1e-6 * (growth * lengths.sum(axis=1) + growth * spread)
        new["excess"][clusters] = round_up(growth * old["excess"][clusters] + above + slack)


def _directions(forms: NDArray[Any]) -> Doubles:
    """(m, r, d) the forms scaled to length one; zero where a form is."""
    rows = forms.astype(np.float64)
    lengths = np.sqrt(np.einsum("mrd,mrd->mr", rows, rows))
    units: Doubles = rows / np.maximum(lengths, 1e-300)[:, :, None]
    return units


def _wider(cosines: Floats, old: Doubles, new: Doubles) -> Floats:
    """Cosines of cones about new axes that hold cones of these cosines about the old ones, rounded down."""
    norms = np.linalg.norm(old, axis=1) * np.linalg.norm(new, axis=1)
    between = np.divide(np.einsum("kd,kd->k", old, new), norms, out=np.full(len(norms), -1.0), where=norms > 0)
    # The arc of a cosine near one loses half of its digits.
    turn = np.arccos(np.clip(between - 1e-12, -1.0, 1.0)) + 1e-12
    angle = np.minimum(np.arccos(np.clip(cosines.astype(np.float64), -1.0, 1.0)) + turn, np.pi)
    wider: Floats = np.nextafter((np.cos(angle) - 1e-9).astype(np.float32), np.float32(-2.0))
    return wider
