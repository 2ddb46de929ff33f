"""A mixture of logits whose two sides share their components: what an item is to queries, it is as a query."""

import torch
from torch import nn

from softindex.mol import MixtureOfLogits

LIKE = 3.0
"""What the gate prefers pairs of like components by, before it has learnt."""


class TiedMixture(nn.Module):
    """The components of queries and of items are the same projections of their vectors; the gate looks at logits only.

    It starts as a mean of cosines: projections are orthogonal, and the gate is constant, on pairs of like components.
    With learn_gate=False the gate stays as it is.
    """

    def __init__(self, width, *, components, component_dim, temperature, learn_gate=True, item_dropout=0.1):
        super().__init__()
        self.mixture = MixtureOfLogits(
            None,
            None,
            query_components=components,
            item_components=components,
            component_dim=component_dim,
            temperature=temperature,
            gates="logits",
            weight_dropout=0.0,
        )
        self.heads = nn.Linear(width, components * component_dim, bias=False)
        self.item_dropout = nn.Dropout(item_dropout)
        with torch.no_grad():
            for head in self.heads.weight.split(component_dim):
                nn.init.orthogonal_(head)
            last = self.mixture.logit_gate[-1]
            last.weight.zero_()
            last.bias.copy_(LIKE * torch.eye(components).flatten())
        self.mixture.requires_grad_(learn_gate)

    def components(self, vectors):
        """(..., components, component_dim) of vectors (..., width), not of length one yet."""
        return self.heads(vectors).unflatten(-1, (-1, self.mixture.component_dim))

    def encode_queries(self, queries):
        """Components of length one, and no gates, as of `MixtureOfLogits`."""
        return self.mixture.encode_queries(self.components(queries))

    def encode_items(self, items):
        """The same of items."""
        return self.mixture.encode_items(self.components(self.item_dropout(items)))

    def combine(self, *sides, with_weights=False):
        """Scores of both sides' components."""
        return self.mixture.combine(*sides, with_weights=with_weights)

    def forward(self, queries, items, *, with_weights=False):
        """Scores (b, m) of queries (b, width) with items (m, width) or (b, m, width)."""
        return self.combine(*self.encode_queries(queries), *self.encode_items(items), with_weights=with_weights)

    def form(self):
        """What a catalogue needs; it is asked with the components of queries."""
        return self.mixture.form()

    @torch.no_grad()
    def item_side(self, items):
        """Components of items, without dropout."""
        return self.mixture.item_side(self.components(torch.as_tensor(items)))
