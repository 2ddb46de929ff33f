"""Draws from many distributions at once, by inverting cumulative sums in float64."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BELOW_ONE", "cumulate", "draw", "find", "find_rest", "log_normalise", "spread_uniforms"]

BELOW_ONE = 1 - 2**-53
"""The largest number below one."""


def log_normalise(log_weights: Tensor) -> Tensor:
    """Shift log-weights (..., k) so that the weights sum to one; minus infinity means no weight."""
    return log_weights - torch.logsumexp(log_weights, -1, keepdim=True)


def cumulate(log_weights: Tensor) -> Tensor:
    """Cumulative probabilities (..., k) float64 of log-weights; the last is exactly one.

    Entries without weight at the end are one too, so `find` never returns them.
    """
    top = log_weights.amax(-1, keepdim=True).double()
    # A row without any weight is never drawn from, but must not put NaN into the others.
    sums = torch.exp(log_weights.double() - torch.where(torch.isfinite(top), top, 0.0)).cumsum(-1)
    return sums / sums[..., -1:]


def find(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Positions of numbers in [0, 1): of (..., n) among cumulative (..., k), or of any shape among (k,)."""
    positions = torch.searchsorted(cumulative, uniforms, right=True)
    return positions.clamp_(max=cumulative.shape[-1] - 1)


def draw(log_weights: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Draw n positions from each row of log-weights (b, k): (b, n) int64."""
    uniforms = torch.rand(len(log_weights), n, generator=generator, device=log_weights.device, dtype=torch.float64)
    return find(cumulate(log_weights), uniforms)


def find_rest(cumulative: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Positions as `find` gives them, and how far through its position each number is, in [0, 1).

    If a number is uniform, so is its rest given the position: it can select again inside that position.
    """
    positions = find(cumulative, uniforms)
    ends = cumulative.gather(-1, positions)
    begins = torch.where(positions > 0, cumulative.gather(-1, (positions - 1).clamp(min=0)), 0.0)
    # A query with NaN has no distribution: its log q is NaN, but its draws must still be classes.
    return positions, ((uniforms - begins) / (ends - begins)).nan_to_num(nan=0.0).clamp(0.0, BELOW_ONE)


def spread_uniforms(b: int, n: int, generator: torch.Generator | None, device: torch.device | None = None) -> Tensor:
    """Numbers (b, n) in [0, 1), equally spaced in each row: each is uniform, and one of a row determines the others.

    Every interval of length l holds n l of a row's numbers, rounded up or down.
    """
    first = torch.rand(b, 1, generator=generator, device=device, dtype=torch.float64)
    return (first + torch.arange(n, device=device, dtype=torch.float64) / n) % 1.0
