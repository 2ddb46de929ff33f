"""Makes the contents of a subset: an index of some items of another one, whose vectors it shares.

Clusters keep their items, and are measured without those that are left out.  Rows of a cluster that lost few items stay
where they are, and the others count as removed.  Of a cluster that lost more than half, the rows that are kept are
copied: a call reads what it scans, and should not read what it cannot draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from softindex.contents import Contents
from softindex.errors import UnknownIdError, show
from softindex.fields import flatten
from softindex.ids import IdMap
from softindex.measuring import measure_clusters, merge_outliers
from softindex.outward import round_up
from softindex.recall import measure_curve
from softindex.records import Doubles, Floats, Ids, Integers, Json
from softindex.remaining import MOMENTS, Remaining
from softindex.settling import settled
from softindex.sketch import draw_sketch
from softindex.tails import measure_tails

__all__ = ["subset_contents"]

LEAST_SHARED = 0.5
"""Part of a cluster's rows that must be kept for the others to stay in place."""
MOST_DOWNDATED = 0.05
"""Part of a cluster that may leave while its moments are downdated: quick, but its bounds become looser."""
NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the items of a subset are, in terms of the positions of the index that it is a part of."""

    clusters: Integers
    """(k,) numbers there."""
    offsets: Integers
    """(k + 1,) of the subset."""
    sources: Integers
    """(n,) positions there, increasing."""
    copied: NDArray[np.bool_]
    """(n,) whether the row is a copy."""


class SubsetIds:
    """Which id is at which position of a subset; all others are unknown."""

    def __init__(self, ids: IdMap, sources: Integers, removed: Integers) -> None:
        self._ids, self._sources, self._removed = ids, sources, removed

    @property
    def kind(self) -> str:
        """As for the ids of the index."""
        return self._ids.kind

    def at(self, positions: Integers) -> Ids:
        """Ids at these positions, same shape."""
        return self._ids.at(self._sources[positions])

    def find(self, ids: Any, *, missing: int | None = None) -> Integers:
        """Positions of these ids, same shape; `missing` for an unknown one, or UnknownIdError where that is None."""
        places = self._ids.find(ids, missing=-1)
        found: Integers = np.minimum(np.searchsorted(self._sources, places), len(self._sources) - 1)
        absent = self._sources[found] != places
        if len(self._removed):
            place = np.minimum(np.searchsorted(self._removed, found), len(self._removed) - 1)
            absent |= self._removed[place] == found
        if not absent.any():
            return found
        if missing is None:
            wanted = np.asarray(ids, object)[absent].flat[0]
            raise UnknownIdError(f"id {show(wanted)} is not in this subset; pass ids of items that it holds.", wanted)
        return np.where(absent, missing, found)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Nothing: a subset is saved as an index of its own, or by name with the index that it is a part of."""
        return {}


def subset_contents(contents: Contents, kept: Integers, *, sketch: bool, threads: int) -> Contents:
    """The contents of the items at these positions, increasing and at least one."""
    held = contents.parameters
    gone = np.ones(int(contents.arrays["offsets"][-1]), bool)
    gone[kept] = False
    layout = _lay_out(contents, kept, gone)
    removed = np.flatnonzero(gone[layout.sources])
    arrays: dict[str, NDArray[Any]] = {"offsets": layout.offsets, "removed": removed}
    vectors, guards = _runs(contents, layout)
    arrays |= vectors
    if "log_bias" in contents.arrays:
        arrays["log_bias"] = contents.arrays["log_bias"][layout.sources]
    if "first_known" in contents.arrays:
        arrays["first_known"] = np.searchsorted(layout.clusters, contents.arrays["first_known"])
    arrays |= _measured(contents, layout, gone, threads)
    ids = SubsetIds(contents.ids, layout.sources, removed)
    counts: dict[str, Any] = {
        "items": len(kept),
        "clusters": len(layout.clusters),
        "tree": False,
        "codes": False,
        "storage": "float32",
    }
    counts["sketch"] = sketch
    made = Contents(arrays, cast(IdMap, ids), {**held, **counts}, guards=guards, snapshot=contents.snapshot)
    if sketch:
        made = replace(made, arrays={**arrays, **_sketched(made, threads)})
    return replace(made, settle=partial(settled, made, sketch=sketch, threads=threads))


