"""The queries of one call, and what they have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from softindex.adaptive.classes import Exclusion
from softindex.adaptive.queries import SparseQueries
from softindex.records import Doubles, Floats, Integers
from softindex.temperatures import temperature_of

__all__ = ["Call"]


@dataclass(frozen=True, slots=True)
class Call:
    """The queries of one call, and what they have in common."""

    vectors: Floats
    """(b, d), or (b, 0) where `sparse` has them."""
    single: bool
    """Whether the caller passed one query (d,)."""
    temperature: float | Doubles
    """Of all queries, or (b,)."""
    exclusion: Exclusion
    threads: int
    limit: float = math.inf
    """Largest square of a query's length; only native code that copies the queries looks at it."""
    sparse: SparseQueries | None = None
    """The queries, where they are sparse and the guarantee is "pac"."""

    def inverse(self, row: int) -> float:
        """One over the temperature of a query."""
        return 1.0 / temperature_of(self.temperature, row)

    def by_temperature(self, each: Doubles) -> list[tuple[Integers, Call]]:
        """The queries, with temperatures (b,), as one call for each of the different ones; and their numbers here."""
        different, which = np.unique(each, return_inverse=True)
        groups = [np.flatnonzero(which == number) for number in range(len(different))]
        return [
            (
                rows,
                replace(
                    self,
                    vectors=self.vectors[rows],
                    temperature=float(one),
                    exclusion=self.exclusion.take(rows),
                    sparse=None if self.sparse is None else self.sparse.take(rows),
                ),
            )
            for rows, one in zip(groups, different, strict=True)
        ]
