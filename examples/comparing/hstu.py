"""HSTU: a sequence model whose attention is pointwise, a SiLU in the place of the softmax, and gated."""

import torch
from torch import nn
from torch.nn import functional

from comparing.encoders import Encoder


class Block(nn.Module):
    """Attention silu(q k' + bias) / length to what came before, normalised and gated by u; added to what it read.

    The bias depends on how many places lie between.  The published one also looks at the time between, which the
    sequences here do not tell.
    """

    def __init__(self, width, heads, length, dropout):
        super().__init__()
        self.heads, self.length = heads, length
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.joined = nn.Linear(width, 4 * width), nn.Linear(width, width)
        self.nearness = nn.Parameter(0.02 * torch.randn(heads, length))
        self.dropout = nn.Dropout(dropout)
        place = torch.arange(length)
        self.register_buffer("distances", (place[:, None] - place).clamp(min=0), persistent=False)

    def forward(self, states, visible):
        """(b, t, d) from (b, t, d); visible (b, 1, t, t) says which places each place may look at."""
        batch, length, width = states.shape
        u, v, q, k = functional.silu(self.parts(self.before(states))).chunk(4, dim=-1)
        v, q, k = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (v, q, k))
        weights = functional.silu(q @ k.transpose(2, 3) + self.nearness[:, self.distances]) / self.length * visible
        found = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return states + self.joined(self.dropout(self.after(found) * u))


class HSTU(Encoder):
    """An encoder of such blocks."""

    def __init__(self, items, *, width=64, blocks=2, heads=2, length=20, dropout=0.2):
        made = (Block(width, heads, length, dropout) for _ in range(blocks))
        super().__init__(items, made, width=width, length=length, dropout=dropout)
