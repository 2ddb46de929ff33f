"""Class numbers that a caller names: those to leave out, and those whose probability is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.arguments import check_choice
from softindex.errors import InputError, UnknownIdError
from softindex.ids import RowIds
from softindex.records import Integers
from softindex.restrictions import exclusions

__all__ = ["Exclusion", "check_classes", "check_exclude"]


class Exclusion:
    """The classes that b queries leave out: the same for all, or one list for each."""

    __slots__ = ("_lists", "_n", "_shared")

    def __init__(self, lists: list[Integers], n: int) -> None:
        """lists: class numbers, increasing and distinct; one list for all queries, or one per query."""
        self._lists, self._n = lists, n
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

    def _complement(self, excluded: Integers) -> Integers | None:
        if len(excluded) == 0:
            return None
        keep = np.ones(self._n, bool)
        keep[excluded] = False
        return np.flatnonzero(keep)

    def check_fits(self, k: int) -> None:
        """Refuse to look for more classes than some query may have."""
        for row, excluded in enumerate(self._lists):
            if k > self._n - len(excluded):
                where = "" if len(self._lists) == 1 else f" for query {row}"
                raise InputError(
                    f"k is {k} but exclude leaves {self._n - len(excluded)} classes{where}; ask for at most that many."
                )


def check_exclude(exclude: Any, b: int, n: int, unknown: Any = "error") -> Exclusion:
    """Return what b queries leave out of n classes; every query must have a class left.

    unknown: "ignore" drops numbers that are no class.
    """
    if exclude is None:
        check_choice(unknown, "unknown", ("error", "ignore"))
        return Exclusion([np.empty(0, np.int64)], n)
    offsets, excluded = exclusions(_numbers(n, "exclude names"), exclude, b, unknown=unknown)
    lists = np.split(excluded, offsets[1:-1])
    for row, each in enumerate(lists):
        if len(each) == n:
            where = "" if len(lists) == 1 else f" for query {row}"
            raise InputError(f"exclude leaves no class{where}; leave at least one.")
    return Exclusion(lists, n)


def check_classes(ids: Any, b: int, n: int, *, single: bool) -> Integers:
    """Return class numbers (b, m) from what the caller passed for b queries."""
    classes = _numbers(n, "ids name").find(ids)
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


@dataclass(frozen=True, slots=True)
class _Classes(RowIds):
    """Class numbers as ids; an unknown one is reported as a class.  what: how that sentence begins."""

    what: str

    def find(self, ids: Any, *, missing: int | None = None) -> Integers:
        classes = RowIds.find(self, ids, missing=-1 if missing is None else missing)
        if missing is None and (classes < 0).any():
            unknown = np.asarray(ids)[classes < 0].flat[0]
            raise UnknownIdError(
                f"{self.what} class {unknown}, which does not exist; this layer has the classes 0 to "
                f"{len(self.rows) - 1}."
            )
        return classes


def _numbers(n: int, what: str) -> _Classes:
    numbers = np.arange(n)
    return _Classes(numbers, numbers, what)
