"""From logits with error radii to the k best and log Z, scoring exactly only the rows that the answer needs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from softindex.records import Doubles, Integers

__all__ = ["ALL", "FEW", "MANY", "Bounds", "LogZ"]

FIRST = 64
"""Rows scored at a time for log Z, at least: each step looks at all rows, which takes longer than scoring these."""
ALL, MANY, FEW = 1, 4, 16
"""If more than one row in so many would have to be scored exactly, something else is faster: never; scoring all rows at
once, which reads them in order; a finer level, whose codes are a quarter of a row.
"""
FREE = 256
"""This many rows may always be scored again."""
FARTHEST = 30.0
"""Once the largest bound has moved by more, exponentials are computed again: at 700 they would all be zero."""
NARROW = 0.01
"""Radii below this need one exponential for both bounds."""

LogZ = tuple[float, float, float]
"""Value, lower and upper bound of log Z."""


class Bounds:
    """Lower and upper bounds (m,) of the logits of one query's candidates, which only come closer.

    Both bounds of a row that was scored are its logit: what float64 may have lost there is kept apart, and widens only
    the bounds of log Z that callers get.  At low temperatures it is many nats, and would hide the logits themselves.

    Methods return None where they would have to score more rows than the limit.  Positions count candidates, not rows
    of the weights.  The exponentials of both bounds are kept, relative to the first largest bound: computing them is
    most of the work.
    """

    __slots__ = (
        "_found", "_pair", "_score", "_slack", "_slacks", "_sums", "high", "known", "limit", "low", "peak", "scored",
    )  # fmt: skip

    def __init__(
        self, values: Doubles, radii: Doubles, score: Callable[[Integers], tuple[Doubles, Doubles]], share: int
    ) -> None:
        """Bounds from logits and radii.

        Args:
            values: (m,) logits.
            radii: (m,) the true logits, and those that `score` gives, are within these.
            score: Gives logits of positions in float64, and how far rounding may have moved them.
            share: The limit is one row in so many: ALL, MANY or FEW.
        """
        self.low, self.high, self._score = values - radii, values + radii, score
        self.known = np.zeros(len(values), bool)
        self.limit = max(FREE, len(values) // share) if share > 1 else len(values)
        self.scored = 0
        # Memory that is never touched costs nothing: only rows that were scored have a slack.
        self._slacks, self._slack = np.empty(len(values)), 0.0
        self.peak = float(self.high.max())
        self._pair: tuple[Doubles, Doubles] | None = None
        # What the bounds have given so far, until a row is scored.
        self._found: dict[int, Integers] = {}
        self._sums: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self.low)

    def logits(self, positions: Integers) -> Doubles:
        """The logits of rows that were scored."""
        return np.asarray(self.high[positions])

    def slacks(self, positions: Integers) -> Doubles:
        """How far rounding may have moved the logits of rows that were scored."""
        return np.asarray(self._slacks[positions])

    def score(self, positions: Integers) -> Doubles:
        """Score these rows exactly, whatever the limit; their logits."""
        new = positions[~self.known[positions]]
        if len(new):
            values, slacks = self._score(new)
            self.low[new] = self.high[new] = values
            self._slacks[new], self._slack = slacks, max(self._slack, float(slacks.max()))
            self.known[new] = True
            self.scored += len(new)
            self._found, self._sums = {}, None
            # A wide bound may have been far above all logits, and a calibrated one below them: weights must neither
            # underflow nor overflow.
            top = float(self.high.max())
            if abs(self.peak - top) > FARTHEST:
                self.peak, self._pair = top, None
            elif self._pair is not None:
                lower, upper = self._pair
                lower[new] = upper[new] = np.exp(values - self.peak)
        return self.logits(positions)

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
            if (widest := float(radii.max())) == 0.0:
                weights = np.exp(self.high - self.peak)
                self._pair = weights, weights.copy()
            elif widest < NARROW:
                # exp(x - r) >= exp(x) (1 - r), and exp(x + r) <= exp(x) (1 + r + r^2) for r below one.
                middle = (self.low + self.high) / 2
                weights = np.exp(middle - self.peak)
                # Half a difference of large logits may be short of the radius by a few of their last digits.
                wider = np.where(self.known, 0.0, radii + 2.0**-50 * np.abs(middle))
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
            # Rounding may have moved the k-th best up, but not past its slack.
            self._found[k] = np.flatnonzero(self.high >= least - self._slack)
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

    def doubtful(self, k: int, epsilon: float) -> Integers:
        """Positions whose bounds keep the k best and Z from being known; those of all others may stay as they are."""
        lower, upper = self._weights()
        # Finer bounds lower the upper sum, which says nothing about Z yet; the lower sum can only rise.
        wanted = _widest(upper - lower, epsilon * self._totals()[0], 1)
        wanted[self._contenders(k)] = True
        return np.flatnonzero(wanted)

    def tighten(self, positions: Integers, values: Doubles, radii: Doubles, share: int) -> None:
        """Replace the bounds of these rows by finer ones, as for `__init__`; rows that were scored keep theirs."""
        unknown = ~self.known[positions]
        here, values, radii = positions[unknown], values[unknown], radii[unknown]
        self.low[here], self.high[here] = values - radii, values + radii
        self.peak, self._pair, self._found, self._sums = float(self.high.max()), None, {}, None
        self.limit = max(FREE, len(self) // share)

    def best(self, k: int) -> Integers | None:
        """Positions of the k highest logits, best first, equal ones in order; all of them are scored."""
        contenders = self._contenders(k)
        if not self._affords(contenders):
            return None
        # Every row that could be among the best is known now, and the others are certainly below them.
        order = np.lexsort((contenders, -self.logits(contenders)))[:k]
        return contenders[order]

    def log_partition(self, epsilon: float) -> LogZ | None:
        """log Z with bounds, such that Z of the logits in float64 is within relative error epsilon of exp(value)."""
        return None if self._approach(epsilon) is None else self._log_partition()

    def _approach(self, epsilon: float) -> tuple[float, float] | None:
        """Score rows until the sums of both bounds are within relative error epsilon, as far as that is possible."""
        fewest = FIRST
        while True:
            low, high = self._totals()
            if high - low <= epsilon * (high + low):
                return low, high
            lower, upper = self._weights()
            gaps = np.where(self.known, 0.0, upper - lower)
            # If every row is known, float64 cannot do better.
            if not gaps.any():
                return low, high
            # Enough of the widest that the others alone would do; their true values change the sums again.
            wanted, fewest = _widest(gaps, 0.9 * epsilon * (high + low), fewest), 2 * fewest
            if not self._affords(np.flatnonzero(wanted & ~self.known)):
                return None

    def _log_partition(self) -> LogZ:
        """log Z by the sums so far; its bounds allow for the rounding of logits and sums."""
        low, high = self._totals()
        value = self.peak + math.log((low + high) / 2)
        slack = self._slack + 1e-12 + 2.0**-50 * abs(self.peak)
        # At extreme temperatures a radius may exceed the range of exp: then there is no lower bound.
        lower = self.peak + math.log(low) - slack if low > 0 else -math.inf
        return value, lower, self.peak + math.log(high) + slack

    def nucleus(self, top_p: float) -> tuple[Integers, LogZ] | None:
        """Positions of the fewest most probable rows that together have probability top_p; and log Z.

        Proven for the logits in float64, except that sums within 1e-9 of top_p count as equal to it.
        """
        epsilon, k = 0.01, 16
        while True:
            sums = self._approach(epsilon)
            if sums is None:
                return None
            while True:
                rows = self.best(min(k, len(self)))
                if rows is None:
                    return None
                # Scoring the best may have moved the peak; their weights relative to it may not underflow together.
                running = np.cumsum(np.exp(self.logits(rows) - self.peak))
                low, high = self._totals()
                most = int(np.searchsorted(running, top_p * high * (1 + 1e-12)))
                if most < len(rows) or len(rows) == len(self):
                    break
                k *= 2
            # `most` if Z is high, `least` if it is low: settled when they agree.
            least = int(np.searchsorted(running, top_p * low * (1 - 1e-12)))
            if least == most or epsilon < 1e-9:
                # The smaller set may reach top_p to the last digits, as two equal rows of four do.
                return rows[: min(least, len(rows) - 1) + 1], self._log_partition()
            epsilon /= 8


def _widest(gaps: Doubles, room: float, fewest: int) -> NDArray[np.bool_]:
    """Which (m,) gaps are the widest: so many that the others add up to at most `room`, and at least `fewest`."""
    # Sorting is most of the work, and the gaps left out here add up to a tenth of the room.
    wide = np.sort(gaps[gaps > 0.1 * room / len(gaps)])
    if len(wide) == 0:
        wide = np.sort(gaps)
    out = int(np.searchsorted(np.cumsum(wide), 0.9 * room, side="right"))
    return np.asarray(gaps >= wide[max(0, min(out, len(wide) - fewest))])
