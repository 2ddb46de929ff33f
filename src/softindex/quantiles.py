"""Quantiles of Student's t, which NumPy does not have, by the first terms of their expansion about the normal."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

__all__ = ["normal_quantile", "student_quantile"]


def normal_quantile(beyond: float) -> float:
    """What a standard normal number exceeds, in size, with this probability."""
    return -NormalDist().inv_cdf(max(beyond / 2, 1e-300))


def student_quantile(beyond: float, freedom: Any) -> Any:
    """The same of Student's t; freedom: its degrees, a number or an array of them."""
    z = normal_quantile(beyond)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