def _lay_out(contents: Contents, kept: Integers, gone: NDArray[np.bool_]) -> _Layout:
    offsets = contents.arrays["offsets"]
    rows = np.diff(offsets)
    counts = np.diff(np.searchsorted(kept, offsets))
    # Items in fewer bits are decoded, and what is decoded is a copy.
    shared = (counts > 0) & (counts >= LEAST_SHARED * rows) & ("residual_values" not in contents.arrays)
    in_place = np.repeat(shared, rows)
    sources = np.flatnonzero(in_place | ~gone)
    clusters = np.flatnonzero(counts)
    ends = np.searchsorted(sources, offsets[clusters + 1])
    return _Layout(clusters, np.concatenate([[0], ends]).astype(np.int64), sources, ~in_place[sources])


def _runs(contents: Contents, layout: _Layout) -> tuple[dict[str, NDArray[Any]], Mapping[str, Any]]:
    """The table of runs and the segments that it names, and the guards of these."""
    old = contents.arrays.get("runs")
    names = ["vectors"] if old is None else [f"segment.{number}" for number in range(int(old[:, 1].max()) + 1)]
    runs = np.zeros((1, 3), np.int64) if old is None else old
    at = np.searchsorted(runs[:, 0], layout.sources, side="right") - 1
    segment = np.where(layout.copied, len(names), runs[at, 1])
    row = layout.sources - runs[at, 0] + runs[at, 2]
    row[layout.copied] = np.arange(np.count_nonzero(layout.copied))
    # A run goes on while the next row is the next one of the same segment.
    begins = np.flatnonzero(np.r_[True, (np.diff(segment) != 0) | (np.diff(row) != 1)])
    used, numbers = np.unique(segment[begins], return_inverse=True)
    table = np.stack([begins, numbers.astype(np.int64), row[begins]], axis=1)
    arrays: dict[str, NDArray[Any]] = {"runs": np.ascontiguousarray(table)}
    guards = {}
    for number, source in enumerate(used.tolist()):
        if source == len(names):
            arrays[f"segment.{number}"] = contents.vectors_at(layout.sources[layout.copied])
            continue
        arrays[f"segment.{number}"] = contents.arrays[names[source]]
        if names[source] in contents.guards:
            guards[f"segment.{number}"] = contents.guards[names[source]]
    return arrays, guards


