"""Distances between laws, and how surprising a set of drawn counts is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["chi_square_score", "kl_divergence", "total_variation"]


def kl_divergence(log_p: NDArray[Any], log_q: NDArray[Any]) -> float:
    """KL(p || q) of two laws over the same items, given as log-probabilities (n,)."""
    p = np.exp(log_p)
    held = p > 0
    return float((p[held] * (log_p[held] - log_q[held])).sum())


def total_variation(log_p: NDArray[Any], log_q: NDArray[Any]) -> float:
    """Half the sum of |p - q| of two laws over the same items, given as log-probabilities (n,)."""
    return float(np.abs(np.exp(log_p) - np.exp(log_q)).sum() / 2)


def chi_square_score(counts: NDArray[Any], probabilities: NDArray[Any]) -> float:
    """How many standard deviations the chi-square statistic of counts (n,) lies above what the law predicts.

    Items expected fewer than five times are pooled.  The cube root of chi-square over its degrees of freedom is
    close to normal (Wilson and Hilferty, 1931), so under the law a score above 5 has a chance of about 3e-7.
    """
    expected = probabilities * counts.sum()
    rare = expected < 5
    pooled = np.append(expected[~rare], expected[rare].sum())
    seen = np.append(counts[~rare], counts[rare].sum())
    impossible = pooled <= 0
    if seen[impossible].sum() > 0:
        return float("inf")
    pooled, seen = pooled[~impossible], seen[~impossible]
    if pooled[-1] < 5 and len(pooled) > 1:
        # What is pooled may still be rare: it joins the next rarest.
        partner = int(np.argmin(pooled[:-1]))
        pooled[partner] += pooled[-1]
        seen[partner] += seen[-1]
        pooled, seen = pooled[:-1], seen[:-1]
    freedom = len(pooled) - 1
    if freedom < 1:
        return 0.0
    statistic = ((seen - pooled) ** 2 / pooled).sum()
    spread = 2.0 / (9.0 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1.0 - spread)) / spread**0.5)
