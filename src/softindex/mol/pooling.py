"""Components of a text: aggregation tokens in front of it, and learned pooling over the outputs of the encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_count
from softindex.errors import InputError

__all__ = ["ComponentPooling"]


class ComponentPooling(nn.Module):
    """Pooling that turns the token states of any encoder into components of length one.

    `prepend` puts the embeddings of aggregation tokens in front of those of the text.  Each component is a weighted
    mean of the encoder's outputs for all tokens.  A small network computes the weights for each text.

    Args:
        dim: Dimensions of a token state.
        components: Number of components, and of aggregation tokens.
        component_dim: Dimensions of a component; None means `dim`.
        hidden: Width of the network that computes the weights.
    """

    def __init__(self, dim: int, components: int, component_dim: int | None = None, *, hidden: int = 128) -> None:
        super().__init__()
        self.components = check_count(components, "components")
        out = dim if component_dim is None else check_count(component_dim, "component_dim")
        self.tokens = nn.Parameter(0.02 * torch.randn(self.components, dim))
        self.mixer = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, self.components))
        self.project = nn.Identity() if out == dim else nn.Linear(dim, out)

    def prepend(self, embeddings: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and mask of the texts with the aggregation tokens in front.

        Args:
            embeddings: Token embeddings, (b, s, dim).
            mask: (b, s), 0 for padding.

        Returns:
            Embeddings (b, components + s, dim) and mask (b, components + s).
        """
        b = len(embeddings)
        tokens = self.tokens.expand(b, -1, -1).to(embeddings.dtype)
        return torch.cat([tokens, embeddings], dim=1), torch.cat([mask.new_ones(b, self.components), mask], dim=1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return components of the texts.  Before training, each is close to the state of its own token.

        Args:
            states: Outputs of the encoder, (b, components + s, dim).
            mask: Mask from `prepend`, (b, components + s), 0 for padding.

        Returns:
            Components (b, components, component_dim) of length one.

        Raises:
            InputError: When the mask does not fit the states.
        """
        if mask.shape != states.shape[:2]:
            raise InputError(
                f"the mask has shape {tuple(mask.shape)} but the states have shape {tuple(states.shape)}; pass the "
                "mask that prepend returned, which covers the aggregation tokens too."
            )
        tokens = torch.arange(states.shape[1], device=states.device)
        own = (tokens[:, None] == torch.arange(self.components, device=states.device)).to(states.dtype)
        logits = self.mixer(states) + 4.0 * own
        logits = logits.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf)
        weights = torch.softmax(logits, dim=1)
        pooled = torch.einsum("bsp,bsd->bpd", weights, states)
        return functional.normalize(self.project(pooled), dim=-1)