class _Rows:
    """The rows of contents, in blocks."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self.shape = (int(contents.arrays["offsets"][-1]), contents.arrays["means"].shape[1])
        self.nbytes = 4 * self.shape[0] * self.shape[1]

    def __getitem__(self, rows: slice) -> Floats:
        return self._contents.vectors_at(np.arange(rows.start, rows.stop))


def _sketched(contents: Contents, threads: int) -> dict[str, NDArray[Any]]:
    """The sketch about the new means, of rows that stayed in place too, the tails and the recall to expect."""
    arrays, held = contents.arrays, contents.parameters
    sketch = draw_sketch(cast(Floats, _Rows(contents)), arrays["offsets"], arrays["means"], threads=threads)
    found = flatten(sketch, "sketch_")
    found["sketch_tails"] = measure_tails(arrays, biased=held["bias"], seed=held["seed"], read=contents.vectors_at)
    curve = measure_curve(
        {**arrays, **found},
        held["dispersion"],
        biased=held["bias"],
        seed=held["seed"],
        threads=threads,
        items=(contents.positions(), contents.vectors_at),
    )
    return {**found, "sketch_recall": curve}


@dataclass(frozen=True, slots=True)
class _Losing:
    """Clusters of an index, as `Remaining` reads them."""

    contents: Contents
    arrays: Mapping[str, NDArray[Any]]

    @property
    def parameters(self) -> Json:
        return self.contents.parameters

    def cluster_of(self, positions: Integers) -> Integers:
        return np.searchsorted(self.arrays["offsets"], positions, side="right") - 1

    def vectors_at(self, positions: Integers) -> Floats:
        return self.contents.vectors_at(positions)


def _measured(contents: Contents, layout: _Layout, gone: NDArray[np.bool_], threads: int) -> dict[str, NDArray[Any]]:
    """The moments and outliers of the clusters without what is gone."""
    arrays, chosen = contents.arrays, layout.clusters
    before = contents.sizes()[chosen]
    there = np.diff(np.concatenate([[0], np.cumsum(~gone[layout.sources])])[layout.offsets])
    lost = gone.copy()
    lost[arrays.get("removed", NONE)] = False
    few = _lost_little(contents, lost)[chosen]
    downdated, fresh = (there < before) & few, (there < before) & ~few
    moments, reached = _downdated(contents, chosen[downdated], lost)
    moments = {name: array[chosen] for name, array in moments.items()}
    found = measure_clusters(
        contents, layout, np.flatnonzero(fresh), gone, moments, contents.parameters, threads=threads
    )
    if "outlier_positions" not in arrays:
        return moments
    listed = merge_outliers(contents, layout, found, fresh, moments["means"])
    left = ~gone[layout.sources[listed["outlier_positions"]]]
    return moments | {
        "outlier_positions": listed["outlier_positions"][left],
        "outlier_vectors": listed["outlier_vectors"][left],
        "outlier_farthest": np.maximum(listed["outlier_farthest"], reached),
    }


def _lost_little(contents: Contents, lost: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(k,) whether so little of the weight of a cluster is lost that its moments can be downdated."""
    arrays, k = contents.arrays, len(contents.arrays["means"])
    # Full covariances are always measured, and clusters of early versions do not have all that is downdated.
    if contents.parameters["dispersion"] == "full" or "reach" not in arrays:
        return np.zeros(k, bool)
    clusters = np.repeat(np.arange(k), np.diff(arrays["offsets"]))[lost]
    weights = None
    if "log_bias" in arrays:
        weights = np.exp(arrays["log_bias"][lost].astype(np.float64) - arrays["bias_max"][clusters])
    lighter = np.bincount(clusters, weights, minlength=k)
    few: NDArray[np.bool_] = lighter <= MOST_DOWNDATED * _weights(arrays)
    # What came to a catalogue is scanned in every call, and has no moments.
    few[arrays["first_known"][0] if "first_known" in arrays else k :] = False
    return few


def _weights(arrays: Mapping[str, NDArray[Any]]) -> Doubles:
    """(k,) the weight of each cluster, in units of its largest one of an item."""
    weights: Doubles = np.exp(arrays["log_sizes"] - arrays.get("bias_max", 0.0))
    return weights


def _downdated(
    contents: Contents, clusters: Integers, lost: NDArray[np.bool_]
) -> tuple[Mapping[str, NDArray[Any]], np.float32]:
    """The moments of all clusters, of these without what is lost, and how far from its mean an unlisted item may be."""
    arrays = contents.arrays
    moments = {name: arrays[name] for name in MOMENTS if name in arrays}
    farthest = arrays["outlier_farthest"][0] if "outlier_farthest" in arrays else np.float32(0)
    if not len(clusters):
        return moments, farthest
    offsets = arrays["offsets"]
    # A rounded mean is as good as the sum: the new mean is rounded as well, and bounds are about what is stored.
    sums = arrays["means"].astype(np.float64) * _weights(arrays)[:, None]
    source = _Losing(
        contents,
        {**moments, "offsets": offsets, "sums": sums, "gone": arrays.get("removed", NONE)}
        | ({"log_bias": arrays["log_bias"]} if "log_bias" in arrays else {}),
    )
    remaining = Remaining(source)
    wanted = np.zeros(len(arrays["means"]), bool)
    wanted[clusters] = True
    remaining.remove(np.flatnonzero(lost & np.repeat(wanted, np.diff(offsets))))
    remaining.update(lost)
    reached: np.float32 = round_up(remaining.reached(float(farthest)))
    return remaining.arrays, reached
