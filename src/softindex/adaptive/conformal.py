"""How far coded scores really are from the truth, measured on held-out queries: a conformal quantile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from softindex.errors import InputError
from softindex.records import Doubles

__all__ = ["Calibration", "calibrate", "error_probability", "fewest_queries"]


def error_probability(confidence: float) -> float:
    """1 - confidence, called delta here and in the bandit; in decimals, as 1 - 0.9 is not quite 0.1 in float64."""
    return float(1 - Decimal(repr(confidence)))


@dataclass(frozen=True, slots=True)
class Calibration:
    """For each level and held-out query, the largest error of any score as a fraction of its radius, sorted."""

    ratios: Doubles
    """(levels, m)"""

    def factors(self, confidence: float) -> list[float]:
        """Fraction of each level's radius that a new query stays within, for all levels with this confidence."""
        levels, count = self.ratios.shape
        rank = _rank(levels, count, error_probability(confidence))
        if rank > count:
            raise InputError(
                f"confidence is {confidence:g} but only {count} queries were used to calibrate; calibrate with at "
                f"least {fewest_queries(levels, confidence)}."
            )
        return [min(1.0, float(value)) for value in self.ratios[:, rank - 1]]


def calibrate(ratios: Doubles) -> Calibration:
    """Keep what the held-out queries showed: ratios (levels, m)."""
    return Calibration(np.sort(ratios, axis=1))


def fewest_queries(levels: int, confidence: float) -> int:
    """Number of held-out queries that the quantile of this confidence needs."""
    delta = error_probability(confidence)
    least = max(1, math.ceil(levels / delta) - 1)
    # Rounding may make it one too small.
    return least if _rank(levels, least, delta) <= least else least + 1


def _rank(levels: int, count: int, delta: float) -> int:
    return math.ceil((count + 1) * (1 - delta / levels))
