"""Components of a text: aggregation tokens before or after it, and learned pooling over the encoder's outputs."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_choice, check_count
from softindex.errors import InputError, show

__all__ = ["ComponentPooling"]

OWN = 4.0
"""Initial preference of a component for the state of its own token."""


class ComponentPooling(nn.Module):
    """Pooling that turns the token states of any encoder into components of length one.

    `insert` puts the embeddings of aggregation tokens before or after those of the text.  Each component is a weighted
    mean of the encoder's outputs for all tokens.  A small network computes the weights for each text:

    - weights="first", as published: it reads the state of the first aggregation token, and gives a weight for each
      component and position.
    - weights="own": it reads the state of each token, and gives that token a weight in each component, whatever its
      position.

    Padding changes nothing, wherever it is and whatever its states are: positions count the other tokens only.

    Args:
        dim: Dimensions of a token state.
        components: Number of components, and of aggregation tokens.
        component_dim: Dimensions of a component; None means `dim`.
        weights: Where the weights of the positions come from, see above.
        place: Aggregation tokens at the "front" of the text, or at its "end", for encoders that read from left to
            right only.
        max_length: Largest number of tokens in a text, counting aggregation tokens but not padding.  Only
            weights="first" has this limit, because it has weights for that many positions.
        hidden: Width of the network that computes the weights.

    Raises:
        InputError: When a setting is invalid, or `max_length` has no room for the aggregation tokens.
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
        self.dim = check_count(dim, "dim")
        self.components = check_count(components, "components")
        self.weights = check_choice(weights, "weights", ("first", "own"))
        self.place = check_choice(place, "place", ("front", "end"))
        self.max_length = check_count(max_length, "max_length")
        width = check_count(hidden, "hidden")
        out = self.dim if component_dim is None else check_count(component_dim, "component_dim")
        if self.weights == "first" and self.components > self.max_length:
            raise InputError(
                f"there are {self.components} aggregation tokens but max_length is {self.max_length}; pass a larger "
                "max_length, or fewer components."
            )
        self.tokens = nn.Parameter(0.02 * torch.randn(self.components, self.dim))
        outputs = self.components * (self.max_length if self.weights == "first" else 1)
        self.mixer = nn.Sequential(nn.Linear(self.dim, width), nn.SiLU(), nn.Linear(width, outputs))
        self.project = nn.Identity() if out == self.dim else nn.Linear(self.dim, out)

    def insert(self, embeddings: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and mask of the texts with the aggregation tokens before or right after them.

        Args:
            embeddings: Token embeddings, (b, s, dim).
            mask: (b, s), 0 for padding.

        Returns:
            Embeddings (b, components + s, dim) and mask (b, components + s).

        Raises:
            InputError: When the embeddings have another width, the mask does not fit them, or a text becomes too long.
        """
        self._check(embeddings, mask, "embeddings", "pass a number for each token")
        b = len(embeddings)
        self._check_length((mask != 0).sum(dim=1) + self.components)
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
            InputError: When the states have another width, the mask does not fit them or lacks the aggregation tokens,
                or a text is too long.
        """
        advice = "pass the mask that insert returned, which covers the aggregation tokens too"
        self._check(states, mask, "states", advice)
        counted = mask != 0
        sizes = counted.sum(dim=1)
        self._check_tokens(sizes)
        self._check_length(sizes)
        # A weight of zero does not remove NaN.
        states = states.masked_fill(~counted.unsqueeze(-1), 0.0)
        positions = counted.cumsum(dim=1) - 1
        begin = sizes - self.components if self.place == "end" else torch.zeros_like(sizes)
        own = begin[:, None] + torch.arange(self.components, device=mask.device)
        logits = self._logits(states, positions, begin)
        logits = logits + OWN * (positions.unsqueeze(-1) == own[:, None, :]).to(logits.dtype)
        logits = logits.masked_fill(~counted.unsqueeze(-1), -torch.inf)
        pooled = torch.einsum("bsp,bsd->bpd", torch.softmax(logits, dim=1), states)
        return functional.normalize(self.project(pooled), dim=-1)

    def _logits(self, states: Tensor, positions: Tensor, begin: Tensor) -> Tensor:
        """(b, s, components) logits of the weights; `begin` (b,): position of the first aggregation token."""
        if self.weights == "own":
            own: Tensor = self.mixer(states)
            return own
        rows = torch.arange(len(states), device=states.device)
        # Padding repeats the position before it: the first place with a position is that of the token.
        first = states[rows, (positions == begin[:, None]).int().argmax(dim=1)]
        every: Tensor = self.mixer(first).unflatten(-1, (self.max_length, self.components))
        return every.take_along_dim(positions.clamp(min=0).unsqueeze(-1), dim=1)

    def _check(self, vectors: Any, mask: Any, name: str, advice: str) -> None:
        for what, given in ((name, vectors), ("mask", mask)):
            if not isinstance(given, Tensor):
                raise InputError(f"{what}: got {show(given)}; expected a tensor.")
        if vectors.dim() != 3 or vectors.shape[-1] != self.dim or not vectors.is_floating_point():
            raise InputError(
                f"the {name} are {vectors.dtype} of shape {tuple(vectors.shape)}; expected floats (b, s, {self.dim}), "
                f"{self.dim} for each token."
            )
        if mask.shape != vectors.shape[:2]:
            raise InputError(
                f"the mask has shape {tuple(mask.shape)} but the {name} have shape {tuple(vectors.shape)}; {advice}."
            )

    def _check_tokens(self, sizes: Tensor) -> None:
        # A compiled graph knows shapes only.
        if torch.compiler.is_compiling():
            return
        wrong = (sizes < self.components).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise InputError(
                f"row {row} of the mask counts {int(sizes[row])} tokens; expected at least the {self.components} "
                "aggregation tokens: pass the mask that insert returned."
            )

    def _check_length(self, sizes: Tensor) -> None:
        if self.weights == "own" or torch.compiler.is_compiling() or not len(sizes):
            return
        longest = int(sizes.max())
        if longest > self.max_length:
            raise InputError(
                f"a text has {longest} tokens with the aggregation tokens but max_length is {self.max_length}; pass "
                "shorter texts, or a larger max_length."
            )


def _end_of_text(mask: Tensor) -> Tensor:
    """(b,) position after the last token that counts; 0 for a text without tokens."""
    positions = torch.arange(mask.shape[1] + 1, device=mask.device)
    return torch.where(functional.pad(mask != 0, (1, 0)), positions, 0).amax(dim=1)
