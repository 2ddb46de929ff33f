"""Positions in the index from ids, and ids from positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from softindex.errors import CorruptIndexError, InputError, UnknownIdError
from softindex.kernels import hash_strings
from softindex.records import Ids

__all__ = ["IdMap", "IntegerIds", "RowIds", "StringIds", "id_map", "id_map_from_arrays"]


LARGEST = 2**63 - 1
"""The largest integer id there is."""


def _as_array(ids: Any, dtype: type[object] | None = None) -> NDArray[Any]:
    if isinstance(ids, np.ma.MaskedArray):
        raise InputError("ids are a masked array; pass ids.compressed(), or a plain array.")
    try:
        return ids if isinstance(ids, np.ndarray) else np.array(ids, dtype)
    except ValueError as error:
        raise InputError(f"ids cannot be turned into an array ({error}); pass as many for every query.") from error


def _as_integers(ids: Any, missing: int | None) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Return the ids as int64, and which of them are too large for it: none, unless a position stands for misses."""
    array = _as_array(ids)
    if array.size == 0:
        return array.astype(np.int64), None
    if array.dtype.kind not in "iu":
        raise InputError(f"got {_kind_of(array)} ids, but this index has integer ids.")
    if array.dtype == np.uint64 and array.max() > LARGEST:
        if missing is None:
            raise _unknown(int(array.max()))
        return np.minimum(array, LARGEST).astype(np.int64), array > LARGEST
    return array.astype(np.int64, copy=False), None


def _kind_of(ids: NDArray[Any]) -> str:
    """What ids are, in words."""
    values = ids.ravel()
    odd = next((value for value in values.tolist() if not isinstance(value, str)), values[0])
    return {int: "integer", str: "string", float: "float", bool: "boolean"}.get(type(odd), type(odd).__name__)


def _unknown(wanted: object) -> UnknownIdError:
    return UnknownIdError(f"id {wanted!r} is not in this index; pass ids that it was built with.", wanted)


@dataclass(frozen=True, slots=True)
class RowIds:
    """Ids are row numbers of the vectors passed to `build`.  rows (n,): row at each position."""

    kind: ClassVar = "rows"
    rows: NDArray[Any]
    positions: NDArray[Any]

    def at(self, positions: NDArray[np.int64]) -> Ids:
        """Ids at these positions, same shape."""
        return self.rows.take(positions).astype(np.int64, copy=False)

    def find(self, ids: Any, *, missing: int | None = None) -> NDArray[np.int64]:
        """Positions of these ids, same shape; `missing` for an unknown one, or UnknownIdError where that is None."""
        rows, too_large = _as_integers(ids, missing)
        outside = (rows < 0) | (rows >= len(self.rows))
        if too_large is not None:
            outside |= too_large
        if not outside.any():
            return self.positions[rows].astype(np.int64, copy=False)
        if missing is None:
            raise _unknown(int(rows[outside].flat[0]))
        return np.where(outside, missing, self.positions[np.where(outside, 0, rows)]).astype(np.int64, copy=False)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to save."""
        return {"id_rows": self.rows, "id_positions": self.positions}


@dataclass(frozen=True, slots=True)
class IntegerIds:
    """Integers the caller chose.  keys (n,): the ids sorted; positions (n,): the position of each key."""

    kind: ClassVar = "integers"
    ids: NDArray[np.int64]
    keys: NDArray[np.int64]
    positions: NDArray[Any]

    def at(self, positions: NDArray[np.int64]) -> Ids:
        """Ids at these positions, same shape."""
        return self.ids.take(positions)

    def find(self, ids: Any, *, missing: int | None = None) -> NDArray[np.int64]:
        """Positions of these ids, same shape; `missing` for an unknown one, or UnknownIdError where that is None."""
        wanted, too_large = _as_integers(ids, missing)
        ranks = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        absent = self.keys[ranks] != wanted
        if too_large is not None:
            absent |= too_large
        positions: NDArray[np.int64] = self.positions[ranks].astype(np.int64, copy=False)
        if not absent.any():
            return positions
        if missing is None:
            raise _unknown(int(wanted[absent].flat[0]))
        return np.where(absent, missing, positions)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to save."""
        return {"id_values": self.ids, "id_keys": self.keys, "id_positions": self.positions}


