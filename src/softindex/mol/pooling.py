"""Components of a text: aggregation tokens beside it, and learned pooling over the outputs of the encoder."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_choice, check_count
from softindex.errors import InputError

__all__ = ["ComponentPooling"]

OWN = 4.0
"""Initial preference of a component for the state of its own token."""


class ComponentPooling(nn.Module):
    """Pooling that turns the token states of any encoder into components of length one.

    `insert` puts the embeddings of aggregation tokens beside those of the text.  Each component is a weighted mean of
    the encoder's outputs for all tokens.  A small network computes the weights for each text:

    - weights="first", as published: it reads the state of the first aggregation token, and gives a weight for each
      component and position.
    - weights="own": it reads the state of each token, and gives its weight in each component, whatever its position.

    Args:
        dim: Dimensions of a token state.
        components: Number of components, and of aggregation tokens.
        component_dim: Dimensions of a component; None means `dim`.
        weights: Where the weights of the positions come from, see above.
        place: Aggregation tokens at the "front" of the text, or at its "end", for encoders that read from left to
            right only.
        max_length: Most positions of a text, aggregation tokens included; weights="first" has weights for as many.
        hidden: Width of the network that computes the weights.
    """

    def __init__(
        self,
        dim: int,
        components: int,
        component_dim: int | None = None,
        *,
        weights: Literal["first", "own"] = "first",
        place: Literal["front", "end"] = "front",
        max_length: int = 512,
        hidden: int = 128,
    ) -> None:
        super().__init__()
        self.components = check_count(components, "components")
        self.weights = check_choice(weights, "weights", ("first", "own"))
        self.place = check_choice(place, "place", ("front", "end"))
        self.max_length = check_count(max_length, "max_length")
        out = dim if component_dim is None else check_count(component_dim, "component_dim")
        self.tokens = nn.Parameter(0.02 * torch.randn(self.components, dim))
        outputs = self.components * (self.max_length if self.weights == "first" else 1)
        self.mixer = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, outputs))
        self.project = nn.Identity() if out == dim else nn.Linear(dim, out)

    def insert(self, embeddings: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and mask of the texts with the aggregation tokens before or right after them.

        Args:
            embeddings: Token embeddings, (b, s, dim).
            mask: (b, s), 0 for padding.

        Returns:
            Embeddings (b, components + s, dim) and mask (b, components + s).

        Raises:
            InputError: When the mask does not fit the embeddings, or a text becomes too long.
        """
        b = len(embeddings)
        if mask.shape != embeddings.shape[:2]:
            raise InputError(
                f"the mask has shape {tuple(mask.shape)} but the embeddings {tuple(embeddings.shape)}; pass a number "
                "for each token."
            )
        self._check_length(embeddings.shape[1] + self.components)
        tokens = self.tokens.expand(b, -1, -1).to(embeddings.dtype)
        ones = mask.new_ones(b, self.components)
        if self.place == "front":
            return torch.cat([tokens, embeddings], dim=1), torch.cat([ones, mask], dim=1)
        # Right after the last token of each text: padding comes after them, or before the text.
        at = _end_of_text(mask)[:, None] + torch.arange(self.components, device=mask.device)
        wide = torch.cat([embeddings, torch.zeros_like(tokens)], dim=1)
        wide = wide.scatter(1, at.unsqueeze(-1).expand_as(tokens), tokens)
        return wide, torch.cat([mask, torch.zeros_like(ones)], dim=1).scatter(1, at, ones)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return components of the texts.  Before training, each is close to the state of its own token.

        Args:
            states: Outputs of the encoder, (b, components + s, dim).
            mask: Mask from `insert`, (b, components + s), 0 for padding.

        Returns:
            Components (b, components, component_dim) of length one.

        Raises:
            InputError: When the mask does not fit the states, or a text is too long.
        """
        if mask.shape != states.shape[:2]:
            raise InputError(
                f"the mask has shape {tuple(mask.shape)} but the states have shape {tuple(states.shape)}; pass the "
                "mask that insert returned, which covers the aggregation tokens too."
            )
        b, length = mask.shape
        self._check_length(length)
        begin = torch.zeros(b, dtype=torch.int64, device=mask.device)
        if self.place == "end":
            begin = _end_of_text(mask) - self.components
        own = begin[:, None] + torch.arange(self.components, device=mask.device)
        if self.weights == "first":
            first = states[torch.arange(b, device=mask.device), begin]
            logits = self.mixer(first).unflatten(-1, (self.max_length, self.components))[:, :length]
        else:
            logits = self.mixer(states)
        positions = torch.arange(length, device=mask.device)
        logits = logits + OWN * (positions[:, None] == own[:, None, :]).to(logits.dtype)
        logits = logits.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf)
        pooled = torch.einsum("bsp,bsd->bpd", torch.softmax(logits, dim=1), states)
        return functional.normalize(self.project(pooled), dim=-1)

    def _check_length(self, length: int) -> None:
        if self.weights == "first" and length > self.max_length:
            raise InputError(
                f"there are {length} positions with the aggregation tokens but max_length is {self.max_length}; pass "
                "shorter texts, or a larger max_length."
            )


def _end_of_text(mask: Tensor) -> Tensor:
    """(b,) position after the last token that counts."""
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return torch.where(mask != 0, positions, 0).amax(dim=1)
