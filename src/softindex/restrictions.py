"""Which items the queries of a call may draw: options in, positions for the engine out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_choice, check_count, check_flag, check_share
from softindex.errors import InputError, UnknownIdError, show
from softindex.ids import IdMap, as_ids
from softindex.kernels import NativeRestriction
from softindex.laws import CERTIFIED, TOP_K
from softindex.records import Integers

__all__ = [
    "DEFAULT_K",
    "Missing",
    "Restriction",
    "Unknown",
    "exclude_items",
    "exclusions",
    "find_items",
    "find_some",
    "restrict",
    "restrict_draws",
]

DEFAULT_K = 1000
"""Items of the top-k law, as in the paper that the laws are from."""
MISSING = -1
"""Position of an id that the index does not hold."""
Unknown = Literal["error", "ignore"]
"""What to do with ids in `exclude` that the index does not hold."""
Missing = Literal["error", "-inf"]
"""What to do with ids that the index does not hold, where their log-probability is asked for."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """The part of a law that the queries of one call draw from."""

    native: NativeRestriction
    replace: bool
    possible: Integers
    """(b,) items that a query may draw at most."""
    empty: bool
    """Nothing is restricted after all."""

    def check_possible(self, n: int) -> None:
        """Refuse n draws that some query cannot have, whatever the law."""
        row = self._first_short(self.possible, n)
        if row is not None and self.possible[row] == 0:
            raise InputError(f"exclude leaves nothing to draw for query {row}; leave at least one item.")
        if row is not None:
            raise InputError(
                f"n is {n} but there {'is' if self.possible[row] == 1 else 'are'} {_items(self.possible[row])} to draw "
                f"without replacement for query {row}; ask for at most that many."
            )

    def check_nucleus(self, left: Integers, n: int) -> None:
        """Refuse n draws that some query could not have: left (b,) items were in its nucleus."""
        row = self._first_short(left, n)
        if row is not None:
            raise InputError(
                f"n is {n} but the nucleus of query {row} holds {_items(left[row])} to draw without replacement; "
                "ask for at most that many, or raise top_p."
            )

    def check_best(self, k: int) -> None:
        """Refuse to look for more best items than are left for some query."""
        short = np.flatnonzero(self.possible < k)
        if len(short):
            row = int(short[0])
            raise InputError(
                f"k is {k} but exclude leaves {_items(self.possible[row])} for query {row}; ask for at most that many."
            )

    def _first_short(self, left: Integers, n: int) -> int | None:
        short = np.flatnonzero(left < (1 if self.replace else n))
        return int(short[0]) if len(short) else None


def restrict(
    ids: IdMap, items: int, b: int, *, method: str, replace: Any, exclude: Any, unknown: Any, top_p: Any, k: Any
) -> Restriction:
    """Check the options of a call for b queries of an index of this many items."""
    kept = check_flag(replace, "replace")
    share = 1.0 if top_p is None else check_share(top_p, "top_p")
    if k is not None and method != TOP_K:
        raise InputError(f"k is for method {TOP_K!r} only, but the method is {method!r}; leave k out.")
    best = 0
    if method == TOP_K:
        best = min(items, DEFAULT_K if k is None else check_count(k, "k"))
    offsets, excluded = exclusions(ids, exclude, b, unknown=unknown)
    left = np.full(b, items - offsets[-1]) if len(offsets) == 2 else items - np.diff(offsets)
    possible = np.minimum(left, best) if best else left
    empty = kept and share == 1.0 and not best and len(excluded) == 0
    return Restriction(NativeRestriction(offsets, excluded, kept, share, best), kept, possible, empty)


def restrict_draws(
    ids: IdMap, items: int, shape: tuple[int, int], method: str, *, exclude: Any, **options: Any
) -> Restriction | None:
    """Return what b queries may draw n items from, shape being (b, n); None where that is the entire law."""
    b, n = shape
    part = restrict(ids, items, b, method=method, exclude=exclude, **options)
    part.check_possible(n)
    # Restricted certified draws are made in another way, and in the same way for all queries of a call.
    return None if part.empty and (method != CERTIFIED or exclude is None) else part


def exclude_items(ids: IdMap, items: int, b: int, exclude: Any, unknown: Any) -> Restriction | None:
    """Return what is left of an index of this many items for b queries; None where that is everything."""
    part = restrict(ids, items, b, method="", replace=True, exclude=exclude, unknown=unknown, top_p=None, k=None)
    part.check_possible(1)
    return None if part.empty else part


def find_items(ids: IdMap, wanted: Any, places: Callable[[], Integers], unknown: Any) -> Integers:
    """Return the positions, increasing, of ids or of what a mask over `places()` selects."""
    ignore = check_choice(unknown, "unknown", ("error", "ignore")) == "ignore"
    mask = as_mask(wanted)
    if mask is None:
        if not _is_sequence(wanted):
            raise InputError("items are neither ids nor a mask; pass a list or an array.")
        return _known(_find(ids, wanted if isinstance(wanted, np.ndarray) else list(wanted), "items", ignore))
    everywhere = places()
    if mask.shape != everywhere.shape:
        raise InputError(
            f"the mask has shape {mask.shape} but there are {len(everywhere)} items; pass one entry for each, in the "
            "order of index.ids."
        )
    return everywhere[mask]


def as_mask(value: Any) -> NDArray[np.bool_] | None:
    """The value as an array of booleans, if it is one or a list of them; None if it is something else."""
    if isinstance(value, list | tuple):
        return np.array(value) if len(value) and all(isinstance(one, bool | np.bool_) for one in value) else None
    array = value if isinstance(value, np.ndarray) or not hasattr(value, "__array__") else as_ids(value)
    return array if isinstance(array, np.ndarray) and array.dtype == np.bool_ else None


def find_some(ids: IdMap, wanted: Any, missing: Any) -> tuple[Integers, NDArray[np.bool_] | None]:
    """Return the positions of ids, and which of them are not there (at position 0): None unless that is allowed."""
    if check_choice(missing, "missing", ("error", "-inf")) == "error":
        return ids.find(wanted), None
    positions = ids.find(wanted, missing=MISSING)
    absent = positions == MISSING
    return np.where(absent, 0, positions), absent


def exclusions(
    ids: IdMap, exclude: Any, b: int, name: str = "exclude", unknown: Any = None
) -> tuple[Integers, Integers]:
    """Return offsets (rows + 1,) and positions, increasing in each row: one row for all queries, or one for each.

    name: what the caller calls the ids; unknown: as in `Index.sample`, "error" when None.
    """
    ignore = unknown is not None and check_choice(unknown, "unknown", ("error", "ignore")) == "ignore"
    rows = _rows(exclude, b, name)
    if len(rows) == 1:
        shared = _known(_find(ids, rows[0], name, ignore))
        return np.array([0, len(shared)]), shared
    # One search for all rows: each would cost more than the draws.
    ends = np.cumsum([len(row) for row in rows])
    parts = [_known(part) for part in np.split(_find(ids, _join(rows), name, ignore), ends[:-1])]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return offsets, np.ascontiguousarray(np.concatenate(parts), np.int64)


def _items(count: int) -> str:
    return f"{count} item{'' if count == 1 else 's'}"


def _known(positions: Integers) -> Integers:
    """Each position once, increasing, without those of unknown ids."""
    ordered = np.sort(positions)
    new = ordered != MISSING
    new[1:] &= ordered[1:] != ordered[:-1]
    return ordered if new.all() else ordered[new]


def _join(rows: list[Any]) -> Any:
    filled = [row for row in rows if len(row)]
    types = {row.dtype if isinstance(row, np.ndarray) else None for row in filled}
    if len(types) == 1 and None not in types and all(row.ndim == 1 for row in filled):
        return np.concatenate(filled)
    return [identity for row in filled for identity in row]


def _find(ids: IdMap, wanted: Any, name: str, ignore: bool) -> Integers:
    if len(wanted) == 0:
        return np.empty(0, np.int64)
    try:
        positions = ids.find(wanted, missing=MISSING if ignore else None)
    except UnknownIdError as error:
        if name != "exclude":
            raise
        advice = 'leave it out, or pass unknown="ignore"'
        raise UnknownIdError(f"id {show(error.id)} in exclude is not in this index; {advice}.", error.id) from None
    if positions.ndim != 1:
        raise InputError(f"{name} is nested too deeply; pass ids for all queries, or one sequence per query.")
    return positions


def _rows(exclude: Any, b: int, name: str) -> list[Any]:
    """The sequences of ids: one that all queries share, or one for each."""
    if exclude is None:
        return [()]
    if not _is_sequence(exclude):
        raise InputError(
            f"{name} is neither ids for all queries nor one sequence of ids per query; pass a list or an array."
        )
    # Tensors and columns of tables are arrays too: as lists they would be thousands of small ones.
    parts = as_ids(exclude) if hasattr(exclude, "__array__") else list(exclude)
    if isinstance(parts, list) and set(map(type, parts)) <= {int, str}:
        return [parts]
    nested = parts.ndim > 1 if isinstance(parts, np.ndarray) and parts.dtype != object else _any_sequence(parts)
    if not nested and len(parts) == b and all(part is None for part in parts):
        return [()]
    if not nested:
        return [parts]
    if len(parts) != b or not all(part is None or _is_sequence(part) for part in parts):
        raise InputError(
            f"{name} has {len(parts)} entries for {b} queries; pass ids for all queries, or one sequence of "
            "ids per query."
        )
    return [() if part is None else part if isinstance(part, np.ndarray) else list(part) for part in parts]


def _any_sequence(parts: Any) -> bool:
    return any(_is_sequence(part) for part in parts)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return False
    return value.ndim > 0 if hasattr(value, "ndim") else hasattr(value, "__len__") and hasattr(value, "__iter__")
