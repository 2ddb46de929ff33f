"""Ids of a snapshot: those of the generation that are left, and those of the rows that came since."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.errors import UnknownIdError
from softindex.ids import IdMap, id_map
from softindex.lazy import lazy
from softindex.live.generation import Generation
from softindex.records import Ids, Integers

__all__ = ["SnapshotIds", "name_table"]


def name_table(names: list[Any], *, strings: bool) -> Ids:
    """Ids as an array."""
    return np.array(names, np.str_) if strings else np.array(names, np.int64)


class SnapshotIds:
    """Which id is at which position of a snapshot; ids of items that were removed are unknown."""

    def __init__(self, generation: Generation | None, names: list[Any], removed: Integers, *, strings: bool) -> None:
        self._generation = generation
        self._extent = 0 if generation is None else generation.extent
        self._names = names
        """Of the rows, possibly followed by later ones."""
        self._removed = removed
        self._strings = strings
        self._count = len(names)

    @property
    def kind(self) -> str:
        """As for the ids of an index."""
        return "strings" if self._strings else "integers"

    @lazy
    def _rows(self) -> tuple[IdMap, Integers] | None:
        """The ids of the rows that are there, and their positions."""
        there = np.ones(self._count, bool)
        there[self._removed[np.searchsorted(self._removed, self._extent) :] - self._extent] = False
        rows = np.flatnonzero(there)
        if not len(rows):
            return None
        order = np.arange(len(rows))
        table = self._table[rows]
        return id_map(table, order, order.astype(np.int32)), rows + self._extent

    @lazy
    def _table(self) -> Ids:
        return name_table(self._names[: self._count], strings=self._strings)

    def at(self, positions: NDArray[np.int64]) -> Ids:
        """Ids at these positions, same shape."""
        generation = self._generation
        if generation is None:
            return self._table[positions]
        old = positions < self._extent
        if old.all():
            return generation.names_at(positions)
        came = self._table[positions[~old] - self._extent]
        if not old.any():
            return came.reshape(positions.shape)
        left = generation.names_at(positions[old])
        found = np.empty(positions.shape, np.promote_types(left.dtype, came.dtype))
        found[old], found[~old] = left, came
        return found

    def find(self, ids: Any, *, missing: int | None = None) -> NDArray[np.int64]:
        """Positions of these ids, same shape; `missing` for an unknown one, or UnknownIdError where that is None."""
        found = None
        if self._generation is not None:
            found = np.array(self._generation.find(ids))
            place = np.minimum(np.searchsorted(self._removed, found), len(self._removed) - 1)
            if len(self._removed):
                found[self._removed[place] == found] = -1
        if found is None:
            found = self._find_rows(ids)
        elif (found < 0).any():
            # Only those that are left: most ids are usually in the generation.
            if isinstance(ids, list) and found.ndim == 1:
                left: Any = [ids[place] for place in np.flatnonzero(found < 0)]
                found[found < 0] = self._find_rows(left)
            else:
                found = np.where(found < 0, self._find_rows(ids), found)
        unknown = found < 0
        if not unknown.any():
            return found
        if missing is None:
            wanted = np.asarray(ids, object)[unknown].flat[0]
            raise UnknownIdError(f"id {wanted!r} is not in this snapshot; pass ids of items that it holds.", wanted)
        return np.where(unknown, missing, found)

    def _find_rows(self, ids: Any) -> Integers:
        """Positions of these ids among the rows that came; -1 where there is none."""
        if self._rows is None:
            return np.full(np.shape(ids), -1, np.int64)
        names, places = self._rows
        numbers = names.find(ids, missing=-1)
        return np.where(numbers < 0, -1, places[numbers])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Nothing: a snapshot is saved as an index of its own."""
        return {}
