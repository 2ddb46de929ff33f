"""What a search of learned similarities is asked for, and what its passes hand on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.records import Doubles, Floats, Integers

__all__ = ["Counts", "FirstPass", "Retrieved", "SearchPlan"]


class Counts(NamedTuple):
    """Numbers of candidates, by how they are found; 0 for none."""

    per_pair: int = 0
    """For each pair of components, by their logit."""
    by_average: int = 0
    """By the average of their components."""
    by_cluster: int = 0
    """From the most promising clusters."""

    def at_most(self, others: Counts) -> Counts:
        """The smaller one of each two numbers."""
        return Counts(*map(min, self, others))

    def times(self, factor: int) -> Counts:
        """Each number so many times."""
        return Counts(*(factor * count for count in self))


class SearchPlan(NamedTuple):
    """Options of one call, checked."""

    method: str
    k: int
    candidates: Counts
    gap: float | None
    """Largest gap that the caller accepts; None where the number of candidates is fixed."""
    threads: int
    start: Counts = Counts()
    """The candidates to begin with, where a gap is to be reached; `candidates` are the most then."""


class FirstPass(NamedTuple):
    """Result of the first of two passes."""

    floor: Doubles
    """(b,) at least k items are proven to score this much."""
    positions: Integers
    """(b, m) items that were scored; -1 where there are fewer."""
    scores: Floats
    """(b, m) their scores; -inf where there are fewer."""

    def take(self, rows: Integers) -> FirstPass:
        """The result for some of the queries."""
        return FirstPass(self.floor[rows], self.positions[rows], self.scores[rows])

    def among(self, chosen: NDArray[np.bool_]) -> FirstPass:
        """The same without the items that are not among those chosen (b, n)."""
        keep = np.take_along_axis(chosen, self.positions, axis=1) & (self.positions >= 0)
        return FirstPass(self.floor, np.where(keep, self.positions, -1), np.where(keep, self.scores, -np.inf))

    def merge(self, positions: Integers, scores: Floats) -> tuple[Integers, Floats]:
        """The best of these items and of others (b, keep), as many as there were of the others; best first."""
        both, all_scores = np.hstack([positions, self.positions]), np.hstack([scores, self.scores])
        order = np.lexsort((both, -all_scores))[:, : positions.shape[1]]
        return np.take_along_axis(both, order, axis=1), np.take_along_axis(all_scores, order, axis=1)


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The k best items of b queries, with proofs."""

    positions: Integers
    """(b, k) best first."""
    scores: Doubles
    """(b, k)"""
    gap: Doubles
    """(b,)"""
    proven: NDArray[np.bool_]
    """(b, k)"""
    scored: Integers
    """(b,) number of items whose score was computed."""

    @classmethod
    def empty(cls, b: int, k: int) -> Retrieved:
        """Room for b queries."""
        return cls(
            np.empty((b, k), np.int64),
            np.empty((b, k)),
            np.empty(b),
            np.zeros((b, k), bool),
            np.empty(b, np.int64),
        )

    def put(self, rows: Any, other: Retrieved) -> None:
        """Fill in some rows."""
        for name in ("positions", "scores", "gap", "proven", "scored"):
            getattr(self, name)[rows] = getattr(other, name)
