"""What has changed since a generation was written: rows that came, in order, and items that left."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.live.generation import Generation
from softindex.records import Floats, Integers
from softindex.remaining import Remaining

__all__ = ["Changes"]

FIRST_ROWS = 256


class Changes:
    """The items of a catalogue: a generation, or none, and the changes since.  Positions from `extent` on are rows.

    Rows are only ever appended, and a row that is replaced is marked as removed: what a snapshot has seen never
    changes.
    """

    def __init__(self, generation: Generation | None, width: int, *, biased: bool, strings: bool) -> None:
        self.generation = generation
        self.remaining = None if generation is None else Remaining(generation)
        self.extent = 0 if generation is None else generation.extent
        self.strings = strings
        self.rows = 0
        self.names: list[Any] = []
        self._vectors = np.empty((FIRST_ROWS, width), np.float32)
        self._log_bias = np.empty(FIRST_ROWS, np.float32) if biased else None
        self._removed = np.zeros(self.extent + FIRST_ROWS, bool)
        self._current: dict[Any, int] = {}
        """Position of each id whose item is a row."""
        self.longest = 0.0
        """Largest squared length of a row."""
        if generation is not None:
            self._removed[generation.arrays["gone"]] = True
        self.count = self.extent - int(np.count_nonzero(self._removed[: self.extent]))
        self.removed_since = 0
        """Items of the generation that left."""

    @property
    def vectors(self) -> Floats:
        """(rows, w) the rows that came."""
        return self._vectors[: self.rows]

    @property
    def log_bias(self) -> Floats | None:
        """(rows,) their log biases."""
        return None if self._log_bias is None else self._log_bias[: self.rows]

    @property
    def removed(self) -> NDArray[np.bool_]:
        """(extent + rows,) whether the item at a position is gone."""
        return self._removed[: self.extent + self.rows]

    def find(self, names: Any) -> Integers:
        """(m,) the positions of the items with these ids; -1 where there is none."""
        listed = names.tolist() if isinstance(names, np.ndarray) else list(names)
        found = np.array([self._current.get(name, -1) for name in listed], np.int64)
        if self.generation is not None and (found < 0).any():
            places = np.array(self.generation.find(np.asarray(names)))
            places[self._removed[places]] = -1
            found = np.where(found < 0, places, found)
        return found

    def upsert(self, names: NDArray[Any], vectors: Floats, log_bias: Floats | None) -> None:
        """Add items, each in the place of an earlier one with the same id."""
        found = self.find(names)
        self._leave(found[found >= 0])
        m, first = len(names), self.rows
        self._reserve(first + m)
        self._vectors[first : first + m] = vectors
        if self._log_bias is not None:
            self._log_bias[first : first + m] = 0.0 if log_bias is None else log_bias
        listed = names.tolist()
        self.names.extend(listed)
        self._current.update(zip(listed, range(self.extent + first, self.extent + first + m), strict=True))
        self.longest = max(
            self.longest, float(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64).max(initial=0))
        )
        self.rows += m
        self.count += m

    def remove(self, names: NDArray[Any]) -> None:
        """Take the items with these ids away, all of which are there."""
        self._leave(self.find(names))
        for name in names.tolist():
            self._current.pop(name, None)

    def _leave(self, positions: Integers) -> None:
        self._removed[positions] = True
        self.count -= len(positions)
        left = np.sort(positions[positions < self.extent])
        if len(left) and self.remaining is not None:
            self.remaining.remove(left)
            self.removed_since += len(left)

    def _reserve(self, rows: int) -> None:
        if rows <= len(self._vectors):
            return
        # A new array: snapshots keep the one they have.
        room = max(rows, 2 * len(self._vectors))
        self._vectors = _grown(self._vectors, room)
        self._removed = _grown(self._removed, self.extent + room)
        if self._log_bias is not None:
            self._log_bias = _grown(self._log_bias, room)


def _grown(array: NDArray[Any], length: int) -> NDArray[Any]:
    larger = np.zeros((length, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
