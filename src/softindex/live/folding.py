"""Compaction: fold what came into the clusters, and rewrite, split or join those that need it, alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.builder import build
from softindex.contents import Contents
from softindex.ids import IdMap, id_map
from softindex.live.assigning import Moves, assign_homeless, count_groupable
from softindex.live.changes import Changes
from softindex.live.generation import Generation, write_generation
from softindex.live.layout import Layout, lay_out
from softindex.measuring import measure_clusters, merge_outliers
from softindex.moments import add_up_clusters
from softindex.records import Doubles, Floats, Integers, Json
from softindex.remaining import MOMENTS

__all__ = ["MOST_ROWS", "Frozen", "PublishedFold", "fold", "freeze", "from_index", "is_due"]

MOST_ROWS = 4096
"""Rows in the delta from which on it is folded: every call scans them."""
MOST_DEAD = 0.2
"""Part of a cluster from which on it is rewritten."""
MOST_FOLDED = 0.5
"""Part of the items that were folded in, from which on k-means runs again: centroids follow new items only so far."""
MOST_GROUPABLE = 0.03
"""Part of the items that joined clusters and would rather make clusters of their own, from which on it does, too."""
SEARCHED_AGAIN = 1.25
"""Times as many items that joined clusters as when groups were last looked for among them."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A state to fold, which no later change touches."""

    generation: Generation | None
    contents: Contents | None
    """None: there are no items."""
    sums: Doubles | None
    """As in the generation, without the items that left."""
    rows: int
    """Items that came."""
    number: int


@dataclass(frozen=True, slots=True)
class PublishedFold:
    """A generation that is on disk, and the last operation that is part of it."""

    name: str | None
    folded: int


