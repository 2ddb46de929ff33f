"""What is known of clusters that were not scanned, in plain float64 NumPy: the curve of their tails, and samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.kernels.reference import quadratic, round_query
from softindex.records import Doubles, Moments

TAIL_STEP = 0.5


def usual_tails() -> Doubles:
    """The curve (49,) of an index that has none: the share of items beyond z = 0, 1/2, 1, ... standard deviations."""
    return np.asarray(np.minimum(1.0, 1.6e-3 * np.exp(-2.2 * (TAIL_STEP * np.arange(49) - 3.0))))


def raised_tails(curve: Doubles) -> Doubles:
    """A measured curve (49,), raised where a user's queries may single out items more than those it was made with."""
    z = TAIL_STEP * np.arange(len(curve))
    return np.asarray(np.minimum.accumulate(np.minimum(1.0, curve * np.exp(0.5 * np.maximum(0.0, z - 5.0)))))


def tail_moments(curve: Doubles, deviations: Doubles, ends: Doubles) -> Doubles:
    """The mean (k,) of exp(deviation z) over items by their curve (49,), without those beyond `ends` (k,).

    Read from a table with linear interpolation between deviations 0, 1/16, ..., 8, as the kernels do.
    """
    last = np.minimum(np.maximum(ends / TAIL_STEP, 1.0), len(curve) - 1.0).astype(np.int64)
    z = TAIL_STEP * (np.arange(len(curve) - 1) + 0.5)
    z[0] = -TAIL_STEP
    counted = np.arange(len(z)) < last[:, None]

    def moments(deviations: Doubles) -> Doubles:
        return np.asarray(np.where(counted, -np.diff(curve) * np.exp(deviations[:, None] * z), 0.0).sum(axis=1))

    below = np.floor(deviations * 16) / 16
    part = (deviations - below) * 16
    return np.where(deviations < 8, (1 - part) * moments(below) + part * moments(below + 1 / 16), moments(deviations))


@dataclass(frozen=True, slots=True)
class TailSample:
    """The estimates from one stretch (consecutive items) of a cluster in the tail."""

    cluster: int
    ratio: float
    """The cluster's mass, extrapolated from the stretch, divided by its estimate."""
    noise: float
    """Relative variance of the ratio from scanning a stretch instead of the cluster."""
    misfit: float
    """Relative variance of the true ratio among clusters like this one."""
    variance: float
    """Variance of the logits of the stretch."""
    log_sum: float
    """The cluster's exact log mass if the stretch covers it, otherwise -inf."""


def dispersion_term(variance: NDArray[Any], log_count: NDArray[Any]) -> Doubles:
    """The contribution (k,) of the variance (k,) of a cluster's logits to its log mass; log_count (k,) is log n.

    Half of the variance, as for normal logits; above a variance of 2 log n, the contribution of the largest of n normal
    logits.
    """
    largest = np.sqrt(2 * variance * log_count) - log_count
    return np.where(variance <= 2 * log_count, variance / 2, largest)


def logit_variances(moments: Moments, query: NDArray[Any], temperature: float) -> Doubles:
    """q' S q / t^2 (k,) of every cluster; for forms of rank r, with the query rounded as in the kernels."""
    forms = moments.dispersion
    if forms.kind == "full":
        return quadratic(forms, query) / temperature**2
    assert forms.spread is not None
    integers, unit = round_query(query)
    rounded, wide = integers * unit, query.astype(np.float64)
    # The kernels use the norm of the unrounded query.
    lost = float(wide @ wide - rounded @ rounded) * forms.spread.astype(np.float64)
    return np.asarray(quadratic(forms, rounded) + lost) / temperature**2
