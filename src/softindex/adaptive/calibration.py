"""How far scores really are from the truth, learnt from held-out queries: a conformal quantile, no fudge factor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.errors import InputError, show
from softindex.records import Doubles

__all__ = ["Calibration", "calibrate", "check_levels", "check_part", "fewest"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """For each level and held-out query the largest part of its radius that any score was off by, sorted."""

    ratios: Doubles
    """(levels, m)"""

    def factors(self, delta: float) -> list[float]:
        """The part of each level's radius that a query like those stays within, all with probability 1 - delta."""
        levels, count = self.ratios.shape
        rank = _rank(levels, count, delta)
        if rank > count:
            raise InputError(
                f"delta is {delta:g} but {count} queries were calibrated with; "
                f"calibrate with at least {fewest(levels, delta)}."
            )
        return [min(1.0, float(value)) for value in self.ratios[:, rank - 1]]


def calibrate(ratios: Doubles) -> Calibration:
    """Keep what the held-out queries showed: ratios (levels, m)."""
    return Calibration(np.sort(ratios, axis=1))


def fewest(levels: int, delta: float) -> int:
    """How many held-out queries the quantile of a delta needs."""
    least = max(1, math.ceil(levels / delta) - 1)
    # Rounding may have it one off.
    return least if _rank(levels, least, delta) <= least else least + 1


def _rank(levels: int, count: int, delta: float) -> int:
    return math.ceil((count + 1) * (1 - delta / levels))


def check_levels(epsilon: Any, delta: Any) -> tuple[float, float]:
    """Return epsilon and delta as floats between 0 and 1."""
    return check_part(epsilon, "epsilon"), check_part(delta, "delta")


def check_part(value: Any, name: str) -> float:
    """Return a number between 0 and 1 as a float; name: what the caller calls it."""
    if isinstance(value, (float, np.floating)) and 0.0 < value < 1.0:
        return float(value)
    raise InputError(f"{name} is {show(value)}; expected a number between 0 and 1, such as 0.05.")
