"""Positions in the index from ids, and ids from positions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from softindex.errors import CorruptIndexError, InputError, UnknownIdError, show
from softindex.kernels import IntegerTable, StringTable, hash_strings, read_integers, strings_at
from softindex.records import Ids, Integers

__all__ = ["IdMap", "IntegerIds", "RowIds", "StringIds", "as_ids", "id_map", "id_map_from_arrays"]


LARGEST = 2**63 - 1
"""The largest integer id there is."""
LONGEST = 1 << 24
"""Bytes of an id: a longer one is refused when an index is built, and a sign of damage when it is read."""
NOT_THERE = -1
"""Position of an id that is in no table."""
_DAMAGE = (RuntimeError, UnicodeDecodeError)


def as_ids(ids: Any, dtype: type[object] | None = None) -> NDArray[Any]:
    """What a caller passed as ids, as an array; InputError where that cannot be."""
    if isinstance(ids, np.ma.MaskedArray):
        raise InputError("ids are a masked array; pass ids.compressed(), or a plain array.")
    try:
        if isinstance(ids, np.ndarray):
            # Another thread could change the caller's array between its check and its use.
            return ids.copy() if ids.flags.writeable else ids
        return np.asarray(ids, dtype)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).rstrip(".")
        raise InputError(
            f"ids cannot be turned into an array ({reason}); pass a list or an array, with as many ids for every query."
        ) from error


def _as_integers(ids: Any, missing: int | None) -> tuple[Integers, NDArray[np.bool_] | None]:
    """Return the ids as int64, and which of them are too large for it: none, unless a position stands for misses."""
    if isinstance(ids, list):
        integers = np.empty(len(ids), np.int64)
        if read_integers(ids, integers):
            return integers, None
    # As objects: NumPy would make integers of booleans in a list, and floats of integers with more than 64 bits.
    array = as_ids(ids) if hasattr(ids, "__array__") else as_ids(ids, object)
    if array.size == 0:
        return array.astype(np.int64), None
    if array.dtype.kind not in "iu":
        plain = [value.item() if hasattr(value, "item") else value for value in array.ravel().tolist()]
        _check_kinds(plain, "integer")
        array = np.array(plain, object).reshape(array.shape)
    if array.dtype.kind == "i":
        return array.astype(np.int64, copy=False), None
    too_large = ((array > LARGEST) | (array < -LARGEST - 1)).astype(bool)
    if not too_large.any():
        return array.astype(np.int64), None
    if missing is None:
        raise _unknown(int(array[too_large].flat[0]))
    return np.where(too_large, 0, array).astype(np.int64), too_large


def _kind(value: object) -> str:
    """What an id is, in words."""
    kinds: dict[str, tuple[type, ...]] = {
        "boolean": (bool, np.bool_),
        "integer": (int, np.integer),
        "float": (float, np.floating),
        "string": (str,),
    }
    return next((word for word, types in kinds.items() if isinstance(value, types)), type(value).__name__)


def _check_kinds(values: list[Any], expected: str) -> None:
    odd = next((kind for kind in map(_kind, values) if kind != expected), None)
    if odd is not None:
        raise InputError(f"got {odd} ids, but this index has {expected} ids.")


def _unknown(wanted: object) -> UnknownIdError:
    return UnknownIdError(f"id {show(wanted)} is not in this index; pass ids that it contains.", wanted)


def _damaged(error: Exception) -> CorruptIndexError:
    reason = "an id is not text" if isinstance(error, UnicodeDecodeError) else str(error)
    return CorruptIndexError(f"{reason}: the index is damaged; run softindex verify on it.")


def _settle(found: Integers, wanted: Any, missing: int | None) -> None:
    """Replace NOT_THERE by `missing`, or raise UnknownIdError for the first such id where that is None."""
    absent = np.flatnonzero(found == NOT_THERE)
    if missing is None:
        first = wanted[absent[0]]
        raise _unknown(first.item() if isinstance(first, np.generic) else first)
    found[absent] = missing


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
    _tables: list[IntegerTable] = field(default_factory=list, repr=False, compare=False)

    def at(self, positions: Integers) -> Ids:
        """Ids at these positions, same shape."""
        return self.ids.take(positions)

    def find(self, ids: Any, *, missing: int | None = None) -> Integers:
        """Positions of these ids, same shape; `missing` for an unknown one, or UnknownIdError where that is None."""
        wanted, too_large = _as_integers(ids, missing)
        if not self._tables:
            self._tables.append(IntegerTable(self.keys, self.positions))
        flat, found = np.ascontiguousarray(wanted).ravel(), np.empty(wanted.size, np.int64)
        try:
            absent = self._tables[0].find(flat, found)
        except _DAMAGE as error:
            raise _damaged(error) from error
        if too_large is not None:
            found[too_large.ravel()] = NOT_THERE
        if absent or too_large is not None:
            _settle(found, flat, missing)
        return found.reshape(wanted.shape)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to save."""
        return {"id_values": self.ids, "id_keys": self.keys, "id_positions": self.positions}


