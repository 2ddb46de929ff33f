"""A generation: the clusters of a catalogue as the last compaction left them, on disk and in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.contents import Contents, gather
from softindex.errors import CorruptIndexError
from softindex.fields import INDEX, Field, Table, whole_number
from softindex.ids import IdMap, id_map_from_arrays
from softindex.kernels import Guard
from softindex.lazy import lazy
from softindex.records import Floats, Integers, Json, Stored
from softindex.remaining import MOMENTS
from softindex.store import check_guards, load, save

__all__ = ["SEGMENT", "Generation", "read_generation", "write_generation"]

_ITEMS = ("offsets", "log_bias", "outlier_positions", "outlier_vectors", "outlier_farthest")
_ADDED = (
    Field("runs", "int64", "u 3"),
    Field("gone", "int64", "g"),
    Field("sums", "float64", "k w", values="finite"),
    Field("young", "int64", "y", "young"),
)


def _table() -> Table:
    kept = [replace(field, since=1) for field in INDEX.fields if field.name in (*MOMENTS, *_ITEMS)]
    # Ids are those of the items that were there, l of them; n counts positions.
    ids = [
        replace(field, axes=field.axes.replace("n", "l"), since=1)
        for field in INDEX.fields
        if field.name.startswith("id_")
    ]
    return Table("live-generation", (*kept, *_ADDED, *ids))


TABLE = _table()
SEGMENT = "live-segment"


@dataclass(frozen=True)
class Generation:
    """Clusters whose items lie in runs of segments.  All arrays over items are by position, cluster after cluster."""

    name: str
    """Of its directory."""
    parameters: Json
    arrays: Mapping[str, NDArray[Any]]
    """MOMENTS of k clusters; "offsets" (k + 1,); "runs" (u, 3) of first position, segment and row; "gone" (g,)
    positions of items that were removed before it was written; "sums" (k, w) the items of each cluster, each times
    exp(log_bias - bias_max), added up in float64; "young" (y,) positions of items that came since k-means ran and
    joined clusters; the outliers; and "log_bias" (n,) where items have one."""
    segments: tuple[Floats, ...]
    ids: IdMap
    """Ids of the items that were there, in their order."""
    guards: Mapping[str, Guard]
    """Of the segments, as "segment.0" and so on, where they are checked before they are first read."""

    def mapped(self) -> dict[str, tuple[Floats, Guard | None]]:
        """Every segment by name, and what guards it."""
        guards = (self.guards.get(f"segment.{number}") for number in range(len(self.segments)))
        return dict(zip(self.parameters["segments"], zip(self.segments, guards, strict=True), strict=True))

    @property
    def extent(self) -> int:
        """Positions."""
        return int(self.arrays["offsets"][-1])

    @property
    def clusters(self) -> int:
        """Their number."""
        return len(self.arrays["means"])

    @lazy
    def places(self) -> Integers | None:
        """(l,) position of each item that was there; None: its number."""
        gone = self.arrays["gone"]
        return np.delete(np.arange(self.extent), gone) if len(gone) else None

    def cluster_of(self, positions: Integers) -> Integers:
        """The cluster at each position."""
        return np.searchsorted(self.arrays["offsets"], positions, side="right") - 1

    def vectors_at(self, positions: Integers) -> Floats:
        """(m, w) the vectors at these positions."""
        return gather(self.arrays["runs"], self.segments, positions)

    def find(self, ids: Any) -> Integers:
        """(m,) the positions of ids, -1 for an unknown one; items removed since are still found."""
        numbers = self.ids.find(ids, missing=-1)
        places = self.places
        return numbers if places is None else np.where(numbers < 0, -1, places[numbers])

    def names_at(self, positions: Integers) -> NDArray[Any]:
        """The ids at these positions, whose items were there."""
        gone = self.arrays["gone"]
        return self.ids.at(positions - np.searchsorted(gone, positions) if len(gone) else positions)


def write_generation(
    place: str, name: str, contents: Contents, rows: Floats | None, segments: Mapping[str, int]
) -> None:
    """Write a generation and its new segment, if there are rows for one: the last of `segments`, names and rows."""
    if rows is not None:
        save(os.path.join(place, list(segments)[-1]), Stored(SEGMENT, {"rows": len(rows)}, {"vectors": rows}, 1))
    parameters = {**contents.parameters, "segments": dict(segments)}
    arrays = {**contents.arrays, **contents.ids.arrays()}
    save(os.path.join(place, name), Stored(TABLE.kind, parameters, arrays, TABLE.version))


def read_generation(place: str, name: str, *, known: Generation | None = None) -> Generation:
    """The generation with this name; known: one whose segments are mapped already."""
    stored = load(os.path.join(place, name), kind=TABLE.kind)
    parameters = stored.parameters
    w = whole_number(parameters, "dim", 1) + bool(parameters["bias"])
    k = whole_number(parameters, "clusters", 0)
    sizes = {"n": whole_number(parameters, "items", 0), "w": w, "k": k, "k+1": k + 1, "t": w * (w + 1) // 2}
    sizes |= {"r": whole_number(parameters, "rank"), "1": 1, "2": 2, "3": 3}
    groups = {parameters["ids"], f"keyed {parameters['ids']}", parameters["dispersion"], "outliers"}
    groups |= {"log_bias"} if parameters["log_bias"] else set()
    groups |= {"young"} if parameters.get("searched") is not None else set()
    check_guards(stored.guards)
    TABLE.check(stored, sizes, groups)
    mapped = {} if known is None else known.mapped()
    segments, guards = [], {}
    for number, (segment, rows) in enumerate(parameters["segments"].items()):
        vectors, guard = mapped.get(segment, (None, None))
        if vectors is None:
            read = load(os.path.join(place, segment), kind=SEGMENT)
            vectors, guard = read.arrays.get("vectors"), read.guards.get("vectors")
        if vectors is None or vectors.dtype != np.float32 or vectors.shape != (rows, w):
            raise CorruptIndexError(
                f"{segment} in {place} is not what {name} states; restore the catalogue from a copy."
            )
        segments.append(vectors)
        if guard is not None:
            guards[f"segment.{number}"] = guard
    ids = id_map_from_arrays(parameters["ids"], stored.arrays)
    arrays = {key: array for key, array in stored.arrays.items() if not key.startswith("id_")}
    return Generation(name, parameters, arrays, tuple(segments), ids, guards)
