"""From scores with radii to the k best and log Z: rows are scored exactly only as far as the answer needs it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from softindex.records import Doubles, Integers

__all__ = ["Bounds", "Unresolved"]

FIRST = 64
"""Rows scored at a time for log Z at least: each step sorts all rows, which takes longer than to score these."""
MOST = 8
"""Where more than one row in so many would have to be scored again, scoring all of them at once is faster."""
FARTHEST = 30.0
"""Once the largest bound has come down by more, exponentials are taken anew: at 700 they would all be zero."""
NARROW = 0.01
"""Radii below this need one exponential for both bounds."""
FREE = 256
"""So many rows may always be scored again."""


class Unresolved(Exception):  # noqa: N818
    """The radii are too wide: too many rows would have to be scored again."""


class Bounds:
    """Every logit between low and high (n,), which only come closer.

    score(rows) gives the logits of rows and their own radii.  The exponentials of both bounds are kept, relative to the
    first largest bound: taking them is most of the work.
    """

    __slots__ = ("_pair", "high", "known", "limit", "low", "peak", "score", "scored")

    def __init__(
        self, values: Doubles, radii: Doubles, score: Callable[[Integers], tuple[Doubles, Doubles]], *, bounded: bool
    ) -> None:
        """Bounds from logits and radii; bounded: give up where too many rows would have to be scored."""
        self.low, self.high, self.score = values - radii, values + radii, score
        self.known = np.zeros(len(values), bool)
        self.limit = max(FREE, len(values) // MOST) if bounded else len(values)
        self.scored = 0
        self.peak = float(self.high.max())
        self._pair: tuple[Doubles, Doubles] | None = None

    def _weights(self) -> tuple[Doubles, Doubles]:
        """exp of both bounds over that of the peak, taken when they are first wanted."""
        if self._pair is None:
            radii = (self.high - self.low) / 2
            if float(radii.max()) < NARROW:
                # exp(x - r) >= exp(x) (1 - r), and exp(x + r) <= exp(x) (1 + r + r^2) for r below one.
                middle = (self.low + self.high) / 2
                weights = np.exp(middle - self.peak)
                # Half a difference of large logits may be short of the radius by a few of their last digits.
                wider = radii + 2.0**-50 * np.abs(middle)
                self._pair = weights * (1 - wider), weights * (1 + wider * (1 + wider))
            else:
                self._pair = np.exp(self.low - self.peak), np.exp(self.high - self.peak)
        return self._pair

    def resolve(self, rows: Integers) -> None:
        """Score these rows exactly."""
        new = rows[~self.known[rows]]
        if len(new) == 0:
            return
        if self.scored + len(new) > self.limit:
            raise Unresolved
        values, radii = self.score(new)
        self.low[new], self.high[new] = values - radii, values + radii
        if self._pair is not None:
            lower, upper = self._pair
            lower[new], upper[new] = np.exp(self.low[new] - self.peak), np.exp(self.high[new] - self.peak)
        self.known[new] = True
        self.scored += len(new)
        # A wide bound may have stood far above all logits: what is left must not underflow.
        top = float(self.high.max())
        if self.peak - top > FARTHEST:
            self.peak, self._pair = top, None

    def _hopefuls(self, k: int) -> Integers:
        """Rows that may be among the k best: whose upper bound reaches the k-th best lower bound."""
        n = len(self.low)
        least = self.low.max() if k == 1 else np.partition(self.low, n - k)[n - k]
        return np.flatnonzero(self.high >= least)

    def hopeless(self, k: int, epsilon: float, limit: int) -> bool:
        """Whether bounds like these leave more rows than the limit to be scored for the k best and Z."""
        if limit >= len(self.low):
            return False
        if len(self._hopefuls(k)) > limit:
            return True
        lower, upper = self._weights()
        low, high = float(lower.sum()), float(upper.sum())
        gap, allowed = high - low, epsilon * (high + low)
        if gap <= allowed:
            return False
        n, gaps = len(self.low), upper - lower
        return gap - float(np.partition(gaps, n - limit)[n - limit :].sum()) > allowed

    def best(self, k: int) -> tuple[Integers, Doubles]:
        """The k rows of highest logit, best first, equal ones by their number; and their logits."""
        rows = self._hopefuls(k)
        self.resolve(rows)
        # Of those that could be among the best all are known now, and the others lie below them for certain.
        values = (self.low[rows] + self.high[rows]) / 2
        order = np.lexsort((rows, -values))[:k]
        return rows[order], values[order]

    def log_partition(self, epsilon: float) -> tuple[float, float, float]:
        """log Z with bounds, such that Z is within a part epsilon of exp of the value."""
        while True:
            lower, upper = self._weights()
            low, high = float(lower.sum()) * (1 - 1e-12), float(upper.sum()) * (1 + 1e-12)
            if high - low <= epsilon * (high + low):
                return self._log_sums(low, high)
            gaps = np.where(self.known, 0.0, upper - lower)
            order = np.argsort(-gaps)
            # So many of the widest that the others alone would do; what they are found to be changes the sums again.
            left = float(gaps.sum()) - np.cumsum(gaps[order])
            count = int(np.searchsorted(-left, -epsilon * (high + low) * 0.9)) + 1
            count = min(max(count, FIRST), int((gaps > 0).sum()))
            # Where every row is known, float64 has no more to tell: the bounds say how far it got.
            if count == 0:
                return self._log_sums(low, high)
            self.resolve(order[:count])

    def _log_sums(self, low: float, high: float) -> tuple[float, float, float]:
        value, lower, upper = (self.peak + float(np.log(part)) for part in ((low + high) / 2, low, high))
        return value, lower, upper

    def nucleus(self, top_p: float) -> tuple[Integers, Doubles, tuple[float, float, float]]:
        """The fewest most probable rows that hold top_p of the mass together; their logits; and log Z.

        Proven, but for shares within 1e-9 of top_p, which are taken for it.
        """
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
                # The share of the fewest may be top_p to the last digits, as of two equal rows in four.
                count = min(least, len(rows) - 1) + 1
                return rows[:count], logits[:count], (value, low, high)
            epsilon /= 8
