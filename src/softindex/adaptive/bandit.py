"""The k best rows and log Z from as few coordinates as a probability of error allows (AdaptiveSoftmax, for any k)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.adaptive.pulls import Pulled
from softindex.quantiles import student_quantile
from softindex.records import Doubles, Integers

__all__ = ["Found", "TooDear", "find_best"]

FIRST_BLOCKS = 3
GROWTH, LARGEST_STEP = 1.5, 6.0
"""Each look has at least and at most so many times the blocks of the one before."""
LARGEST_PART, LARGEST_PART_OF_FEW = 0.25, 0.5
"""Of all multiplications: where the estimates would take more than this, all rows are scored instead."""
FEW = 256
"""Rows that are scored in no time: then multiplications are what is to be saved, and it may be tried for longer."""
FIRST_LOOK, MOST_LEFT = 1 / 16, 0.25
"""Once rows have had this part of their blocks, no more than so many of them may be left to choose from."""
WITHIN = 15
"""Degrees of freedom that a block adds to a variance."""


class TooDear(Exception):  # noqa: N818
    """Estimates would cost about as much as scoring every row."""


@dataclass(frozen=True, slots=True)
class Found:
    """The k best, and log Z between bounds that hold with the asked probability."""

    rows: Integers
    logits: Doubles
    log_partition: float
    error: float
    """Of log Z, at the asked probability."""
    exact_rows: int
    """Rows that were scored whole."""


@dataclass(slots=True)
class _State:
    """Logits of all rows so far: estimates with variances, in units of logits; 0 where a row was scored whole."""

    pulled: Pulled
    inverse_temperature: float
    bias: Doubles
    score: Callable[[Integers], Doubles]
    values: Doubles
    variances: Doubles
    jumps: Doubles
    """What one rare term may move an estimate by."""
    d: int
    exact_rows: int = 0

    def pull(self, arms: Integers, upto: int) -> None:
        """Give these rows the blocks up to the upto-th."""
        counts = self.pulled.counts[arms]
        if counts.min() == counts.max():
            self.pulled.pull(arms, upto)
        else:
            for count in np.unique(counts):
                self.pulled.pull(np.ascontiguousarray(arms[counts == count]), upto)
        means, variances, jumps = self.pulled.estimate(arms)
        self.values[arms] = self.inverse_temperature * means + self.bias[arms]
        self.variances[arms] = self.inverse_temperature**2 * variances
        self.jumps[arms] = self.inverse_temperature * jumps
        self._afford(0)

    def resolve(self, arms: Integers) -> None:
        new = arms[self.variances[arms] > 0]
        self._afford(len(new) * self.d)
        self.values[new] = self.score(new)
        self.variances[new] = self.jumps[new] = 0.0
        self.exact_rows += len(new)

    def widths(self, arms: Integers | slice, quantile: Any) -> Doubles:
        """How far estimates may be off: so many standard deviations, and for rare terms as Bernstein's bound has it."""
        return np.asarray(quantile * np.sqrt(self.variances[arms]) + quantile**2 / 6.0 * self.jumps[arms])

    def spent(self) -> int:
        return self.pulled.multiplications + self.exact_rows * self.d

    def _afford(self, more: int) -> None:
        part = LARGEST_PART if len(self.values) > FEW else LARGEST_PART_OF_FEW
        if self.spent() + more > part * len(self.values) * self.d and len(self.values) > 1:
            raise TooDear


def find_best(
    pulled: Pulled,
    score: Callable[[Integers], Doubles],
    *,
    k: int,
    d: int,
    inverse_temperature: float,
    bias: Doubles,
    epsilon: float,
    delta: float,
) -> Found:
    """Eliminate rows until k are left, then pull until their probabilities are within a part epsilon.

    Half of delta goes to the elimination, a quarter each to the logits of the k best and to log Z.
    """
    n = len(bias)
    state = _State(pulled, inverse_temperature, bias, score, np.zeros(n), np.full(n, np.inf), np.zeros(n), d)
    best = _eliminate(state, k, delta / 2)
    log_partition, error = _sharpen(state, best, epsilon, delta / 4)
    order = np.lexsort((best, -state.values[best]))
    rows = best[order]
    return Found(rows, state.values[rows], log_partition, error, state.exact_rows)


