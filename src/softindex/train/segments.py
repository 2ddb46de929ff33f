"""Sums and searches over segments of different lengths that lie one after the other in a tensor."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["blocks_of_segments", "find_in_segments", "segment_logsumexp"]


def segment_logsumexp(scores: Tensor, segment: Tensor, count: int) -> Tensor:
    """log of the sum of exp(scores) per segment of the last axis: (..., count), minus infinity for an empty one."""
    top = torch.full((*scores.shape[:-1], count), -torch.inf, dtype=scores.dtype, device=scores.device)
    into = segment.expand_as(scores)
    top = top.scatter_reduce(-1, into, scores, "amax")
    sums = torch.zeros_like(top).scatter_add(-1, into, torch.exp(scores - top.gather(-1, into)))
    return torch.where(sums > 0, top + torch.log(sums), -torch.inf)


def find_in_segments(log_p: Tensor, segment: Tensor, chosen: Tensor, uniforms: Tensor) -> Tensor:
    """Positions (m,) that numbers (m,) in [0, 1) select in the chosen segments (m,), none of which may be empty.

    The probabilities of each segment sum to one, and every segment has a position.
    """
    sums = torch.exp(log_p).cumsum(0)
    positions = torch.searchsorted(sums, chosen + uniforms, right=True)
    sizes = torch.bincount(segment)
    ends = sizes.cumsum(0)
    return torch.maximum(torch.minimum(positions, ends[chosen] - 1), (ends - sizes)[chosen])


def blocks_of_segments(sizes: Tensor, most: int) -> Iterator[tuple[int, int]]:
    """Split segments into blocks (begin, end) of at most `most` entries; a longer segment gets its own block."""
    sums = sizes.cumsum(0)
    begin = 0
    while begin < len(sizes):
        before = int(sums[begin - 1]) if begin else 0
        end = max(begin + 1, int(torch.searchsorted(sums, before + most, right=True)))
        yield begin, end
        begin = end
