"""Intervals of estimates that are functions of means over decisions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from softindex.arguments import check_count, check_seed
from softindex.errors import InputError
from softindex.records import Doubles

__all__ = ["INTERVALS", "Interval", "find_interval"]

INTERVALS = ("bootstrap", "bernstein")
BLOCKS = 4096
"""Above this many decisions, sums over random blocks of them are resampled: as good, and far quicker."""


class Interval(NamedTuple):
    """An estimate, and where the value lies with some confidence."""

    value: float
    low: float
    high: float
    confidence: float
    name: str


def find_interval(
    columns: Doubles,
    estimate: Callable[[Doubles], Doubles],
    *,
    confidence: float,
    interval: str,
    repeats: int,
    seed: int,
    reach: float | None,
) -> Interval:
    """Return the estimate from the means of columns (N, c), and its interval.

    Args:
        columns: One row per decision.
        estimate: Takes means (..., c) and returns (...).
        confidence: With which the interval has the value in it.
        interval: "bootstrap": percentiles of the estimates of resampled decisions; right for many decisions without
            extreme weights.  "bernstein": the empirical Bernstein bound of Maurer and Pontil (2009), which holds for
            any number of decisions if no weighted reward exceeds `reach`; one column only.
        repeats: Number of resamples.
        seed: Of them.
        reach: Largest distance of a weighted reward from 0; None takes the largest one seen, which is not proven.
    """
    value = float(estimate(columns.mean(axis=0)))
    if interval == "bernstein":
        half = _bernstein(columns[:, 0], confidence, reach)
        return Interval(value, value - half, value + half, confidence, interval)
    tails = (1 - confidence) / 2
    resampled = estimate(_resampled_means(columns, check_count(repeats, "repeats"), check_seed(seed)))
    low, high = np.quantile(resampled, [tails, 1 - tails])
    return Interval(value, float(low), float(high), confidence, interval)


def _resampled_means(columns: Doubles, repeats: int, seed: int) -> Doubles:
    """(repeats, c) means of as many decisions, drawn with replacement."""
    rng = np.random.default_rng(seed)
    sums, counts = _blocks(columns, rng)
    found, size = np.empty((repeats, columns.shape[1])), len(sums)
    for row in found:
        picked = np.bincount(rng.integers(size, size=size), minlength=size).astype(np.float64)
        row[:] = (picked @ sums) / (picked @ counts)
    return found


def _blocks(columns: Doubles, rng: np.random.Generator) -> tuple[Doubles, Doubles]:
    """Sums and numbers of decisions in blocks that are alike."""
    n = len(columns)
    if n <= BLOCKS:
        return columns, np.ones(n)
    # Neighbours in a log are not independent: the hour of the day, or one user.
    where = rng.permutation(n) % BLOCKS
    sums: Doubles = np.stack([np.bincount(where, column, BLOCKS) for column in columns.T], axis=1).astype(np.float64)
    return sums, np.bincount(where, minlength=BLOCKS).astype(np.float64)


def _bernstein(terms: Doubles, confidence: float, reach: float | None) -> float:
    """Half the width of the interval; both ends fail with half of 1 - confidence."""
    n = len(terms)
    if n < 2:
        return math.inf
    low, high = float(terms.min()), float(terms.max())
    if reach is not None and max(abs(low), abs(high)) > reach:
        raise InputError(f"a weighted reward is {max(abs(low), abs(high)):.3g}, above reach; pass a larger one.")
    span = (high if high > 0 else 0.0) - min(low, 0.0) if reach is None else reach * (2 if low < 0 else 1)
    log = math.log(4 / (1 - confidence))
    return math.sqrt(2 * float(terms.var(ddof=1)) * log / n) + 7 * span * log / (3 * (n - 1))
