"""A mixture of logits in which queries and items share one projection to components."""

import torch
from torch import nn

from softindex.mol import MixtureOfLogits

PREFERENCE = 3.0
"""Initial preference of the gate for pairs of equal components."""


class TiedMixture(nn.Module):
    """Queries and items use the same projections to components; the gate depends on the logits only.

    It starts as a mean of cosines: the projections are orthogonal, and the gate is constant and prefers pairs of equal
    components.  With learn_gate=False the gate does not learn.
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
            last.bias.copy_(PREFERENCE * torch.eye(components).flatten())
        self.mixture.requires_grad_(learn_gate)

    def components(self, vectors):
        """Components (..., components, component_dim) of vectors (..., width), not normalised yet."""
        return self.heads(vectors).unflatten(-1, (-1, self.mixture.component_dim))

    def encode_queries(self, queries):
        """Normalised components, and no gates, as in `MixtureOfLogits`."""
        return self.mixture.encode_queries(self.components(queries))

    def encode_items(self, items):
        """The same for items."""
        return self.mixture.encode_items(self.components(self.item_dropout(items)))

    def combine(self, *sides, with_weights=False):
        """Scores from the components of both sides."""
        return self.mixture.combine(*sides, with_weights=with_weights)

    def forward(self, queries, items, *, with_weights=False):
        """Scores (b, m) of queries (b, width) with items (m, width) or (b, m, width)."""
        return self.combine(*self.encode_queries(queries), *self.encode_items(items), with_weights=with_weights)

    def spec(self):
        """The specification for a MixtureIndex, which takes components as queries."""
        return self.mixture.spec()

    @torch.no_grad()
    def item_side(self, items):
        """Components of items without dropout."""
        return self.mixture.item_side(self.components(torch.as_tensor(items)))
