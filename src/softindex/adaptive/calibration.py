"""How far scores really are from the truth, learnt from held-out queries: a conformal quantile, no fudge factor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.errors import InputError, show
from softindex.records import Doubles

__all__ = ["Calibration", "calibrate", "check_levels"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """For each level and held-out query the largest part of its radius that any score was off by, sorted."""

    ratios: Doubles
    """(levels, m)"""

    def factors(self, delta: float) -> list[float]:
        """The part of each level's radius that a query like those stays within, all with probability 1 - delta."""
        levels, count = self.ratios.shape
        rank = math.ceil((count + 1) * (1 - delta / levels))
        if rank > count:
            least = math.ceil(levels / delta) - 1
            raise InputError(
                f"delta is {delta:g} but {count} queries were calibrated with; calibrate with at least {least}."
            )
        return [min(1.0, float(value)) for value in self.ratios[:, rank - 1]]


def calibrate(ratios: Doubles) -> Calibration:
    """Keep what the held-out queries showed: ratios (levels, m)."""
    return Calibration(np.sort(ratios, axis=1))


def check_levels(epsilon: Any, delta: Any) -> tuple[float, float]:
    """Return epsilon and delta as floats between 0 and 1."""
    return _between(epsilon, "epsilon"), _between(delta, "delta")


def _between(value: Any, name: str) -> float:
    if isinstance(value, (float, np.floating)) and 0.0 < value < 1.0:
        return float(value)
    raise InputError(f"{name} is {show(value)}; expected a number between 0 and 1, such as 0.05.")
