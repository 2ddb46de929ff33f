"""From logits with error radii to the k best and log Z, scoring exactly only the rows that the answer needs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from softindex.records import Doubles, Integers

__all__ = ["Bounds", "LogZ"]

FIRST = 64
"""Rows scored at a time for log Z, at least: each step sorts all rows, which takes longer than scoring these."""
SHARE = 8
"""If more than one row in eight would have to be scored again, scoring all of them at once is faster."""
FREE = 256
"""This many rows may always be scored again."""
FARTHEST = 30.0
"""Once the largest bound has fallen by more, exponentials are computed again: at 700 they would all be zero."""
NARROW = 0.01
"""Radii below this need one exponential for both bounds."""

LogZ = tuple[float, float, float]
"""Value, lower and upper bound of log Z."""


class Bounds:
    """Lower and upper bounds (m,) of the logits of one query's candidates, which only come closer.

    Methods return None where they would have to score more rows than the limit.  Positions count candidates, not rows
    of the weights.  The exponentials of both bounds are kept, relative to the first largest bound: computing them is
    most of the work.
    """

    __slots__ = ("_found", "_pair", "_score", "_sums", "high", "known", "limit", "low", "peak", "scored")

    def __init__(
        self, values: Doubles, radii: Doubles, score: Callable[[Integers], tuple[Doubles, Doubles]], *, limited: bool
    ) -> None:
        """Bounds from logits and radii.

        Args:
            values: (m,) logits.
            radii: (m,) the true logits are within these.
            score: Gives exact logits of positions, and their own radii.
            limited: Whether scoring all rows would be a better way to answer than scoring many of them here.
        """
        self.low, self.high, self._score = values - radii, values + radii, score
        self.known = np.zeros(len(values), bool)
        self.limit = max(FREE, len(values) // SHARE) if limited else len(values)
        self.scored = 0
        self.peak = float(self.high.max())
        self._pair: tuple[Doubles, Doubles] | None = None
        # What the bounds have given so far, until a row is scored.
        self._found: dict[int, Integers] = {}
        self._sums: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self.low)

    def middle(self, positions: Integers) -> Doubles:
        """The logits of rows that were scored."""
        return np.asarray((self.low[positions] + self.high[positions]) / 2)

    def radii(self, positions: Integers) -> Doubles:
        """How far the logits of these rows may be from `middle`."""
        return np.asarray((self.high[positions] - self.low[positions]) / 2)

    def score(self, positions: Integers) -> Doubles:
        """Score these rows exactly, whatever the limit; their logits."""
        new = positions[~self.known[positions]]
        if len(new):
            values, radii = self._score(new)
            self.low[new], self.high[new] = values - radii, values + radii
            if self._pair is not None:
                lower, upper = self._pair
                lower[new], upper[new] = np.exp(self.low[new] - self.peak), np.exp(self.high[new] - self.peak)
            self.known[new] = True
            self.scored += len(new)
            self._found, self._sums = {}, None
            # A wide bound may have been far above all logits: the weights that remain must not underflow.
            top = float(self.high.max())
            if self.peak - top > FARTHEST:
                self.peak, self._pair = top, None
        return self.middle(positions)

    def _affords(self, positions: Integers) -> bool:
        """Score these rows if the limit allows it."""
        if self.scored + int((~self.known[positions]).sum()) > self.limit:
            return False
        self.score(positions)
        return True

    def _weights(self) -> tuple[Doubles, Doubles]:
        """exp of both bounds relative to the peak, computed when first needed."""
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

    def upper_weights(self) -> tuple[float, Doubles]:
        """The peak, and a copy of exp(upper bound - peak) or a little more."""
        return self.peak, self._weights()[1].copy()

    def _contenders(self, k: int) -> Integers:
        """Positions that may be among the k best: their upper bound reaches the k-th best lower bound."""
        if k not in self._found:
            m = len(self)
            least = self.low.max() if k == 1 else np.partition(self.low, m - k)[m - k]
            self._found[k] = np.flatnonzero(self.high >= least)
        return self._found[k]

    def _totals(self) -> tuple[float, float]:
        """Sums of the exponentials of both bounds."""
        if self._sums is None:
            lower, upper = self._weights()
            self._sums = float(lower.sum()), float(upper.sum())
        return self._sums

    def is_hopeless(self, k: int, epsilon: float, limit: int) -> bool:
        """Whether bounds like these leave more rows than the limit to be scored for the k best and Z."""
        m = len(self)
        if limit >= m:
            return False
        if len(self._contenders(k)) > limit:
            return True
        low, high = self._totals()
        gap, allowed = high - low, epsilon * (high + low)
        if gap <= allowed:
            return False
        lower, upper = self._weights()
        gaps = upper - lower
        # Gaps below allowed / m add up to less than allowed: if the others are few, there is no need to sort them.
        if np.count_nonzero(gaps > allowed / m) <= limit:
            return False
        return gap - float(np.partition(gaps, m - limit)[m - limit :].sum()) > allowed

    def best(self, k: int) -> Integers | None:
        """Positions of the k highest logits, best first, equal ones in order; all of them are scored."""
        contenders = self._contenders(k)
        if not self._affords(contenders):
            return None
        # Every row that could be among the best is known now, and the others are certainly below them.
        order = np.lexsort((contenders, -self.middle(contenders)))[:k]
        return contenders[order]

    def log_partition(self, epsilon: float) -> LogZ | None:
        """log Z with bounds, such that Z is within relative error epsilon of exp(value)."""
        while True:
            low, high = self._totals()
            low, high = low * (1 - 1e-12), high * (1 + 1e-12)
            if high - low <= epsilon * (high + low):
                return self._log_sums(low, high)
            lower, upper = self._weights()
            gaps = np.where(self.known, 0.0, upper - lower)
            order = np.argsort(-gaps)
            # Enough of the widest that the others alone would do; their true values change the sums again.
            left = float(gaps.sum()) - np.cumsum(gaps[order])
            count = int(np.searchsorted(-left, -epsilon * (high + low) * 0.9)) + 1
            count = min(max(count, FIRST), int((gaps > 0).sum()))
            # If every row is known, float64 cannot do better: the bounds say how far it got.
            if count == 0:
                return self._log_sums(low, high)
            if not self._affords(order[:count]):
                return None

    def _log_sums(self, low: float, high: float) -> LogZ:
        # At extreme temperatures a radius may exceed the range of exp: then there is no lower bound.
        lower = self.peak + math.log(low) if low > 0 else -math.inf
        return self.peak + math.log((low + high) / 2), lower, self.peak + math.log(high)

    def nucleus(self, top_p: float) -> tuple[Integers, LogZ] | None:
        """Positions of the fewest most probable rows that together have probability top_p; and log Z.

        Proven, except that sums within 1e-9 of top_p count as equal to it.
        """
        epsilon, k = 0.01, 16
        while True:
            log_z = self.log_partition(epsilon)
            if log_z is None:
                return None
            while True:
                rows = self.best(min(k, len(self)))
                if rows is None:
                    return None
                running = np.logaddexp.accumulate(self.middle(rows))
                most = int(np.searchsorted(running, np.log(top_p) + log_z[2]))
                if most < len(rows) or len(rows) == len(self):
                    break
                k *= 2
            # `most` if log Z is high, `least` if it is low: settled when they agree.
            least = int(np.searchsorted(running, np.log(top_p) + log_z[1]))
            if least == most or epsilon < 1e-9:
                # The smaller set may reach top_p to the last digits, as two equal rows of four do.
                return rows[: min(least, len(rows) - 1) + 1], log_z
            epsilon /= 8
