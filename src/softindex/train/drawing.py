"""Draws from many laws at once: by where a uniform number falls among cumulative sums in float64."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cumulate", "draw", "find", "log_shares"]


def log_shares(log_weights: Tensor) -> Tensor:
    """Log-weights (..., k) made to sum to one; minus infinity is no weight."""
    return log_weights - torch.logsumexp(log_weights, -1, keepdim=True)


def cumulate(log_weights: Tensor) -> Tensor:
    """Cumulative shares (..., k) float64 of log-weights, the last exactly one.

    What has no weight at the end is one too, so that `find` never comes to it.
    """
    top = log_weights.amax(-1, keepdim=True).double()
    # A law of no weight at all is never drawn from; it must not spoil the others.
    sums = torch.exp(log_weights.double() - torch.where(torch.isfinite(top), top, 0.0)).cumsum(-1)
    return sums / sums[..., -1:]


def find(cumulative: Tensor, shares: Tensor) -> Tensor:
    """Where numbers in [0, 1) fall: of shares (..., m) among cumulative (..., k), or of any shape among (k,)."""
    places = torch.searchsorted(cumulative, shares, right=True)
    return places.clamp_(max=cumulative.shape[-1] - 1)


def draw(log_weights: Tensor, m: int, generator: torch.Generator | None) -> Tensor:
    """Draw m places from each row of log-weights (b, k): (b, m) int64."""
    shares = torch.rand(len(log_weights), m, generator=generator, device=log_weights.device, dtype=torch.float64)
    return find(cumulate(log_weights), shares)
