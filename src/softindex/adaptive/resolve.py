"""From scores with radii to the k best and log Z: rows are scored exactly only as far as the answer needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from softindex.records import Doubles, Integers

__all__ = ["Bounds", "Unresolved"]

FIRST = 64
MOST = 8
"""Where more than one row in so many would have to be scored again, scoring all of them at once is faster."""
FREE = 256
"""So many rows may always be scored again."""


class Unresolved(Exception):  # noqa: N818
    """The radii are too wide: too many rows would have to be scored again."""


@dataclass(slots=True)
class Bounds:
    """Every logit between low and high (n,), which only come closer; score(rows) gives logits and their own radii."""

    low: Doubles
    high: Doubles
    score: Callable[[Integers], tuple[Doubles, Doubles]]
    known: np.ndarray
    """(n,) bool: scored exactly."""
    limit: int
    """Rows that may be scored before Unresolved is raised."""
    scored: int = 0

    @classmethod
    def around(
        cls, values: Doubles, radii: Doubles, score: Callable[[Integers], tuple[Doubles, Doubles]], *, bounded: bool
    ) -> Bounds:
        """Bounds from logits and radii; bounded: give up where too many rows would have to be scored."""
        limit = max(FREE, len(values) // MOST) if bounded else len(values)
        return cls(values - radii, values + radii, score, np.zeros(len(values), bool), limit)

    def resolve(self, rows: Integers) -> None:
        """Score these rows exactly."""
        new = rows[~self.known[rows]]
        if len(new) == 0:
            return
        if self.scored + len(new) > self.limit:
            raise Unresolved
        values, radii = self.score(new)
        self.low[new], self.high[new] = values - radii, values + radii
        self.known[new] = True
        self.scored += len(new)

    def best(self, k: int) -> tuple[Integers, Doubles]:
        """The k rows of highest logit, best first, equal ones by their number; and their logits."""
        n = len(self.low)
        least = np.partition(self.low, n - k)[n - k]
        self.resolve(np.flatnonzero(self.high >= least))
        # Of those that could be among the best all are known now, and the others lie below them for certain.
        rows = np.flatnonzero(self.known & (self.high >= least))
        values = (self.low[rows] + self.high[rows]) / 2
        order = np.lexsort((rows, -values))[:k]
        return rows[order], values[order]

    def hopeless(self, k: int, epsilon: float, limit: int) -> bool:
        """Whether bounds like these leave more rows than the limit to be scored for the k best and Z."""
        n = len(self.low)
        least = np.partition(self.low, n - k)[n - k]
        if int((self.high >= least).sum()) > limit:
            return True
        peak = float(self.high.max())
        lower, upper = np.exp(self.low - peak), np.exp(self.high - peak)
        gaps = upper - lower
        largest = np.partition(gaps, n - limit)[n - limit :] if limit < n else gaps
        return float(gaps.sum() - largest.sum()) > epsilon * float(lower.sum() + upper.sum())

    def log_partition(self, epsilon: float) -> tuple[float, float, float]:
        """log Z with bounds, such that exp of the value is within a part epsilon of Z."""
        wanted = FIRST
        while True:
            peak = float(self.high.max())
            lower, upper = np.exp(self.low - peak), np.exp(self.high - peak)
            low, high = float(lower.sum()) * (1 - 1e-12), float(upper.sum()) * (1 + 1e-12)
            if high - low <= epsilon * (high + low):
                return peak + float(np.log((low + high) / 2)), peak + float(np.log(low)), peak + float(np.log(high))
            gaps = np.where(self.known, 0.0, upper - lower)
            count = min(wanted, int((gaps > 0).sum()))
            if count == 0:
                raise Unresolved
            self.resolve(np.argpartition(gaps, len(gaps) - count)[len(gaps) - count :])
            wanted *= 2

    def nucleus(self, top_p: float) -> tuple[Integers, Doubles, tuple[float, float, float]]:
        """The fewest most probable rows that hold top_p of the mass together, proven; their logits; and log Z."""
        epsilon, k = 0.01, 16
        while True:
            value, low, high = self.log_partition(epsilon)
            while True:
                rows, logits = self.best(min(k, len(self.low)))
                running = np.logaddexp.accumulate(logits)
                sure = int(np.searchsorted(running, np.log(top_p) + high))
                if sure < len(rows) or len(rows) == len(self.low):
                    break
                k *= 2
            # As few as sure, if log Z is high; the least that may do, if it is low.
            least = int(np.searchsorted(running, np.log(top_p) + low))
            if least == sure or epsilon < 1e-9:
                count = min(sure, len(rows) - 1) + 1
                return rows[:count], logits[:count], (value, low, high)
            epsilon /= 8
