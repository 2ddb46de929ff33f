"""The k best rows and log Z from as few coordinates as a probability of error allows (AdaptiveSoftmax, for any k)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.adaptive.layer import Logits
from softindex.adaptive.pulls import Pulled
from softindex.kernels import LANES
from softindex.quantiles import student_quantile
from softindex.records import Doubles, Integers

__all__ = ["Best", "Estimates", "find_best"]

FIRST_BLOCKS = 3
GROWTH, LARGEST_STEP = 1.5, 6.0
"""Each look has at least and at most this many times the blocks of the one before."""
LARGEST_SHARE, LARGEST_SHARE_OF_FEW = 0.25, 0.08
"""Of the multiplications of a full scan: where estimates would take more than this, all rows are scored instead.  A
multiplication in a pull takes two to three times as long as in a scan, and six times for few rows."""
FEW = 256
"""So few rows fit a cache."""
HOPE = 1.0
"""Standard deviations by which a gap may be larger than it looks."""
FIRST_LOOK, MOST_LEFT = 1 / 16, 0.25
"""Once rows have had the first share of their blocks, no more than the second share of the rows may be left."""
WITHIN = 15
"""Degrees of freedom that a block adds to a variance."""


@dataclass(frozen=True, slots=True)
class Best:
    """The k best rows, and log Z."""

    rows: Integers
    logits: Doubles
    log_partition: float
    error: float
    """Of log Z, at the requested confidence."""


class Estimates:
    """Logits of one query so far, with variances in units of logits; 0 where a row was scored exactly.

    `pull` and `score` do nothing, and return False, where that would cost more than a full scan justifies.
    """

    __slots__ = ("_logits", "active", "exact_rows", "jumps", "pulled", "values", "variances")

    def __init__(self, pulled: Pulled, logits: Logits) -> None:
        n = len(logits)
        self.pulled, self._logits, self.exact_rows = pulled, logits, 0
        self.active = logits.candidates()
        # Rows that are left out have no weight and nothing to be learnt.
        self.values, self.variances, self.jumps = np.full(n, -np.inf), np.zeros(n), np.zeros(n)
        self.variances[self.active] = np.inf

    @property
    def dim(self) -> int:
        """Multiplications that scoring one row exactly takes."""
        return self._logits.dim

    def pull(self, arms: Integers, upto: int) -> bool:
        """Give these rows the blocks up to the upto-th."""
        counts = self.pulled.counts[arms]
        if self.room() < LANES * int(np.maximum(min(upto, self.pulled.blocks) - counts, 0).sum()):
            return False
        if counts.min() == counts.max():
            self.pulled.pull(arms, upto)
        else:
            for count in np.unique(counts):
                self.pulled.pull(np.ascontiguousarray(arms[counts == count]), upto)
        means, variances, jumps = self.pulled.estimate(arms)
        inverse = self._logits.inverse
        self.values[arms] = self._logits.of(means, arms)
        self.variances[arms] = inverse**2 * variances
        self.jumps[arms] = inverse * jumps
        return True

    def score(self, arms: Integers) -> bool:
        """Score these rows exactly."""
        new = arms[self.variances[arms] > 0]
        if self.room() < len(new) * self.dim:
            return False
        self.values[new] = self._logits.score(new)
        self.variances[new] = self.jumps[new] = 0.0
        self.exact_rows += len(new)
        return True

    def widths(self, arms: Integers | slice, quantile: Any) -> Doubles:
        """How far estimates may be off: a number of standard deviations, plus Bernstein's term for rare terms."""
        return np.asarray(quantile * np.sqrt(self.variances[arms]) + quantile**2 / 6.0 * self.jumps[arms])

    def spent(self) -> int:
        """Multiplications so far."""
        return self.pulled.multiplications + self.exact_rows * self.dim

    def room(self) -> float:
        """Multiplications that may still be spent."""
        n = len(self.values)
        share = LARGEST_SHARE if n > FEW else LARGEST_SHARE_OF_FEW
        return math.inf if n == 1 else share * n * self.dim - self.spent()


def find_best(estimates: Estimates, *, k: int, epsilon: float, delta: float) -> Best | None:
    """Eliminate rows until k are left, then pull until their probabilities are within relative error epsilon.

    All of that holds with probability 1 - delta: half of delta goes to the elimination, a quarter each to the logits of
    the k best and to log Z.  None where scoring every row would cost about as much.
    """
    best = _eliminate(estimates, k, delta / 2)
    total = None if best is None else _sharpen(estimates, best, epsilon, delta / 4)
    if best is None or total is None:
        return None
    rows = best[np.lexsort((best, -estimates.values[best]))]
    return Best(rows, estimates.values[rows], *total)