def is_due(changes: Changes) -> bool:
    """Whether so much has changed that a fold pays."""
    if changes.rows > MOST_ROWS:
        return True
    if changes.generation is None or changes.remaining is None:
        return False
    if changes.removed_since < min(1024, changes.extent // 20):
        return False
    sizes = np.diff(changes.generation.arrays["offsets"])
    return bool((changes.remaining.lost > MOST_DEAD * np.maximum(sizes, 64)).any())


def freeze(changes: Changes, contents: Contents | None, number: int) -> Frozen:
    """The state of this number, whose contents are those of its snapshot."""
    rows = int(np.count_nonzero(~changes.removed[changes.extent :]))
    sums = None if changes.remaining is None else changes.remaining.sums()
    return Frozen(changes.generation, contents, sums, rows, number)


def fold(place: str, frozen: Frozen, parameters: Json) -> PublishedFold:
    """Write the generation that follows; it counts once it is published."""
    contents, generation = frozen.contents, frozen.generation
    if contents is None:
        return PublishedFold(None, frozen.number)
    name, segment = f"generation-{frozen.number:012d}", f"segment-{frozen.number:012d}"
    folded = frozen.rows + (0 if generation is None else generation.parameters["folded"])
    layout, young = None, None
    if generation is not None and folded <= MOST_FOLDED * len(contents):
        moves = assign_homeless(contents, generation)
        young = _young(contents, generation, moves)
        layout = None if moves is None or young is None else lay_out(contents, generation, moves)
    if layout is None or generation is None or young is None:
        made, vectors = from_index(_rebuild(contents, parameters), parameters)
        write_generation(place, name, made, vectors, {segment: len(vectors)})
        return PublishedFold(name, frozen.number)
    held = {**parameters, "folded": folded, "searched": young.searched}
    new = _contents(frozen, contents, generation, layout, held)
    new = replace(new, arrays={**new.arrays, "young": np.flatnonzero(np.isin(layout.sources, young.positions))})
    old = list(generation.parameters["segments"].items())
    segments = dict(old[number] for number in layout.kept_segments)
    rows = contents.vectors_at(layout.written) if len(layout.written) else None
    if rows is not None:
        segments[segment] = len(rows)
    write_generation(place, name, new, rows, segments)
    return PublishedFold(name, frozen.number)


@dataclass(frozen=True, slots=True)
class _Young:
    """Items that came since k-means ran and joined clusters, and how many they were when groups were looked for."""

    positions: Integers
    searched: int


def _young(contents: Contents, generation: Generation, moves: Moves | None) -> _Young | None:
    """The items that joined clusters, these moves included; None where too many would make clusters of their own."""
    if moves is None:
        return None
    extent, places = generation.extent, contents.positions()
    before = np.intersect1d(generation.arrays.get("young", np.empty(0, np.int64)), places, assume_unique=True)
    positions = np.sort(np.concatenate([before, moves.homeless[moves.homeless >= extent]]))
    searched = generation.parameters.get("searched") or 0
    if len(positions) < SEARCHED_AGAIN * searched:
        return _Young(positions, searched)
    # Among those that came now alone, groups were looked for already.
    groupable = count_groupable(contents, generation, positions) if len(before) else 0
    return None if groupable > MOST_GROUPABLE * len(contents) else _Young(positions, len(positions))


def _rebuild(contents: Contents, parameters: Json) -> Contents:
    """All items, clustered anew."""
    places, d = contents.positions(), parameters["dim"]
    items = contents.vectors_at(places)
    dispersion = parameters["rank"] if parameters["dispersion"] == "rank" else parameters["dispersion"]
    built = build(
        np.ascontiguousarray(items[:, :d]),
        ids=contents.ids.at(places),
        bias=items[:, d] if parameters["bias"] else None,
        log_bias=contents.arrays["log_bias"][places] if parameters["log_bias"] else None,
        dispersion=dispersion,
        seed=parameters["seed"],
        threads=1,
    )
    return built._contents


def from_index(contents: Contents, parameters: Json) -> tuple[Contents, Floats]:
    """What a generation with the clusters of an index holds, and its vectors."""
    arrays = {name: contents.arrays[name] for name in MOMENTS if name in contents.arrays}
    vectors, offsets = contents.arrays["vectors"], contents.arrays["offsets"]
    log_bias = contents.arrays.get("log_bias")
    arrays |= {name: array for name, array in contents.arrays.items() if name.startswith("outlier_")}
    arrays |= {"offsets": offsets, "runs": np.array([[0, 0, 0]]), "gone": np.empty(0, np.int64)}
    arrays["sums"] = add_up_clusters(vectors, offsets, log_bias, arrays.get("bias_max"))
    if log_bias is not None:
        arrays["log_bias"] = log_bias
    ids = _named(contents.ids.at(np.arange(len(vectors))))
    held = {**parameters, "items": len(vectors), "clusters": len(offsets) - 1, "ids": ids.kind}
    held |= {"folded": 0, "searched": 0}
    arrays["young"] = np.empty(0, np.int64)
    return Contents(arrays, ids, held), vectors


def _named(table: Any) -> IdMap:
    order = np.arange(len(table))
    return id_map(table, order, order.astype(np.int32 if len(order) < 2**31 else np.int64))


def _contents(frozen: Frozen, contents: Contents, generation: Generation, layout: Layout, parameters: Json) -> Contents:
    """What the new generation holds."""
    k = len(layout.offsets) - 1
    removed = np.zeros(int(contents.arrays["offsets"][-1]), bool)
    removed[contents.arrays["removed"]] = True
    gone = np.flatnonzero(removed[layout.sources])
    arrays: dict[str, NDArray[Any]] = {"offsets": layout.offsets, "runs": layout.runs, "gone": gone}
    old = np.maximum(layout.origins, 0)
    moments = {name: contents.arrays[name][old] for name in MOMENTS if name in contents.arrays}
    assert frozen.sums is not None
    moments["sums"] = frozen.sums[old]
    fresh = layout.origins < 0
    if "bias_max" in moments:
        fresh |= moments["bias_max"] != generation.arrays["bias_max"][old]
    found = measure_clusters(contents, layout, np.flatnonzero(fresh), removed, moments, parameters)
    arrays |= moments
    arrays |= merge_outliers(contents, layout, found, fresh, moments["means"])
    if parameters["log_bias"]:
        arrays["log_bias"] = contents.arrays["log_bias"][layout.sources]
    ids = _named(contents.ids.at(np.delete(layout.sources, gone)))
    held = {**parameters, "items": len(layout.sources), "clusters": k, "ids": ids.kind}
    return Contents(arrays, ids, held)
