"""What encoders of sequences share: places for items, and one block after the other."""

import torch
from torch import nn

PADDING = -1
"""Stands in a sequence where there is no item."""


class Encoder(nn.Module):
    """Queries for the next item after each place of a sequence; items.weight (n, d) is the layer they are held to.

    Sequences are (b, length), the newest item last, filled up with PADDING on the left.
    """

    def __init__(self, items, blocks, *, width, length, dropout):
        super().__init__()
        self.items, self.places = nn.Embedding(items, width), nn.Embedding(length, width)
        for table in (self.items, self.places):
            nn.init.normal_(table.weight, std=width**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.LayerNorm(width)

    def forward(self, sequences):
        """(b, length, d); what stands at places of PADDING means nothing."""
        known, length = sequences != PADDING, sequences.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=sequences.device).tril()
        states = self.dropout(self.items(sequences.clamp(min=0)) + self.places.weight) * known[..., None]
        # (b, 1, t, t): which places each place may look at.
        visible = known[:, None, None, :] & before
        for block in self.blocks:
            states = block(states, visible)
        return self.last(states)
