"""How far coded scores really are from the truth, measured on held-out queries: a conformal quantile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softindex.errors import InputError
from softindex.quantiles import conformal_rank, error_probability, fewest_queries
from softindex.records import Doubles

__all__ = ["Calibration", "calibrate", "error_probability", "fewest_queries"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """For each level and held-out query, the largest error of any score as a fraction of its radius, sorted."""

    ratios: Doubles
    """(levels, m)"""

    def factors(self, confidence: float) -> list[float]:
        """Fraction of each level's radius that a new query stays within, for all levels with this confidence."""
        levels, count = self.ratios.shape
        rank = conformal_rank(count, confidence, levels)
        if rank > count:
            raise InputError(
                f"confidence is {confidence:g} but only {count} queries were used to calibrate; calibrate with at "
                f"least {fewest_queries(levels, confidence)}."
            )
        return [min(1.0, float(value)) for value in self.ratios[:, rank - 1]]


def calibrate(ratios: Doubles) -> Calibration:
    """Keep what the held-out queries showed: ratios (levels, m)."""
    return Calibration(np.sort(ratios, axis=1))
