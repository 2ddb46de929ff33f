"""Quantiles of the normal and Student's t distributions, which NumPy does not have."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

__all__ = ["normal_quantile", "student_quantile"]

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
