"""Makes the contents of a snapshot: an index over the generation, what left it, and one more cluster of what came."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from softindex.contents import Contents
from softindex.ids import IdMap
from softindex.live.changes import Changes
from softindex.live.names import SnapshotIds
from softindex.outward import round_up
from softindex.records import Json
from softindex.settling import settled

__all__ = ["snapshot_contents"]


def snapshot_contents(changes: Changes, parameters: Json, number: int) -> Contents:
    """The contents of the present state.  The last cluster holds the rows that came, and is scanned in every call."""
    generation, rows = changes.generation, changes.vectors
    removed = np.flatnonzero(changes.removed)
    arrays = _clusters(changes, parameters)
    k, extent = len(arrays["means"]) - 1, changes.extent
    offsets = np.zeros(1, np.int64) if generation is None else generation.arrays["offsets"]
    arrays["offsets"] = np.append(offsets, extent + len(rows))
    runs = np.empty((0, 3), np.int64) if generation is None else generation.arrays["runs"]
    segments = () if generation is None else generation.segments
    if len(rows):
        runs = np.concatenate([runs, [[extent, len(segments), 0]]])
        segments = (*segments, rows)
    arrays |= {"runs": runs, **{f"segment.{number}": segment for number, segment in enumerate(segments)}}
    arrays |= {"removed": removed, "first_known": np.array([k])}
    came = changes.log_bias
    if came is not None:
        arrays["log_bias"] = came if generation is None else np.concatenate([generation.arrays["log_bias"], came])
    arrays |= _outliers(changes)
    ids = SnapshotIds(generation, changes.names[: changes.rows], removed, strings=changes.strings)
    held = {**parameters, "items": changes.count, "clusters": k + 1, "ids": ids.kind}
    guards = {} if generation is None else generation.guards
    contents = Contents(arrays, cast(IdMap, ids), held, guards=guards, snapshot=number)
    return replace(contents, settle=partial(settled, contents))


def _clusters(changes: Changes, parameters: Json) -> dict[str, NDArray[Any]]:
    """The moments of the clusters, and those of the rows that came: bounds about the origin, and their weight."""
    width = changes.vectors.shape[1]
    last = _last_cluster(changes, width, parameters)
    if changes.remaining is None:
        return last
    changes.remaining.update(changes.removed[: changes.extent])
    return {name: np.concatenate([array, last[name]]) for name, array in changes.remaining.arrays.items()}


def _last_cluster(changes: Changes, width: int, parameters: Json) -> dict[str, NDArray[Any]]:
    there = ~changes.removed[changes.extent :]
    bias = changes.log_bias
    log_size = -np.inf
    if there.any():
        log_size = float(np.log(np.count_nonzero(there)))
        if bias is not None:
            kept = bias[there].astype(np.float64)
            log_size = float(kept.max() + np.log(np.exp(kept - kept.max()).sum()))
    longest = round_up(np.full(1, changes.longest**0.5))
    one = {
        "means": np.zeros((1, width), np.float32),
        "log_sizes": np.array([log_size]),
        "radii": longest,
        "norm_min": np.zeros(1, np.float32),
        "norm_max": longest,
        "min_cosine": np.full(1, -1, np.float32),
        "reach": np.ones(1, np.float32),
    }
    if bias is not None:
        one["bias_max"] = np.full(1, bias.max(initial=-np.inf) if len(bias) else 0.0, np.float32)
    kind, rank = parameters["dispersion"], parameters["rank"]
    if kind == "full":
        one |= {"forms": np.zeros((1, width * (width + 1) // 2), np.int16), "scales": np.zeros((1, 1), np.float32)}
    elif kind == "rank":
        one |= {"forms": np.zeros((1, rank, width), np.int8), "scales": np.zeros((1, rank), np.float32)}
        one["spread"] = np.zeros(1, np.float32)
    if kind != "none":
        one["excess"] = longest**2
    return one


def _outliers(changes: Changes) -> dict[str, NDArray[Any]]:
    """The outliers that are left, and how far others may be from the means, which moved."""
    generation = changes.generation
    if generation is None or changes.remaining is None:
        return {}
    arrays = generation.arrays
    there = ~changes.removed[arrays["outlier_positions"]]
    farthest = changes.remaining.reached(float(arrays["outlier_farthest"][0]))
    return {
        "outlier_positions": arrays["outlier_positions"][there],
        "outlier_vectors": arrays["outlier_vectors"][there],
        "outlier_farthest": round_up(np.full(1, farthest)),
    }
