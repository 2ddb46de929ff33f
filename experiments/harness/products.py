"""Dot products with as many dimensions and parameters as a mixture of logits, for a fair comparison."""

import torch
from torch import nn
from torch.nn import functional

from softindex.mol import DotProduct


class GatedLayer(nn.Module):
    """SwiGLU: silu(A v) * (B v), then a linear layer, as on the query side of a mixture of logits."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.hidden, self.out = nn.Linear(inputs, 2 * hidden), nn.Linear(hidden, outputs)

    def forward(self, vectors):
        """Outputs (..., outputs) of vectors (..., inputs)."""
        first, second = self.hidden(vectors).chunk(2, dim=-1)
        return self.out(functional.silu(first) * second)

    @staticmethod
    def hidden_for(inputs, outputs, parameters):
        """The width with which a layer has this many parameters, as nearly as possible."""
        return max(1, round((parameters - outputs) / (2 * (inputs + 1) + outputs)))


class WideProduct(nn.Module):
    """Dot product or cosine of `rank` numbers: the encoder's own `width`, and more from a gated layer on each side.

    The first `width` numbers keep the plain dot product within reach.  The others come from layers that are not linear,
    so that the scores can have rank `rank`.  The layers have `parameters` parameters in total, as nearly as possible.
    """

    def __init__(self, width, *, rank, parameters, temperature=1.0, normalised=False):
        super().__init__()
        more = rank - width
        if more < 1:
            raise SystemExit(f"a product of rank {rank} needs vectors of fewer than {width} numbers; see --width.")
        # Every item passes through its layer in every step, so most parameters go to the side of the queries.  A layer
        # that is narrower than its output would limit the rank.
        self.item_more = GatedLayer(width, more, more)
        left = parameters - parameters_of(self.item_more)
        self.query_more = GatedLayer(width, GatedLayer.hidden_for(width, more, left), more)
        self.rank, self.temperature, self.normalised = rank, temperature, normalised

    def encode_queries(self, queries):
        """All numbers (..., rank) of queries (..., width), and no gates, as in `MixtureOfLogits`."""
        return self._scaled(torch.cat([queries, self.query_more(queries)], dim=-1)), None

    def encode_items(self, items):
        """The same for items."""
        return self._scaled(torch.cat([items, self.item_more(items)], dim=-1)), None

    def _scaled(self, vectors):
        return functional.normalize(vectors, dim=-1) if self.normalised else vectors

    def combine(self, queries, _query_gates, items, _item_gates):
        """Scores (b, m) of encoded queries (b, rank) and items (m, rank) or (b, m, rank)."""
        dots = queries @ items.T if items.dim() == 2 else torch.bmm(items, queries[..., None])[..., 0]
        return dots / self.temperature

    def forward(self, queries, items):
        """Scores (b, m) of queries (b, width) with items (m, width) or (b, m, width)."""
        return self.combine(*self.encode_queries(queries), *self.encode_items(items))

    def spec(self):
        """The specification for a MixtureIndex, which takes encoded queries."""
        return DotProduct(self.rank, temperature=self.temperature, normalised=self.normalised).spec()

    @torch.no_grad()
    def item_side(self, items):
        """The encoded items."""
        return DotProduct(self.rank).item_side(self.encode_items(torch.as_tensor(items))[0])


def parameters_of(module):
    """Number of parameters of a module."""
    return sum(weights.numel() for weights in module.parameters())
