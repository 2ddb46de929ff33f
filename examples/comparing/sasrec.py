"""SASRec: a small causal transformer that reads what somebody took so far and gives a query for what comes next."""

import torch
from torch import nn
from torch.nn import functional

from comparing.encoders import Encoder


class Block(nn.Module):
    """Attention to what came before, and a layer on each place; each is added to what it read."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layer = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attended, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layer = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, states, visible):
        """(b, t, d) from (b, t, d); visible (b, 1, t, t) says which places each place may look at."""
        batch, length, width = states.shape
        # A place without an item looks at itself, as a softmax over nothing is not a number.
        visible = visible | torch.eye(length, dtype=torch.bool, device=states.device)
        parts = self.attended(self.before_attention(states)).view(batch, length, 3, self.heads, width // self.heads)
        found = functional.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), attn_mask=visible)
        states = states + self.dropout(self.joined(found.transpose(1, 2).reshape(batch, length, width)))
        return states + self.dropout(self.layer(self.before_layer(states)))


class SASRec(Encoder):
    """An encoder of such blocks."""

    def __init__(self, items, *, width=64, blocks=2, heads=2, length=20, dropout=0.2):
        made = (Block(width, heads, dropout) for _ in range(blocks))
        super().__init__(items, made, width=width, length=length, dropout=dropout)
