"""Quantiles that NumPy does not have: normal, Student's t, and the ranks of split-conformal calibration."""

from __future__ import annotations

import math
from decimal import Decimal
from statistics import NormalDist
from typing import Any

__all__ = ["conformal_rank", "error_probability", "fewest_queries", "normal_quantile", "student_quantile"]

NORMAL = NormalDist()


def normal_quantile(beyond: float) -> float:
    """The value that the size of a standard normal number exceeds with probability `beyond`."""
    return -NORMAL.inv_cdf(max(beyond / 2, 1e-300))


def student_quantile(beyond: float, freedom: Any) -> Any:
    """The same for Student's t with `freedom` degrees of freedom, a number or an array.

    Computed from the first terms of its expansion about the normal quantile.
    """
    z = normal_quantile(beyond)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def error_probability(confidence: float) -> float:
    """1 - confidence, in decimals, as 1 - 0.9 is not quite 0.1 in float64."""
    return float(1 - Decimal(repr(confidence)))


def conformal_rank(count: int, confidence: float, levels: int = 1) -> int:
    """Which of `count` sorted scores, from 1, one more exchangeable score exceeds with probability 1 - confidence.

    At most with this probability, for any distribution; above `count` where there are too few scores.  With several
    levels, all of them together exceed theirs with this probability.
    """
    return math.ceil((count + 1) * (1 - error_probability(confidence) / levels))


def fewest_queries(levels: int, confidence: float) -> int:
    """Number of held-out queries that the conformal quantile of this confidence needs."""
    least = max(1, math.ceil(levels / error_probability(confidence)) - 1)
    # Rounding may make it one too small.
    return least if conformal_rank(least, confidence, levels) <= least else least + 1