def _eliminate(estimates: Estimates, k: int, delta: float) -> Integers | None:
    """The k rows that no other can reach, by confidence bounds against the k-th best; exact scores decide ties."""
    active, blocks, wanted = estimates.active, estimates.pulled.blocks, FIRST_BLOCKS
    n = len(active)
    rounds = max(1, math.ceil(math.log(max(blocks, 2) / FIRST_BLOCKS, GROWTH))) + 1
    while estimates.pull(active, wanted):
        width = estimates.widths(active, quantile(delta / (n * rounds), wanted))
        low, high = estimates.values[active] - width, estimates.values[active] + width
        least = np.partition(low, len(active) - k)[len(active) - k]
        active = active[high >= least]
        pulled = estimates.pulled.counts[active[0]]
        if n > FEW and len(active) > max(k, MOST_LEFT * n) and pulled >= FIRST_LOOK * blocks:
            return None
        if len(active) == k:
            return np.asarray(active)
        # Scoring the few that are left is as cheap as the work done so far, or all blocks have been used.
        if len(active) * estimates.dim <= estimates.spent() or wanted >= blocks:
            if not estimates.score(active):
                return None
            order = np.lexsort((active, -estimates.values[active]))[:k]
            return np.asarray(active[order])
        if not _can_win(estimates, active, float(width.mean()), k):
            return None
        wanted = _next(wanted, _ratio(estimates.values[active], width, k), 0.7)
        # Not past the point at which the loop may give up.
        look = max(FIRST_BLOCKS + 1, round(FIRST_LOOK * blocks))
        if pulled < look:
            wanted = min(wanted, look)
    return None


def _can_win(estimates: Estimates, active: Integers, width: float, k: int) -> bool:
    """Whether all blocks that these rows can still have would leave few enough in doubt to score them."""
    values, count = estimates.values[active], int(estimates.pulled.counts[active[0]])
    deviation = math.sqrt(2 * float(estimates.variances[active].mean()))
    room = estimates.room()
    shrunk = width * math.sqrt(count / (count + max(room, 0.0) / (LANES * len(active))))
    least = np.partition(values, len(values) - k)[len(values) - k]
    doubtful = int(np.count_nonzero(values >= least - max(2 * shrunk - HOPE * deviation, 0.0)))
    return doubtful <= k or doubtful * estimates.dim <= room


def _ratio(values: Doubles, widths: Doubles, k: int) -> float:
    """How many times the widths are too large to separate the k best from the rest, judging by the estimates."""
    if len(values) <= k:
        return 1.0
    ordered = np.partition(values, (len(values) - k - 1, len(values) - k))
    gap = float(ordered[len(values) - k] - ordered[len(values) - k - 1])
    return 2 * float(widths.mean()) / max(gap, 1e-300)


def _next(blocks: int, ratio: float, aim: float) -> int:
    """Number of blocks to look at next, if widths are too large by a ratio: they fall with the square root.

    aim: below one to approach slowly, where rows drop out on the way; above one to get there in one step.
    """
    return max(blocks + 1, round(blocks * min(max(GROWTH, aim * min(ratio, 1e3) ** 2), LARGEST_STEP)))


def _sharpen(estimates: Estimates, best: Integers, epsilon: float, delta: float) -> tuple[float, float] | None:
    """Pull until the probabilities of the best are within epsilon; log Z, and its error at probability delta."""
    target = math.log1p(epsilon)
    while True:
        counts = estimates.pulled.counts
        # exp of a normal estimate of variance v is too large by exp(v / 2).
        corrected = estimates.values - estimates.variances / 2
        peak = float(corrected.max())
        shares = np.exp(corrected - peak)
        total = float(shares.sum())
        shares /= total
        # Rows share their coordinates, so their errors may all have the same sign.
        each = shares * (estimates.widths(slice(None), quantiles(delta, counts)) + estimates.variances / 2)
        error = float(each.sum())
        widths = estimates.widths(best, quantiles(delta / len(best), counts[best]))
        if float(widths.max()) + error <= target:
            return peak + math.log(total), error
        if float(widths.max()) > target / 2:
            wide = np.sort(best[widths > target / 2])
            if not _improve(estimates, wide, float(widths.max()) / (target / 2)):
                return None
        if error > target / 2:
            order = np.argsort(-each)
            enough = int(np.searchsorted(np.cumsum(each[order]), error - target / 4)) + 1
            if not _improve(estimates, np.sort(order[:enough]), error / (target / 2)):
                return None


def _improve(estimates: Estimates, arms: Integers, ratio: float) -> bool:
    """More blocks for rows whose errors are too large by a ratio; rows that would need most are scored exactly."""
    arms, blocks = arms[estimates.variances[arms] > 0], estimates.pulled.blocks
    if len(arms) == 0:
        return True
    counts = estimates.pulled.counts[arms]
    # Few rows are brought to the same number of blocks, which takes one step instead of many.
    groups = np.unique(counts)[-1:] if len(estimates.values) <= FEW else np.unique(counts)
    for count in groups:
        same = arms if len(groups) == 1 else np.ascontiguousarray(arms[counts == count])
        upto = _next(int(count), ratio, 1.2)
        if not (estimates.score(same) if 2 * upto >= blocks else estimates.pull(same, upto)):
            return False
    return True


def quantile(delta: float, blocks: int) -> float:
    """Standard deviations that an estimate from this many blocks exceeds with probability delta, on both sides."""
    return float(student_quantile(delta, WITHIN * max(blocks, 1)))


def quantiles(delta: float, blocks: Integers) -> Doubles:
    """The same for many; by Student's t, as the variances are estimates too."""
    return np.asarray(student_quantile(delta, WITHIN * np.maximum(blocks, 1).astype(float)))
