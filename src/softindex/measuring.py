"""The moments and outliers of clusters that changed, by a compaction or in a subset; all others keep theirs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from softindex.contents import Contents
from softindex.fields import flatten
from softindex.moments import add_up_clusters, measure
from softindex.outliers import LISTED
from softindex.outward import round_up
from softindex.records import Floats, Integers, Json

__all__ = ["Placed", "measure_clusters", "merge_outliers"]

BATCH_ITEMS = 1 << 16
"""Items gathered at a time."""


class Placed(Protocol):
    """Where items go, in terms of the positions of the contents that they are taken from."""

    @property
    def offsets(self) -> Integers:
        """(k + 1,) of the new clusters."""

    @property
    def sources(self) -> Integers:
        """(n,) the old position of the item at each new one, items that are gone included."""


def measure_clusters(
    contents: Contents,
    layout: Placed,
    clusters: Integers,
    removed: NDArray[np.bool_],
    moments: dict[str, NDArray[Any]],
    parameters: Json,
    *,
    threads: int = 1,
) -> Integers:
    """Measure these clusters into `moments`; returns the new positions of items that are far from their mean."""
    far: list[Integers] = []
    listed = contents.arrays.get("outlier_farthest")
    threshold = np.inf if listed is None else float(listed[0])
    dispersion = parameters["rank"] if parameters["dispersion"] == "rank" else parameters["dispersion"]
    for batch in _batches(clusters, np.diff(layout.offsets)):
        places = [np.arange(layout.offsets[c], layout.offsets[c + 1]) for c in batch.tolist()]
        places = [part[~removed[layout.sources[part]]] for part in places]
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in places])]).astype(np.int64)
        everywhere = np.concatenate(places)
        sources = layout.sources[everywhere]
        items = contents.vectors_at(sources)
        bias = contents.arrays["log_bias"][sources] if parameters["log_bias"] else None
        found = flatten(measure(items, offsets, log_bias=bias, dispersion=dispersion, threads=threads))
        if "sums" in moments:
            found["sums"] = add_up_clusters(items, offsets, bias, found.get("bias_max"))
        for name, array in moments.items():
            array[batch] = found[name]
        away = np.empty(len(items))
        for number, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            away[start:stop] = _distances(items[start:stop], found["means"][number])
        far.append(everywhere[away > threshold])
    return np.concatenate(far) if far else np.empty(0, np.int64)


def _batches(clusters: Integers, sizes: Integers) -> list[Integers]:
    if not len(clusters):
        return []
    ends = np.cumsum(sizes[clusters])
    cuts = np.flatnonzero(np.diff(ends // BATCH_ITEMS)) + 1
    return np.split(clusters, cuts)


def _distances(items: Floats, mean: Floats) -> Floats:
    away = items - mean
    distances: Floats = np.sqrt(np.einsum("nd,nd->n", away, away))
    return distances


def merge_outliers(
    contents: Contents, layout: Placed, found: Integers, fresh: NDArray[np.bool_], means: Floats
) -> dict[str, NDArray[Any]]:
    """The outliers of clusters that stayed, and those found in the others: the farthest of them all."""
    arrays = contents.arrays
    where = np.full(int(arrays["offsets"][-1]), -1, np.int64)
    where[layout.sources] = np.arange(len(layout.sources))
    kept = where[arrays["outlier_positions"]]
    kept = kept[kept >= 0]
    clusters = np.searchsorted(layout.offsets, kept, side="right") - 1
    kept = kept[~fresh[clusters]]
    positions = np.unique(np.concatenate([kept, found]))
    vectors = contents.vectors_at(layout.sources[positions])
    farthest = float(arrays["outlier_farthest"][0])
    most = 2 * round(LISTED * len(contents) ** 0.5)
    if len(positions) > most:
        clusters = np.searchsorted(layout.offsets, positions, side="right") - 1
        away = _distances(vectors, means[clusters])
        order = np.argsort(-away, kind="stable")
        farthest = max(farthest, float(round_up(float(away[order[most]]) * (1 + 1e-4))))
        chosen = np.sort(order[:most])
        positions, vectors = positions[chosen], vectors[chosen]
    return {
        "outlier_positions": positions,
        "outlier_vectors": vectors,
        "outlier_farthest": np.array([farthest], np.float32),
    }
