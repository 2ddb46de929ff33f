"""Distances between two distributions over clusters, for each query, and intervals for their means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softindex.blocks import blocks, rows_per_block
from softindex.quantiles import normal_quantile, student_quantile
from softindex.records import Doubles

__all__ = ["Distances", "between", "mean_interval", "median_interval"]

RESAMPLES = 1000
BLOCK_VALUES = 1 << 21
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Distances:
    """Distances (b,) between a distribution p and the softmax s."""

    kl: Doubles
    """KL(p || s) = sum p log(p / s), in nats."""
    reverse_kl: Doubles
    """KL(s || p); infinite where p gives probability zero to something that s can draw."""
    total_variation: Doubles
    """Half the sum of |p - s|: the largest difference in the probability of any event."""
    ratio_spread: Doubles
    """Standard deviation of p / s under s, the square root of chi-square: 0.1 means ratios are off by about 10 %."""


def between(law: Doubles, truth: Doubles) -> Distances:
    """Distances between a method's distribution and the softmax, from log masses (b, k) of clusters.

    The masses need not be normalised.  Inside a cluster every method draws from the exact softmax, so the masses of
    the clusters determine all distances.
    """
    # In blocks, which bound the memory and let a signal in: there may be a million queries.
    parts = [_between(law[part], truth[part]) for part in blocks(len(law), rows_per_block(BLOCK_VALUES, law.shape[1]))]
    return Distances(
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.reverse_kl for part in parts]),
        np.concatenate([part.total_variation for part in parts]),
        np.concatenate([part.ratio_spread for part in parts]),
    )


def _between(law: Doubles, truth: Doubles) -> Distances:
    log_p = law - np.logaddexp.reduce(law, axis=1, keepdims=True)
    log_s = truth - np.logaddexp.reduce(truth, axis=1, keepdims=True)
    filled = np.isfinite(log_s)
    p, s = np.exp(log_p), np.exp(log_s)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.where(filled, log_p - log_s, 0.0)
        kl = np.where(p > 0, p * ratio, 0.0).sum(axis=1)
        reverse = np.where(s > 0, -s * ratio, 0.0).sum(axis=1)
        small = np.where(s > 0, s * np.expm1(ratio) ** 2, 0.0).sum(axis=1)
        # The same as a sum of p^2 / s, where a ratio overflows exp or s underflows to 0.
        large = np.logaddexp.reduce(np.where(filled, log_p + ratio, -np.inf), axis=1)
        spread = np.where(
            large < 1.0,
            np.sqrt(small),
            np.sqrt(np.expm1(np.minimum(large, 709.0))) * np.exp(np.maximum(large - 709.0, 0.0) / 2),
        )
    # Rounding can leave the divergence of equal distributions just below zero.
    return Distances(np.maximum(kl, 0), np.maximum(reverse, 0), np.abs(p - s).sum(axis=1) / 2, spread)


def mean_interval(values: Doubles) -> tuple[float, float, float]:
    """The mean of values (b,) and the ends of its 95 % interval, by resampling; all infinite if a value is.

    The interval is too short where a few rare values dominate the mean: resampling cannot know of those not drawn.
    """
    if not np.isfinite(values).all():
        return np.inf, np.inf, np.inf
    count, mean = len(values), float(values.mean())
    rng, chances = np.random.default_rng(0), np.full(count, 1 / count)
    # In blocks: there may be a million values.
    means = [
        rng.multinomial(count, chances, size=part.stop - part.start) @ values / count
        for part in blocks(RESAMPLES, rows_per_block(BLOCK_VALUES, count))
    ]
    low, high = _ends(np.concatenate(means))
    # Resampling few values understates their spread, because their variance is itself uncertain.
    wider = _student(count) if count > 1 else 1.0
    return (
        mean,
        max(float(values.min()), mean + (low - mean) * wider),
        min(float(values.max()), mean + (high - mean) * wider),
    )


def median_interval(values: Doubles) -> tuple[float, float, float]:
    """The median of values (b,) and the ends of its 95 % interval, by resampling."""
    picked = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    return float(np.median(values)), *_ends(np.median(values[picked], axis=1))


def _student(count: int) -> float:
    """The factor by which an interval by Student's t is wider than a resampled one."""
    beyond, freedom = 1 - CONFIDENCE, count - 1
    return float(student_quantile(beyond, freedom) / normal_quantile(beyond) * np.sqrt(count / freedom))


def _ends(resampled: Doubles) -> tuple[float, float]:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