@dataclass(frozen=True, slots=True)
class StringIds:
    """String ids as one UTF-8 text.  ends (n,): where the id of each position ends.

    hashes (n,): the hashes of the ids, sorted; positions (n,): the position of each hash.  Ids are found by binary
    search on a memory-mapped file, so nothing is built at load.
    """

    kind: ClassVar = "strings"
    text: NDArray[np.uint8]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    positions: NDArray[Any]

    def _one(self, position: int) -> str:
        begin = int(self.ends[position - 1]) if position else 0
        end = int(self.ends[position])
        try:
            if 0 <= begin <= end <= min(len(self.text), begin + LONGEST):
                return bytes(self.text[begin:end]).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            pass
        raise CorruptIndexError("an id is not text: the index is damaged; run softindex verify on it.")

    def at(self, positions: NDArray[np.int64]) -> Ids:
        """Ids at these positions, same shape."""
        texts = [self._one(position) for position in positions.ravel().tolist()]
        return np.array(texts, dtype=np.str_).reshape(positions.shape)

    def find(self, ids: Any, *, missing: int | None = None) -> NDArray[np.int64]:
        """Positions of these ids, same shape; `missing` for an unknown one, or UnknownIdError where that is None."""
        # As objects: NumPy would make strings of the integers in a mixed list.
        wanted = _as_array(ids, object)
        texts = wanted.ravel().tolist()
        if (texts and wanted.dtype.kind not in "UO") or not all(isinstance(text, str) for text in texts):
            raise InputError(f"got {_kind_of(wanted)} ids, but this index has string ids.")
        hashes = _hash_texts(*_encode(texts))
        starts = np.searchsorted(self.hashes, hashes)
        positions = []
        for text, value, start in zip(texts, hashes, starts, strict=True):
            position = self._match(text, value, start)
            if position is None and missing is None:
                raise _unknown(text)
            positions.append(missing if position is None else position)
        return np.array(positions, dtype=np.int64).reshape(wanted.shape)

    def _match(self, text: str, value: np.uint64, start: int) -> int | None:
        # Two ids may share a hash: walk the run of equal hashes.
        while start < len(self.hashes) and self.hashes[start] == value:
            position = int(self.positions[start])
            if not 0 <= position < len(self.ends):
                raise CorruptIndexError("an id points to no item: the index is damaged; run softindex verify on it.")
            if self._one(position) == text:
                return position
            start += 1
        return None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to save."""
        return {
            "id_text": self.text,
            "id_ends": self.ends,
            "id_hashes": self.hashes,
            "id_positions": self.positions,
        }


LONGEST = 1 << 24
"""Bytes of an id: a longer one is refused when an index is built, and a sign of damage when it is read."""

IdMap = RowIds | IntegerIds | StringIds


def _encode(texts: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    if any(len(part) > LONGEST for part in encoded):
        raise InputError(f"an id is longer than {LONGEST} bytes; pass shorter ids.")
    ends = np.cumsum([len(part) for part in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends


def _hash_texts(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    hashes = np.empty(len(ends), dtype=np.uint64)
    hash_strings(text, ends, hashes)
    return hashes


def id_map(ids: Ids | None, order: NDArray[np.int64], positions: NDArray[Any]) -> IdMap:
    """The map of ids (n,) given in input order, or of row numbers.

    Position p holds input row order[p], and row i is at positions[i]; all maps use the dtype of positions.
    """
    narrow = positions.dtype
    if ids is None:
        return RowIds(order.astype(narrow), positions)
    if ids.dtype.kind == "i":
        placed = ids[order].astype(np.int64, copy=False)
        ranks = np.argsort(placed, kind="stable")
        return IntegerIds(placed, placed[ranks], ranks.astype(narrow))
    text, ends = _encode(ids[order].tolist())
    hashes = _hash_texts(text, ends)
    ranks = np.argsort(hashes, kind="stable")
    return StringIds(text, ends, hashes[ranks], ranks.astype(narrow))


def id_map_from_arrays(kind: str, arrays: Mapping[str, NDArray[Any]]) -> IdMap:
    """The map that `arrays()` of a map of this kind was saved from; KeyError if an array is missing."""
    if kind == RowIds.kind:
        return RowIds(arrays["id_rows"], arrays["id_positions"])
    if kind == IntegerIds.kind:
        return IntegerIds(arrays["id_values"], arrays["id_keys"], arrays["id_positions"])
    return StringIds(arrays["id_text"], arrays["id_ends"], arrays["id_hashes"], arrays["id_positions"])
