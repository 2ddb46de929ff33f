"""Which items the queries of a call may draw: options in, positions for the engine out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

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
    "Numbered",
    "Restriction",
    "Source",
    "Unknown",
    "count_items",
    "exclusions",
    "find_items",
    "find_some",
    "id_rows",
    "left_out",
    "restrict",
    "restrict_draws",
    "restrict_items",
]

DEFAULT_K = 1000
"""Items of the top-k law, as in the paper that the laws are from."""
MISSING = -1
"""Position of an id that the index does not hold."""
LISTING = 6
"""Scoring an item alone takes as long as so many in a row: shorter lists of allowed items are scored one by one."""
MANY = 1 << 12
"""Positions from which on a bit for each is quicker than sorting."""
Unknown = Literal["error", "ignore"]
"""What to do with ids in `exclude` and `allow` that the index does not hold."""
Missing = Literal["error", "-inf"]
"""What to do with ids that the index does not hold, where their log-probability is asked for."""


class Source(Protocol):
    """Items that calls choose from."""

    @property
    def ids(self) -> IdMap:
        """Which id is at which position."""

    def __len__(self) -> int:
        """Number of items."""

    def select(self, mask: NDArray[np.bool_]) -> Integers:
        """Positions of the items for which a mask (n,), in the order of the ids, is true."""

    def others(self, positions: Integers) -> Integers:
        """Positions, increasing, of all other items."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """Items whose positions are their numbers."""

    ids: IdMap
    count: int

    def __len__(self) -> int:
        return self.count

    def select(self, mask: NDArray[np.bool_]) -> Integers:
        """Positions for which a mask (n,) is true."""
        return np.flatnonzero(mask)

    def others(self, positions: Integers) -> Integers:
        """Positions, increasing, of all other items."""
        left = np.ones(self.count, bool)
        left[positions] = False
        return np.flatnonzero(left)


@dataclass(frozen=True, slots=True)
class Restriction:
    """The part of a law that the queries of one call draw from."""

    native: NativeRestriction
    replace: bool
    possible: Integers
    """(b,) items that a query may draw at most."""
    empty: bool
    """Nothing is restricted after all."""
    by: str
    """What the caller restricts it by, in words."""

    def check_possible(self, n: int) -> None:
        """Refuse n draws that some query cannot have, whatever the law."""
        row = self._first_short(self.possible, n)
        if row is not None and self.possible[row] == 0:
            raise InputError(f"{self.by} nothing to draw for query {row}; leave at least one item.")
        if row is not None:
            raise InputError(
                f"n is {n} but there {'is' if self.possible[row] == 1 else 'are'} {count_items(self.possible[row])} to "
                f"draw without replacement for query {row}; ask for at most that many."
            )

    def check_nucleus(self, left: Integers, n: int) -> None:
        """Refuse n draws that some query could not have: left (b,) items were in its nucleus."""
        row = self._first_short(left, n)
        if row is not None:
            raise InputError(
                f"n is {n} but the nucleus of query {row} holds {count_items(left[row])} to draw without replacement; "
                "ask for at most that many, or raise top_p."
            )

    def check_best(self, k: int) -> None:
        """Refuse to look for more best items than are left for some query."""
        short = np.flatnonzero(self.possible < k)
        if len(short):
            row = int(short[0])
            raise InputError(
                f"k is {k} but {self.by} {count_items(self.possible[row])} for query {row}; ask for at most that many."
            )

    def _first_short(self, left: Integers, n: int) -> int | None:
        short = np.flatnonzero(left < (1 if self.replace else n))
        return int(short[0]) if len(short) else None


def restrict(
    source: Source, b: int, *, method: str, replace: Any, exclude: Any, allow: Any, unknown: Any, top_p: Any, k: Any
) -> Restriction:
    """Check the options of a call for b queries."""
    kept, items = check_flag(replace, "replace"), len(source)
    share = 1.0 if top_p is None else check_share(top_p, "top_p")
    if k is not None and method != TOP_K:
        raise InputError(f"k is for method {TOP_K!r} only, but the method is {method!r}; leave k out.")
    best = 0
    if method == TOP_K:
        best = min(items, DEFAULT_K if k is None else check_count(k, "k"))
    rows = [_shorter(source, row) for row in _choices(source, exclude, allow, b, unknown)]
    left: Integers = np.array([len(row.positions) if row.allows else items - len(row.positions) for row in rows])
    if len(rows) == 1:
        offsets, positions, left = np.array([0, len(rows[0].positions)]), rows[0].positions, left.repeat(b)
    else:
        offsets = np.cumsum([0, *(len(row.positions) for row in rows)])
        positions = np.concatenate([row.positions for row in rows])
    possible = np.minimum(left, best) if best else left
    flags = np.array([int(row.allows) for row in rows]) if allow is not None else None
    native = NativeRestriction(offsets, np.ascontiguousarray(positions, np.int64), kept, share, best, flags)
    empty = kept and share == 1.0 and not best and len(positions) == 0 and (flags is None or not flags.any())
    by = "exclude leaves" if allow is None else "allow leaves" if exclude is None else "allow and exclude leave"
    return Restriction(native, kept, possible, empty, by)


def restrict_draws(source: Source, shape: tuple[int, int], method: str, **options: Any) -> Restriction | None:
    """Return what b queries may draw n items from, shape being (b, n); None where that is the entire law."""
    b, n = shape
    part = restrict(source, b, method=method, **options)
    part.check_possible(n)
    # Restricted certified draws are made in another way, and in the same way for all queries of a call.
    asked = options["exclude"] is not None or options["allow"] is not None
    return None if part.empty and (method != CERTIFIED or not asked) else part


def restrict_items(source: Source, b: int, exclude: Any, allow: Any, unknown: Any) -> Restriction | None:
    """Return what is left for b queries; None where that is everything."""
    chosen = {"exclude": exclude, "allow": allow, "unknown": unknown}
    part = restrict(source, b, method="", replace=True, top_p=None, k=None, **chosen)
    part.check_possible(1)
    return None if part.empty else part


@dataclass(frozen=True, slots=True)
class _Choice:
    """What a query may draw: the items at these positions, or all others."""

    allows: bool
    positions: Integers


def _choices(source: Source, exclude: Any, allow: Any, b: int, unknown: Any) -> list[_Choice]:
    """What the queries may draw: one choice for all of them, or one for each."""
    # Left out and None are the same here: a caller that has another default says so.
    word = check_choice("error" if unknown is None else unknown, "unknown", ("error", "ignore"))
    hidden, shown = (
        _positions(source, wanted, b, name, ignore=word == "ignore")
        for wanted, name in ((exclude, "exclude"), (allow, "allow"))
    )
    count = max(len(hidden), len(shown))
    choices = []
    for row in range(count):
        out, kept = hidden[row if len(hidden) > 1 else 0], shown[row if len(shown) > 1 else 0]
        if kept is None:
            choices.append(_Choice(False, np.empty(0, np.int64) if out is None else out))
        else:
            choices.append(_Choice(True, kept if out is None else _without(kept, out)))
    return choices


def _shorter(source: Source, choice: _Choice) -> _Choice:
    """The same choice; by the items left out where too many are allowed to score each of them alone."""
    if not choice.allows or len(choice.positions) * LISTING < len(source) or not len(choice.positions):
        return choice
    return _Choice(False, source.others(choice.positions))


def _without(positions: Integers, others: Integers) -> Integers:
    """The positions, increasing, that are not among others, increasing."""
    if not len(others):
        return positions
    place = np.minimum(np.searchsorted(others, positions), len(others) - 1)
    left: Integers = positions[others[place] != positions]
    return left


def left_out(source: Source, exclude: Any, allow: Any, b: int, unknown: Any = "error") -> list[Integers]:
    """Return the positions, increasing, of what queries may not have: for all of them, or for each of b."""
    rows = _choices(source, exclude, allow, b, unknown)
    return [source.others(row.positions) if row.allows else row.positions for row in rows]


def _positions(source: Source, wanted: Any, b: int, name: str, *, ignore: bool) -> list[Integers | None]:
    """Positions of ids or of masks, increasing, for all queries or for each; None where nothing is said."""
    if wanted is None:
        return [None]
    mask = as_mask(wanted)
    if mask is not None:
        return [source.select(row) for row in _masks(mask, b, len(source), name)]
    rows = id_rows(wanted, b, name)
    filled = [row for row in rows if row is not None]
    if len(rows) == 1:
        return [_known(_find(source.ids, row, name, ignore)) for row in filled] or [None]
    # One search for all rows: each would cost more than the draws.
    cuts = np.cumsum([len(row) for row in filled])[:-1]
    found = iter(np.split(_find(source.ids, _join(filled), name, ignore), cuts))
    return [None if row is None else _known(next(found)) for row in rows]


def _masks(mask: NDArray[np.bool_], b: int, n: int, name: str) -> list[NDArray[np.bool_]]:
    if mask.shape == (n,):
        return [mask]
    if mask.shape == (b, n):
        return list(mask)
    raise InputError(
        f"{name} is a mask of shape {mask.shape}; expected ({n},), an entry for each item in the order of index.ids, "
        f"or ({b}, {n}), a row for each query."
    )


def find_items(source: Source, wanted: Any, unknown: Any) -> Integers:
    """Return the positions, increasing, of ids or of what a mask selects."""
    ignore = check_choice(unknown, "unknown", ("error", "ignore")) == "ignore"
    mask = as_mask(wanted)
    if mask is None:
        if not _is_sequence(wanted):
            raise InputError("items are neither ids nor a mask; pass a list or an array.")
        return _known(_find(source.ids, wanted if isinstance(wanted, np.ndarray) else list(wanted), "items", ignore))
    if mask.shape != (len(source),):
        raise InputError(
            f"the mask has shape {mask.shape} but there are {len(source)} items; pass one entry for each, in the "
            "order of index.ids."
        )
    return source.select(mask)


def as_mask(value: Any) -> NDArray[np.bool_] | None:
    """The value as an array of booleans, if it is one, a list of them or a list of such lists; None otherwise."""
    if isinstance(value, list | tuple):
        nested = bool(value) and all(isinstance(one, list | tuple) for one in value)
        rows = list(value) if nested else [value]
        same_length = len({len(row) for row in rows}) == 1
        truth = same_length and rows[0] and all(isinstance(one, bool | np.bool_) for row in rows for one in row)
        return np.array(value) if truth else None
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
    ids: IdMap, exclude: Any, b: int, name: str = "exclude", unknown: Any = "error"
) -> tuple[Integers, Integers]:
    """Return offsets (rows + 1,) and positions, increasing in each row: one row for all queries, or one for each.

    name: what the caller calls the ids; unknown: as in `Index.sample`.
    """
    ignore = check_choice(unknown, "unknown", ("error", "ignore")) == "ignore"
    rows = [() if row is None else row for row in id_rows(exclude, b, name)]
    if len(rows) == 1:
        shared = _known(_find(ids, rows[0], name, ignore))
        return np.array([0, len(shared)]), shared
    # One search for all rows: each would cost more than the draws.
    ends = np.cumsum([len(row) for row in rows])
    parts = [_known(part) for part in np.split(_find(ids, _join(rows), name, ignore), ends[:-1])]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return offsets, np.ascontiguousarray(np.concatenate(parts), np.int64)


def count_items(count: int) -> str:
    """A number of items, in words."""
    return f"{count} item{'' if count == 1 else 's'}"


def _known(positions: Integers) -> Integers:
    """Each position once, increasing, without those of unknown ids."""
    if len(positions) >= MANY:
        there = np.zeros(int(positions.max()) + 2, bool)
        # Those of unknown ids, -1, go to the last entry.
        there[positions] = True
        there[MISSING] = False
        return np.flatnonzero(there)
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
        if name not in ("exclude", "allow"):
            raise
        advice = 'leave it out, or pass unknown="ignore"'
        raise UnknownIdError(f"id {show(error.id)} in {name} is not in this index; {advice}.", error.id) from None
    if positions.ndim != 1:
        raise InputError(f"{name} is nested too deeply; pass ids for all queries, or one sequence per query.")
    return positions


def id_rows(exclude: Any, b: int, name: str) -> list[Any]:
    """The sequences of ids: one that all queries share, or one for each; None where there is none."""
    if exclude is None:
        return [None]
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
        return [None]
    if not nested:
        return [parts]
    if len(parts) != b or not all(part is None or _is_sequence(part) for part in parts):
        raise InputError(
            f"{name} has {len(parts)} entries for {b} queries; pass ids for all queries, or one sequence of "
            "ids per query."
        )
    return [part if part is None or isinstance(part, np.ndarray) else list(part) for part in parts]


def _any_sequence(parts: Any) -> bool:
    return any(_is_sequence(part) for part in parts)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return False
    return value.ndim > 0 if hasattr(value, "ndim") else hasattr(value, "__len__") and hasattr(value, "__iter__")
