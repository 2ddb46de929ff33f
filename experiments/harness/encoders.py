"""Base of the sequence encoders: embeddings of items and positions, then a stack of blocks."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

PADDING = -1
"""Marks a position without an item."""
ITEM, TIME, USER = range(3)
"""Columns of an event, where sequences have times."""


class Seen(NamedTuple):
    """What each position (row) may know of the others (column)."""

    visible: Tensor
    """(b, 1, t, t): which positions it may attend to."""
    elapsed: Tensor | None
    """(b, t, t): seconds since the events at the other positions; None for sequences without times."""


class Encoder(nn.Module):
    """Computes a query for the next item after each position; items.weight (n, d) is also the output layer.

    Sequences are items (b, length) or events (b, length, 3), newest last, padded with PADDING on the left.
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
        items, elapsed = sequences, None
        if sequences.dim() == 3:
            items, times = sequences[..., ITEM], sequences[..., TIME]
            # A position knows its own time, not that of the item to predict.
            elapsed = times[:, :, None] - times[:, None, :]
        known, length = items != PADDING, items.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=items.device).tril()
        states = self.dropout(self.items(items.clamp(min=0)) + self.positions.weight) * known[..., None]
        seen = Seen(known[:, None, None, :] & before, elapsed)
        for block in self.blocks:
            states = block(states, seen)
        return self.last(states)
