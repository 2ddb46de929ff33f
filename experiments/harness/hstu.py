"""HSTU: a sequence model with gated pointwise attention, with SiLU instead of a softmax."""

import torch
from torch import nn
from torch.nn import functional

from experiments.harness.encoders import Encoder


class Block(nn.Module):
    """Residual block of causal attention silu(q k' + bias) / length, normalised and gated by u.

    The bias depends on the distance between positions.  The published one also uses the time between them, which these
    sequences do not contain.
    """

    def __init__(self, width, heads, length, dropout):
        super().__init__()
        self.heads, self.length = heads, length
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.joined = nn.Linear(width, 4 * width), nn.Linear(width, width)
        self.nearness = nn.Parameter(0.02 * torch.randn(heads, length))
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(length)
        self.register_buffer("distances", (position[:, None] - position).clamp(min=0), persistent=False)

    def forward(self, states, visible):
        """States (b, t, d); visible (b, 1, t, t): which positions each position may attend to."""
        batch, length, width = states.shape
        u, v, q, k = functional.silu(self.parts(self.before(states))).chunk(4, dim=-1)
        v, q, k = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (v, q, k))
        weights = functional.silu(q @ k.transpose(2, 3) + self.nearness[:, self.distances]) / self.length * visible
        attended = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return states + self.joined(self.dropout(self.after(attended) * u))


class HSTU(Encoder):
    """An encoder of HSTU blocks."""

    def __init__(self, items, *, width=64, blocks=2, heads=2, length=20, dropout=0.2):
        stack = (Block(width, heads, length, dropout) for _ in range(blocks))
        super().__init__(items, stack, width=width, length=length, dropout=dropout)
