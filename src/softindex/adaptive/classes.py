"""Class numbers that a caller names: those to leave out, and those whose probability is wanted."""

from __future__ import annotations

from typing import Any

import numpy as np

from softindex.arguments import check_choice
from softindex.errors import InputError, UnknownIdError, show
from softindex.ids import RowIds
from softindex.records import Integers
from softindex.restrictions import Numbered, left_out

__all__ = ["Exclusion", "check_classes", "check_exclude", "check_unknown"]


class Exclusion:
    """The classes that b queries leave out: the same for all, or one list for each."""

    __slots__ = ("_by", "_lists", "_n", "_shared")

    def __init__(self, lists: list[Integers], n: int, by: str = "exclude leaves") -> None:
        """lists: class numbers, increasing and distinct; one list for all queries, or one per query; by: in words."""
        self._lists, self._n, self._by = lists, n, by
        # A list for each query would take too much memory for all of them at once.
        self._shared = self._complement(lists[0]) if len(lists) == 1 else None

    def excluded(self, row: int) -> Integers:
        """Classes that a query leaves out."""
        return self._lists[0 if len(self._lists) == 1 else row]

    def left(self, row: int) -> int:
        """Number of classes that a query may have."""
        return self._n - len(self.excluded(row))

    def candidates(self, row: int) -> Integers | None:
        """Classes that a query may have, increasing; None for all."""
        return self._complement(self._lists[row]) if len(self._lists) > 1 else self._shared

    def take(self, rows: Integers) -> Exclusion:
        """What some of the queries leave out."""
        return self if len(self._lists) == 1 else Exclusion([self._lists[row] for row in rows], self._n, self._by)

    def joined(self) -> tuple[Integers, Integers] | None:
        """Offsets of the lists, and the lists one after the other; None where nothing is left out."""
        if len(self._lists) == 1 and len(self._lists[0]) == 0:
            return None
        return np.cumsum([0, *map(len, self._lists)]), np.concatenate(self._lists)

    def _complement(self, excluded: Integers) -> Integers | None:
        if len(excluded) == 0:
            return None
        keep = np.ones(self._n, bool)
        keep[excluded] = False
        return np.flatnonzero(keep)

    def check_fits(self, k: int) -> None:
        """Refuse to look for more classes than some query may have."""
        for row, excluded in enumerate(self._lists):
            left = self._n - len(excluded)
            if k > left:
                where = "" if len(self._lists) == 1 else f" for query {row}"
                classes = "class" if left == 1 else "classes"
                raise InputError(f"k is {k} but {self._by} {left} {classes}{where}; ask for at most that many.")


def check_unknown(unknown: Any) -> None:
    """Refuse what is no way to treat unknown classes."""
    check_choice(unknown, "unknown", ("error", "ignore"))


def check_exclude(chosen: tuple[Any, Any, Any], b: int, n: int) -> Exclusion:
    """Return what b queries leave out of n classes; every query must have a class left.

    chosen: exclude, allow and unknown, as the caller passed them.
    """
    exclude, allow, unknown = chosen
    if exclude is None and allow is None:
        check_unknown(unknown)
        return Exclusion([np.empty(0, np.int64)], n)
    try:
        lists = left_out(Numbered(_numbers(n), n), exclude, allow, b, unknown)
    except UnknownIdError as error:
        which = "exclude names" if " in exclude " in str(error) else "allow names"
        raise _no_class(which, error.id, n, '; leave it out, or pass unknown="ignore"') from None
    return check_left(lists, n, exclude, allow)


def check_left(lists: list[Integers], n: int, exclude: Any, allow: Any) -> Exclusion:
    """Return lists of left out classes as an exclusion; an error names the argument that leaves a query none."""
    by = "exclude leaves" if allow is None else "allow leaves" if exclude is None else "allow and exclude leave"
    for row, each in enumerate(lists):
        if len(each) == n:
            where = "" if len(lists) == 1 else f" for query {row}"
            raise InputError(f"{by} no class{where}; leave at least one.")
    return Exclusion(lists, n, by)


def check_classes(ids: Any, b: int, n: int, *, single: bool) -> Integers:
    """Return class numbers (b, m) from what the caller passed for b queries."""
    try:
        classes = _numbers(n).find(ids)
    except UnknownIdError as error:
        raise _no_class("ids name", error.id, n) from None
    if single and classes.ndim <= 1:
        return classes.reshape(1, -1)
    if classes.ndim == 1:
        return np.broadcast_to(classes, (b, len(classes)))
    if classes.ndim == 2 and len(classes) == b:
        return classes
    raise InputError(
        f"ids have shape {classes.shape} for {b} queries; expected (m,) for all queries, or ({b}, m) with a row for "
        "each."
    )


def _numbers(n: int) -> RowIds:
    numbers = np.arange(n)
    return RowIds(numbers, numbers)


def _no_class(what: str, number: object, n: int, advice: str = "") -> UnknownIdError:
    return UnknownIdError(
        f"{what} class {show(number)}, which does not exist; this layer has the classes 0 to {n - 1}{advice}.", number
    )
