"""What importance weights say about an estimate, in sentences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softindex.decisions.scoring import Scored
from softindex.records import Doubles

__all__ = ["Diagnosis", "diagnose"]

FEW, SMALL_SHARE, LARGE_SHARE = 100, 0.01, 0.1
"""Warn below this effective sample size or share of decisions, and if one decision has this share of the weight."""
ERRORS = 4.0
"""Warn of missing support if the mean weight is this many standard errors below 1."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How much a log says about a policy."""

    effective_sample_size: float
    """As many decisions of the policy itself would say about as much."""
    largest_weight: float
    mean_weight: float
    """Near 1 where the policy shows nothing that the log could not have; less by the probability that it does."""
    never_shown: float
    """Share of logged decisions that the policy would never make: they have weight 0."""
    restricted: float
    """Share of decisions that were drawn from the k best or from a nucleus."""
    warnings: tuple[str, ...]


def diagnose(scored: Scored, weights: Doubles, *, clipped: bool = False) -> Diagnosis:
    """Measure weights (N, n); where items of a decision have different ones, the worst column counts."""
    total = weights.sum(axis=0)
    squares = (weights**2).sum(axis=0)
    effective = float(np.divide(total**2, squares, out=np.zeros_like(total), where=squares > 0).min())
    largest, mean = float(weights.max()), float(weights.mean(axis=0)[np.argmin(weights.mean(axis=0))])
    share = float(np.divide(weights.max(axis=0), total, out=np.ones_like(total), where=total > 0).max())
    never = float(np.isneginf(scored.target).any(axis=1).mean())
    found = _warn_of_log(scored) + _warn_of_weights(len(scored), effective, share)
    found += _warn_of_support(scored, weights, clipped)
    return Diagnosis(effective, largest, mean, never, scored.restricted, tuple(found))


def _warn_of_log(scored: Scored) -> list[str]:
    found = []
    if scored.repeated:
        found.append(
            f"{scored.repeated:,} decisions have an id that came before, and were left out. Use a request id once."
        )
    if scored.unmatched:
        found.append(f"{scored.unmatched:,} rewards belong to no decision of the log, and were left out.")
    return found


def _warn_of_weights(n: int, effective: float, share: float) -> list[str]:
    found = []
    if effective < FEW and effective > n / 2:
        found.append(f"there are only {n:,} decisions: the interval may be too narrow. Log more.")
    elif effective < FEW or effective < SMALL_SHARE * n:
        found.append(
            f"the effective sample size is {effective:,.0f} of {n:,} decisions: the interval may be far too narrow. "
            "Evaluate a policy closer to the logged one, clip the weights, or log more decisions."
        )
    if share > LARGE_SHARE and n > 1 / LARGE_SHARE:
        found.append(
            f"one decision has {share:.0%} of the total weight: the value depends on whether it is in the log. Clip "
            "the weights, or log with a higher temperature."
        )
    return found


def _warn_of_support(scored: Scored, weights: Doubles, clipped: bool) -> list[str]:
    found = []
    if scored.restricted > 0:
        found.append(
            f"{scored.restricted:.0%} of the decisions were drawn by top-k or top_p, which never show some items: what "
            "the policy would earn with those is missing from the value. Log with a method that can show everything."
        )
    first = weights[:, 0] if weights.shape[1] else weights
    error = float(first.std(ddof=1) / np.sqrt(len(first))) if len(first) > 1 else 0.0
    missing = 1.0 - float(first.mean())
    if clipped and missing > LARGE_SHARE:
        found.append(
            f"clipped weights average {1 - missing:.2g} instead of 1: the value is pulled towards 0 by the rest, and "
            "the interval does not know that. Raise the limit, or evaluate a policy closer to the logged one."
        )
    if not clipped and missing > ERRORS * error and missing > 1e-3:
        found.append(
            f"weights average {1 - missing:.3g} instead of 1: the policy shows items with a probability of about "
            f"{missing:.2g} that the log could hardly have, and what they earn is missing from the value. Log with a "
            "higher temperature, or evaluate a policy closer to the logged one."
        )
    if not weights.any():
        found.append("the policy would make none of the logged decisions; nothing is known about its value.")
    return found
