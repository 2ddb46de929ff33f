"""HSTU: a sequence model with gated pointwise attention, with SiLU instead of a softmax."""

import torch
from torch import nn
from torch.nn import functional

from experiments.harness.encoders import Encoder

BUCKETS, BUCKET = 128, 0.301
"""Buckets of the time between events, and their width in the natural logarithm, as published."""


def time_buckets(elapsed):
    """Number of the bucket of each span in seconds: the logarithm in steps of BUCKET; spans up to a second have 0."""
    return (elapsed.abs().clamp(min=1).log() / BUCKET).long().clamp(max=BUCKETS)


class Block(nn.Module):
    """Residual block of causal attention silu(q k' + bias) / length, normalised and gated by u.

    The bias depends on the distance between positions and, if `timed`, on the time between their events.
    """

    def __init__(self, width, heads, length, dropout, *, timed):
        super().__init__()
        self.heads, self.length = heads, length
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.joined = nn.Linear(width, 4 * width), nn.Linear(width, width)
        self.nearness = nn.Parameter(0.02 * torch.randn(heads, length))
        self.recency = nn.Parameter(0.02 * torch.randn(BUCKETS + 1, 1)) if timed else None
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(length)
        self.register_buffer("distances", (position[:, None] - position).clamp(min=0), persistent=False)

    def forward(self, states, seen):
        """New states of states (b, t, d)."""
        batch, length, width = states.shape
        u, v, q, k = functional.silu(self.parts(self.before(states))).chunk(4, dim=-1)
        v, q, k = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (v, q, k))
        bias = self.nearness[:, self.distances]
        if self.recency is not None:
            bias = bias + functional.embedding(time_buckets(seen.elapsed), self.recency)[:, None, ..., 0]
        weights = functional.silu(q @ k.transpose(2, 3) + bias) / self.length * seen.visible
        attended = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return states + self.joined(self.dropout(self.after(attended) * u))


class HSTU(Encoder):
    """An encoder of HSTU blocks; with timed=True, of events instead of items."""

    def __init__(self, items, *, width=64, blocks=2, heads=2, length=20, dropout=0.2, timed=False):
        stack = (Block(width, heads, length, dropout, timed=timed) for _ in range(blocks))
        super().__init__(items, stack, width=width, length=length, dropout=dropout)