def _eliminate(state: _State, k: int, delta: float) -> Integers:
    """The k rows that no other can reach, by confidence bounds against the k-th best; whole scores decide ties."""
    n, blocks = len(state.values), state.pulled.blocks
    rounds = max(1, math.ceil(math.log(max(blocks, 2) / FIRST_BLOCKS, GROWTH))) + 1
    active, wanted = np.arange(n), FIRST_BLOCKS
    while True:
        state.pull(active, wanted)
        width = state.widths(active, quantile(delta / (n * rounds), wanted))
        low, high = state.values[active] - width, state.values[active] + width
        least = np.partition(low, len(active) - k)[len(active) - k]
        active = active[high >= least]
        if n > FEW and len(active) > max(k, MOST_LEFT * n) and state.pulled.counts[active[0]] >= FIRST_LOOK * blocks:
            raise TooDear
        if len(active) == k:
            return np.asarray(active)
        # Scoring the few that are left whole is as cheap as what was done already, or everything is known.
        if len(active) * state.d <= state.spent() or wanted >= blocks:
            state.resolve(active)
            order = np.lexsort((active, -state.values[active]))[:k]
            return np.asarray(active[order])
        wanted = _next(wanted, _ratio(state.values[active], width, k), 0.7)
        # Not past the point at which it is decided whether to go on.
        look = max(FIRST_BLOCKS + 1, round(FIRST_LOOK * blocks))
        if state.pulled.counts[active[0]] < look:
            wanted = min(wanted, look)


def _ratio(values: Doubles, widths: Doubles, k: int) -> float:
    """By how much the widths are too large to tell the k best from the rest, as far as the estimates say."""
    if len(values) <= k:
        return 1.0
    ordered = np.partition(values, (len(values) - k - 1, len(values) - k))
    gap = float(ordered[len(values) - k] - ordered[len(values) - k - 1])
    return 2 * float(widths.mean()) / max(gap, 1e-300)


def _next(blocks: int, ratio: float, aim: float) -> int:
    """How many blocks to look at next, for widths that are so many times too large: they fall with the square root.

    aim: below one to come near, where rows drop out on the way; above to be there at once.
    """
    return max(blocks + 1, round(blocks * min(max(GROWTH, aim * min(ratio, 1e3) ** 2), LARGEST_STEP)))


def _sharpen(state: _State, best: Integers, epsilon: float, delta: float) -> tuple[float, float]:
    """Pull until the probabilities of the best are within epsilon; log Z, and its error at probability delta."""
    blocks, target = state.pulled.blocks, math.log1p(epsilon)
    while True:
        counts = state.pulled.counts
        # exp of a normal estimate of variance v is too large by exp(v / 2).
        corrected = state.values - state.variances / 2
        peak = float(corrected.max())
        shares = np.exp(corrected - peak)
        total = float(shares.sum())
        shares /= total
        # Rows share their coordinates, so their errors may all point the same way.
        each = shares * (state.widths(slice(None), quantiles(delta, counts)) + state.variances / 2)
        error = float(each.sum())
        widths = state.widths(best, quantiles(delta / len(best), counts[best]))
        if float(widths.max()) + error <= target:
            return peak + math.log(total), error
        if float(widths.max()) > target / 2:
            _improve(state, np.sort(best[widths > target / 2]), blocks, float(widths.max()) / (target / 2))
        if error > target / 2:
            order = np.argsort(-each)
            enough = int(np.searchsorted(np.cumsum(each[order]), error - target / 4)) + 1
            _improve(state, np.sort(order[:enough]), blocks, error / (target / 2))


def _improve(state: _State, arms: Integers, blocks: int, ratio: float) -> None:
    """More blocks for rows whose errors are so many times too large; rows that would have most are scored whole."""
    arms = arms[state.variances[arms] > 0]
    if len(arms) == 0:
        return
    counts = state.pulled.counts[arms]
    # Few rows are brought to the same number of blocks, which takes one step instead of many.
    groups = np.unique(counts)[-1:] if len(state.values) <= FEW else np.unique(counts)
    for count in groups:
        same = arms if len(groups) == 1 else np.ascontiguousarray(arms[counts == count])
        upto = _next(int(count), ratio, 1.2)
        if 2 * upto >= blocks:
            state.resolve(same)
        else:
            state.pull(same, upto)


def quantile(delta: float, blocks: int) -> float:
    """How many standard deviations an estimate from so many blocks exceeds with probability delta, both ways."""
    return float(quantiles(delta, np.array([blocks]))[0])


def quantiles(delta: float, blocks: Integers) -> Doubles:
    """The same for many; by Student's t, as the variances are estimates too."""
    return np.asarray(student_quantile(delta, WITHIN * np.maximum(blocks, 1).astype(float)))