@dataclass(frozen=True, slots=True)
class StringIds:
    """String ids as one UTF-8 text.  ends (n,): where the id of each position ends.

    hashes (n,): the hashes of the ids, sorted; positions (n,): the position of each hash.  key (2,): what they were
    hashed with; None in old files, whose ids are hashed again when the first is looked up.  Ids are found in the
    arrays of a memory-mapped file, so nothing is built at load.
    """

    kind: ClassVar = "strings"
    text: NDArray[np.uint8]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    positions: NDArray[Any]
    key: NDArray[np.uint64] | None
    _tables: list[StringTable] = field(default_factory=list, repr=False, compare=False)

    def at(self, positions: Integers) -> Ids:
        """Ids at these positions, same shape."""
        try:
            texts = strings_at(self.text, self.ends, np.ascontiguousarray(positions).ravel())
        except _DAMAGE as error:
            raise _damaged(error) from error
        return np.array(texts, dtype=np.str_).reshape(positions.shape)

    def find(self, ids: Any, *, missing: int | None = None) -> Integers:
        """Positions of these ids, same shape; `missing` for an unknown one, or UnknownIdError where that is None."""
        try:
            if isinstance(ids, np.ndarray) and ids.dtype.kind == "U" and ids.dtype.isnative and ids.itemsize:
                return self._find_points(ids, missing)
            return self._find_objects(ids, missing)
        except _DAMAGE as error:
            raise _damaged(error) from error

    def _find_points(self, ids: NDArray[np.str_], missing: int | None) -> Integers:
        found = np.empty(ids.size, np.int64)
        if self._table().find_points(np.ascontiguousarray(ids).reshape(ids.size, 1).view(np.uint32), found):
            _settle(found, ids.ravel(), missing)
        return found.reshape(ids.shape)

    def _find_objects(self, ids: Any, missing: int | None) -> Integers:
        texts, shape = (ids, (len(ids),)) if isinstance(ids, list) else ([None], (1,))
        found = np.empty(len(texts), np.int64)
        absent = self._table().find(texts, found)
        if absent < 0:
            # As objects: NumPy would make strings of the integers in a mixed list.
            wanted = as_ids(ids, object)
            texts, shape = wanted.ravel().tolist(), wanted.shape
            found = np.empty(len(texts), np.int64)
            absent = self._table().find(texts, found)
            if absent < 0:
                _check_kinds(texts, "string")
        if absent:
            _settle(found, texts, missing)
        return found.reshape(shape)

    def _table(self) -> StringTable:
        if not self._tables:
            own = self if self.key is not None else _hash(self.text, self.ends, self.positions.dtype)
            assert own.key is not None
            self._tables.append(StringTable(own.text, own.ends, own.hashes, own.positions, own.key))
        return self._tables[0]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to save."""
        arrays: dict[str, NDArray[Any]] = {
            "id_text": self.text,
            "id_ends": self.ends,
            "id_hashes": self.hashes,
            "id_positions": self.positions,
        }
        return arrays if self.key is None else {**arrays, "id_key": self.key}


IdMap = RowIds | IntegerIds | StringIds


def _encode(texts: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    if any(len(part) > LONGEST for part in encoded):
        raise InputError(f"an id is longer than {LONGEST} bytes; pass shorter ids.")
    ends = np.cumsum([len(part) for part in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends


def _hash(text: NDArray[np.uint8], ends: NDArray[np.int64], narrow: np.dtype[Any]) -> StringIds:
    """String ids hashed under a fresh key: whoever chooses ids cannot foresee which of them collide."""
    key = np.frombuffer(os.urandom(16), np.uint64)
    hashes = np.empty(len(ends), np.uint64)
    hash_strings(text, ends, key, hashes)
    ranks = np.argsort(hashes, kind="stable")
    return StringIds(text, ends, hashes[ranks], ranks.astype(narrow), key)


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
    return _hash(*_encode(ids[order].tolist()), narrow)


def id_map_from_arrays(kind: str, arrays: Mapping[str, NDArray[Any]]) -> IdMap:
    """The map that `arrays()` of a map of this kind was saved from; KeyError if an array is missing."""
    if kind == RowIds.kind:
        return RowIds(arrays["id_rows"], arrays["id_positions"])
    if kind == IntegerIds.kind:
        return IntegerIds(arrays["id_values"], arrays["id_keys"], arrays["id_positions"])
    text, ends, hashes, positions = (arrays[name] for name in ("id_text", "id_ends", "id_hashes", "id_positions"))
    return StringIds(text, ends, hashes, positions, arrays.get("id_key"))
