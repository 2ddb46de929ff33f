"""How far one law over clusters is from another, query by query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softindex.records import Doubles

__all__ = ["Distances", "between", "mean_interval", "median_interval"]

RESAMPLES = 1000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Distances:
    """Each (b,), of a law p from the softmax s."""

    kl: Doubles
    """KL(p || s) = sum p log(p / s), in nats."""
    reverse_kl: Doubles
    """KL(s || p); inf where p cannot draw what s can."""
    total_variation: Doubles
    """Half the sum of |p - s|: no event has probabilities farther apart."""
    ratio_spread: Doubles
    """Standard deviation of p / s under s, the square root of chi-square: 0.1 means that ratios are off by a tenth."""


def between(law: Doubles, truth: Doubles) -> Distances:
    """Distances of a law from the softmax, from log masses (b, k) of clusters; neither need be normalised.

    Inside a cluster the laws of this library are the softmax, so the masses of the clusters tell all.
    """
    log_p = law - np.logaddexp.reduce(law, axis=1, keepdims=True)
    log_s = truth - np.logaddexp.reduce(truth, axis=1, keepdims=True)
    held = np.isfinite(log_s)
    p, s = np.exp(log_p), np.exp(log_s)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.where(held, log_p - log_s, 0.0)
        kl = np.where(p > 0, p * ratio, 0.0).sum(axis=1)
        reverse = np.where(s > 0, -s * ratio, 0.0).sum(axis=1)
        chi_square = np.where(s > 0, s * np.expm1(ratio) ** 2, 0.0).sum(axis=1)
    # Rounding may leave a divergence of equal laws just below zero.
    return Distances(np.maximum(kl, 0), np.maximum(reverse, 0), np.abs(p - s).sum(axis=1) / 2, np.sqrt(chi_square))


def mean_interval(values: Doubles) -> tuple[float, float, float]:
    """The mean of values (b,) and the ends of its 95 % interval, by resampling; all infinite if a value is."""
    if not np.isfinite(values).all():
        return np.inf, np.inf, np.inf
    rng = np.random.default_rng(0)
    weights = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=RESAMPLES) / len(values)
    return float(values.mean()), *_ends(weights @ values)


def median_interval(values: Doubles) -> tuple[float, float, float]:
    """The median of values (b,) and the ends of its 95 % interval, by resampling."""
    picked = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    return float(np.median(values)), *_ends(np.median(values[picked], axis=1))


def _ends(resampled: Doubles) -> tuple[float, float]:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
