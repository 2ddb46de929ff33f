"""Components of a text: aggregation tokens before it, and a pooling over the encoder's outputs that is learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_count
from softindex.errors import InputError

__all__ = ["ComponentPooling"]


class ComponentPooling(nn.Module):
    """Turns the token states of any encoder into components of length one.

    The embeddings of `components` aggregation tokens go before those of the text (`prepend`); of the encoder's outputs
    for them and for the text, each component is a weighted mean, by weights that a small network reads off the example.
    """

    def __init__(self, dim: int, components: int, component_dim: int | None = None, *, hidden: int = 128) -> None:
        super().__init__()
        self.components = check_count(components, "components")
        out = dim if component_dim is None else check_count(component_dim, "component_dim")
        self.tokens = nn.Parameter(0.02 * torch.randn(self.components, dim))
        self.mixer = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, self.components))
        self.project = nn.Identity() if out == dim else nn.Linear(dim, out)

    def prepend(self, embeddings: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings (b, s, dim) and mask (b, s) of a text with the aggregation tokens before it."""
        b = len(embeddings)
        tokens = self.tokens.expand(b, -1, -1).to(embeddings.dtype)
        return torch.cat([tokens, embeddings], dim=1), torch.cat([mask.new_ones(b, self.components), mask], dim=1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Components (b, components, component_dim) of token states (b, components + s, dim) and mask, 0 for padding.

        At first every component is near its own token's state: the weights of the others grow as they learn to.
        """
        if mask.shape != states.shape[:2]:
            raise InputError(
                f"the mask has shape {tuple(mask.shape)} but the states {tuple(states.shape)}; pass the mask that "
                "prepend gave, which has the aggregation tokens too."
            )
        places = torch.arange(states.shape[1], device=states.device)
        own = (places[:, None] == torch.arange(self.components, device=states.device)).to(states.dtype)
        logits = self.mixer(states) + 4.0 * own
        logits = logits.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf)
        weights = torch.softmax(logits, dim=1)
        pooled = torch.einsum("bsp,bsd->bpd", weights, states)
        return functional.normalize(self.project(pooled), dim=-1)
