"""SASRec: a small causal transformer over the items of a user, with a query for the next item."""

import torch
from torch import nn
from torch.nn import functional

from experiments.harness.encoders import Encoder


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each with a residual connection."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layer = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attended, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layer = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, states, seen):
        """New states of states (b, t, d); the time between events is not used."""
        batch, length, width = states.shape
        # Padding attends to itself, because a softmax over nothing is NaN.
        visible = seen.visible | torch.eye(length, dtype=torch.bool, device=states.device)
        parts = self.attended(self.before_attention(states)).view(batch, length, 3, self.heads, width // self.heads)
        attended = functional.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), attn_mask=visible)
        states = states + self.dropout(self.joined(attended.transpose(1, 2).reshape(batch, length, width)))
        return states + self.dropout(self.layer(self.before_layer(states)))


class SASRec(Encoder):
    """An encoder of transformer blocks."""

    def __init__(self, items, *, width=64, blocks=2, heads=2, length=20, dropout=0.2):
        stack = (Block(width, heads, dropout) for _ in range(blocks))
        super().__init__(items, stack, width=width, length=length, dropout=dropout)
