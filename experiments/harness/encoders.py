"""Base of the sequence encoders: embeddings of items and positions, then a stack of blocks."""

import torch
from torch import nn

PADDING = -1
"""Marks a position without an item."""


class Encoder(nn.Module):
    """Computes a query for the next item after each position; items.weight (n, d) is also the output layer.

    Sequences are (b, length), newest item last, padded with PADDING on the left.
    """

    def __init__(self, items, blocks, *, width, length, dropout):
        super().__init__()
        self.items, self.positions = nn.Embedding(items, width), nn.Embedding(length, width)
        for table in (self.items, self.positions):
            nn.init.normal_(table.weight, std=width**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.LayerNorm(width)

    def forward(self, sequences):
        """Queries (b, length, d); those at PADDING positions are meaningless."""
        known, length = sequences != PADDING, sequences.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=sequences.device).tril()
        states = self.dropout(self.items(sequences.clamp(min=0)) + self.positions.weight) * known[..., None]
        # (b, 1, t, t): which positions each position may attend to.
        visible = known[:, None, None, :] & before
        for block in self.blocks:
            states = block(states, visible)
        return self.last(states)
