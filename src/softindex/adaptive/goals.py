"""What a caller may want of one query, found from bounds of its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from softindex.adaptive.bounds import Bounds, LogZ
from softindex.records import Doubles, Integers
from softindex.rejection import draw

__all__ = ["BestClasses", "Drawn", "Goal", "Nucleus", "Solution"]

DRAWN_EPSILON = 1e-4
"""Relative error of Z for draws, whose log-probabilities are computed with it, unless the caller allows more."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Positions among the candidates with their logits, and log Z of all candidates."""

    positions: Integers
    logits: Doubles
    errors: Doubles
    """How far rounding may have moved the logits."""
    log_partition: LogZ


class Goal(Protocol):
    """Something to find; k and epsilon say how hard it is."""

    @property
    def k(self) -> int:
        """Classes that must be separated from the others."""

    @property
    def epsilon(self) -> float:
        """Relative error of Z that is allowed."""

    def find(self, bounds: Bounds) -> Solution | None:
        """The solution; None where more rows than the limit would have to be scored."""

    def doubtful(self, bounds: Bounds) -> Integers:
        """Positions that need finer bounds before the solution can be found."""


@dataclass(frozen=True, slots=True)
class BestClasses:
    """The k most probable classes."""

    k: int
    epsilon: float

    def find(self, bounds: Bounds) -> Solution | None:
        """The k best, and log Z."""
        if bounds.is_hopeless(self.k, self.epsilon, bounds.limit):
            return None
        best = bounds.best(self.k)
        # A little less than epsilon leaves room for the rounding of sums.
        log_z = None if best is None else bounds.log_partition(self.epsilon * (1 - 1e-6))
        return None if best is None or log_z is None else _solution(bounds, best, log_z)

    def doubtful(self, bounds: Bounds) -> Integers:
        """Those that may be among the best, and those that Z needs."""
        return bounds.doubtful(self.k, self.epsilon)


@dataclass(frozen=True, slots=True)
class Nucleus:
    """The fewest most probable classes that together have probability top_p."""

    top_p: float
    k: int = 1
    epsilon: float = 0.01

    def find(self, bounds: Bounds) -> Solution | None:
        """The nucleus, and log Z."""
        if bounds.is_hopeless(self.k, self.epsilon, bounds.limit):
            return None
        result = bounds.nucleus(self.top_p)
        return None if result is None else _solution(bounds, *result)

    def doubtful(self, bounds: Bounds) -> Integers:
        """All: how many classes the nucleus has is not known before."""
        return np.arange(len(bounds))


@dataclass(frozen=True, slots=True)
class Drawn:
    """Draws from the softmax itself, by rejection under the upper bounds."""

    n: int
    rng: np.random.Generator
    epsilon: float
    k: int = 1

    def find(self, bounds: Bounds) -> Solution | None:
        """The draws, and log Z.

        Whether the bounds will do is decided before anything is drawn: giving up on some draws because of what they
        are would change the distribution.  From then on rejection itself falls back to scoring every row.
        """
        if bounds.is_hopeless(self.k, self.epsilon, bounds.limit):
            return None
        # A clear winner alone often settles log Z, and is the most likely draw.
        log_z = None if bounds.best(self.k) is None else bounds.log_partition(self.epsilon)
        if log_z is None:
            return None
        upper, known, weights = bounds.high.copy(), np.flatnonzero(bounds.known), bounds.upper_weights()
        accepted = draw(upper, bounds.score, self.n, self.rng, budget=bounds.limit, known=known, weights=weights)
        return _solution(bounds, accepted.positions, log_z)

    def doubtful(self, bounds: Bounds) -> Integers:
        """Those that Z needs: upper bounds that add up to little more than Z are good enough to propose from."""
        return bounds.doubtful(self.k, self.epsilon)


def _solution(bounds: Bounds, positions: Integers, log_z: LogZ) -> Solution:
    return Solution(positions, bounds.logits(positions), bounds.slacks(positions), log_z)
