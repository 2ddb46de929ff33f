"""Learned similarities as torch modules: what is trained, and what `softindex.mol.build` makes a catalogue of."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_count, check_temperature
from softindex.errors import InputError, show
from softindex.mol.form import Form, Gate, ItemSide, QueryWeights

__all__ = ["DotProduct", "MaxSim", "MixtureOfLogits", "mutual_information_loss"]


def mutual_information_loss(weights: Tensor) -> Tensor:
    """Return -H(p) + H(p | q, x) of the gate's weights (..., P), for the positive pairs: small where loads are even.

    The entropy of the mean weights is to be large, so that every pair of components learns; that of the weights of one
    query and item small, so that they choose.  Added to the training loss with a weight of 0.001.
    """
    flat = weights.reshape(-1, weights.shape[-1])
    return _entropy(flat).mean() - _entropy(flat.mean(dim=0))


def _entropy(weights: Tensor) -> Tensor:
    # The logarithm of a weight of zero has no gradient; that of the least float does, and is multiplied by zero.
    return -(weights * weights.clamp(min=torch.finfo(weights.dtype).tiny).log()).sum(dim=-1)


class MixtureOfLogits(nn.Module):
    """phi(q, x) = sum_p pi_p(q, x) <f_p(q), g_p(x)> / temperature over P = query_components * item_components pairs.

    - Query components: SwiGLU(query_dim -> hidden) and a linear layer; with `users`, the last one is looked up in a
      table of so many rows by the user's number, modulo the rows.
    - Item components: a linear layer.  All components have length one.
    - query_dim=None or item_dim=None: that side comes as components (b, query_components, component_dim) or
      (m, item_components, component_dim), as from `ComponentPooling`; then gates="logits".
    - Weights pi: the softmax of z sigmoid(z), z = u(q) * v(x) + w(l), each of u, v, w two layers with SiLU between;
      l are the logits.  gates="logits" leaves u and v out, as for text encoders.

    Dropouts act in training only: on items, on user components, and on pi, which is then normalised again.
    """

    def __init__(
        self,
        query_dim: int | None,
        item_dim: int | None,
        *,
        query_components: int,
        item_components: int,
        component_dim: int,
        temperature: float = 0.05,
        users: int | None = None,
        hidden: int = 512,
        gate_hidden: int = 128,
        gates: str = "all",
        item_dropout: float = 0.1,
        user_dropout: float = 0.5,
        weight_dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if gates not in ("all", "logits"):
            raise InputError(f"there are no gates {gates!r}; use 'all' or 'logits'.")
        if gates == "all" and (query_dim is None or item_dim is None):
            raise InputError("gates look at vectors but a side comes as components; pass gates='logits'.")
        if users is not None and query_dim is None:
            raise InputError("users have a component but queries come with all of theirs; leave users out.")
        counts = (query_components, item_components, component_dim)
        self.query_components, self.item_components, self.component_dim = (
            check_count(count, name)
            for count, name in zip(counts, ("query_components", "item_components", "component_dim"), strict=True)
        )
        self.temperature = check_temperature(temperature)
        for size, name in (
            (query_dim, "query_dim"),
            (item_dim, "item_dim"),
            (hidden, "hidden"),
            (gate_hidden, "gate_hidden"),
        ):
            if size is not None:
                check_count(size, name)
        for share, name in ((item_dropout, "item"), (user_dropout, "user"), (weight_dropout, "weight")):
            if not 0 <= share < 1:
                raise InputError(f"{name}_dropout is {share!r}; expected a number from 0 to below 1.")
        from_query = self.query_components - (users is not None)
        if from_query < 1:
            raise InputError("the user's component is the only one; ask for at least two query components.")
        pairs = self.query_components * self.item_components
        self.query_hidden = None if query_dim is None else nn.Linear(query_dim, 2 * hidden)
        self.query_out = None if query_dim is None else nn.Linear(hidden, from_query * self.component_dim)
        self.item_out = None if item_dim is None else nn.Linear(item_dim, self.item_components * self.component_dim)
        self.user_table = None if users is None else nn.Embedding(check_count(users, "users"), self.component_dim)
        looked_at = gates == "all"
        self.query_gate = _two_layers(query_dim, gate_hidden, pairs) if looked_at and query_dim is not None else None
        self.item_gate = _two_layers(item_dim, gate_hidden, pairs) if looked_at and item_dim is not None else None
        self.logit_gate = _two_layers(pairs, gate_hidden, pairs)
        self.item_dropout, self.user_dropout = nn.Dropout(item_dropout), nn.Dropout(user_dropout)
        self.weight_dropout = nn.Dropout(weight_dropout)

    def forward(
        self, queries: Tensor, items: Tensor, users: Tensor | None = None, *, with_weights: bool = False
    ) -> Any:
        """Return scores (b, m) of queries (b, D) with items (m, D), shared by all, or (b, m, D), of each query.

        with_weights: also the weights pi (b, m, P), before dropout, for `mutual_information_loss`.
        """
        components, query_gates = self.encode_queries(queries, users)
        item_components, item_gates = self.encode_items(items)
        return self.combine(components, query_gates, item_components, item_gates, with_weights=with_weights)

    def encode_queries(self, queries: Tensor, users: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Components (b, P_q, d) of length one and gates u (b, P), or None."""
        if (users is None) != (self.user_table is None):
            raise InputError("users are given exactly where the similarity has a component for them; see `users=`.")
        if self.query_hidden is None or self.query_out is None:
            self._check_given(queries, self.query_components, "queries")
            components = queries
        else:
            _check_width(queries, self.query_hidden, "queries")
            first, second = self.query_hidden(queries).chunk(2, dim=-1)
            made = self.query_out(functional.silu(first) * second)
            components = made.unflatten(-1, (-1, self.component_dim))
        if users is not None and self.user_table is not None:
            known = self.user_dropout(self.user_table(users % self.user_table.num_embeddings))
            components = torch.cat([components, known.unsqueeze(-2)], dim=-2)
        gates = None if self.query_gate is None else self.query_gate(queries)
        return functional.normalize(components, dim=-1), gates

    def encode_items(self, items: Tensor) -> tuple[Tensor, Tensor | None]:
        """Components (..., P_x, d) of length one and gates v (..., P), or None."""
        return self._encode_items(items, self.item_dropout)

    def _encode_items(self, items: Tensor, dropout: nn.Module) -> tuple[Tensor, Tensor | None]:
        if self.item_out is None:
            self._check_given(items, self.item_components, "items")
            components = items
        else:
            _check_width(items, self.item_out, "items")
            components = self.item_out(dropout(items)).unflatten(-1, (self.item_components, self.component_dim))
        gates = None if self.item_gate is None else self.item_gate(items)
        return functional.normalize(components, dim=-1), gates

    def _check_given(self, components: Tensor, parts: int, name: str) -> None:
        if components.dim() < 3 or components.shape[-2:] != (parts, self.component_dim):
            raise InputError(
                f"the {name} have shape {tuple(components.shape)}; expected components "
                f"(..., {parts}, {self.component_dim}), as this similarity was made without their dimension."
            )

    def combine(
        self,
        queries: Tensor,
        query_gates: Tensor | None,
        items: Tensor,
        item_gates: Tensor | None,
        *,
        with_weights: bool = False,
    ) -> Any:
        """Scores (b, m) of components, and the weights where they are wanted; items with or without a batch axis."""
        if items.dim() == 3:
            # Shared items: one product of matrices for the whole batch.
            dots = queries.flatten(0, 1) @ items.flatten(0, 1).T
            dots = dots.reshape(*queries.shape[:2], *items.shape[:2]).transpose(1, 2)
        else:
            dots = torch.einsum("bpd,bmrd->bmpr", queries, items)
        logits = dots.flatten(-2) / self.temperature
        z = self.logit_gate(logits)
        if query_gates is not None and item_gates is not None:
            z = z + query_gates.unsqueeze(1) * item_gates
        weights = torch.softmax(functional.silu(z), dim=-1)
        used = weights
        if self.training and self.weight_dropout.p > 0:
            dropped = self.weight_dropout(weights)
            used = dropped / dropped.sum(dim=-1, keepdim=True).clamp(min=1e-6)
        scores = (used * logits).sum(dim=-1)
        return (scores, weights) if with_weights else scores

    def form(self) -> Form:
        """What a catalogue needs of it, without torch."""
        second = _arrays(self.logit_gate)
        users = None if self.user_table is None else _array(self.user_table.weight)
        query = None
        if self.query_hidden is not None and self.query_out is not None:
            query = QueryWeights(
                _array(self.query_hidden.weight),
                _array(self.query_hidden.bias),
                _array(self.query_out.weight),
                _array(self.query_out.bias),
                **({} if self.query_gate is None else _named_gate(self.query_gate)),
                users=users,
            )
        return Form(
            self.query_components,
            self.item_components,
            self.component_dim,
            self.temperature,
            True,
            Gate(*second),
            query,
            self.item_gate is not None,
        )

    def item_side(self, items: Any) -> ItemSide:
        """Components and gates of items (m, D), without dropout."""
        weight = next(self.parameters())
        given = _tensor(items).to(weight.device, weight.dtype)
        with torch.no_grad():
            # Not by eval(): another thread may be training the same module.
            components, gates = self._encode_items(given, nn.Identity())
            # In half precision lengths are off by more than a catalogue allows.
            components = functional.normalize(components.float(), dim=-1)
            return ItemSide(_array(components), None if gates is None else _array(gates))


class DotProduct(nn.Module):
    """<q, x> / temperature, with components as they are given; normalised: the cosine."""

    def __init__(self, dim: int, *, temperature: float = 1.0, normalised: bool = False) -> None:
        super().__init__()
        self.dim, self.temperature, self.normalised = (
            check_count(dim, "dim"),
            check_temperature(temperature),
            normalised,
        )

    def forward(self, queries: Tensor, items: Tensor, users: Tensor | None = None) -> Tensor:
        """Return scores (b, m) of queries (b, d) with items (m, d), shared by all, or (b, m, d), of each query."""
        if self.normalised:
            queries, items = functional.normalize(queries, dim=-1), functional.normalize(items, dim=-1)
        dots = queries @ items.T if items.dim() == 2 else torch.einsum("bd,bmd->bm", queries, items)
        return dots / self.temperature

    def form(self) -> Form:
        """One component each, and no gate."""
        return Form(1, 1, self.dim, self.temperature, self.normalised, None, None, False)

    def item_side(self, items: Any) -> ItemSide:
        """Items (m, d) as components (m, 1, d)."""
        given = _tensor(items).float()
        return ItemSide(_array(functional.normalize(given, dim=-1) if self.normalised else given)[:, None], None)


class MaxSim(nn.Module):
    """sum_p max_r <q_p, x_r> / temperature: each of the query's vectors finds the nearest of the item's."""

    def __init__(
        self, query_components: int, item_components: int, component_dim: int, *, temperature: float = 1.0
    ) -> None:
        super().__init__()
        self.query_components = check_count(query_components, "query_components")
        self.item_components = check_count(item_components, "item_components")
        self.component_dim = check_count(component_dim, "component_dim")
        self.temperature = check_temperature(temperature)

    def forward(self, queries: Tensor, items: Tensor, users: Tensor | None = None) -> Tensor:
        """Return scores (b, m) of queries (b, P_q, d) with items (m, P_x, d), or (b, m, P_x, d) of each query."""
        pattern = "bpd,mrd->bmpr" if items.dim() == 3 else "bpd,bmrd->bmpr"
        dots = torch.einsum(pattern, functional.normalize(queries, dim=-1), functional.normalize(items, dim=-1))
        return dots.amax(dim=-1).sum(dim=-1) / self.temperature

    def form(self) -> Form:
        """No gate: the mean over the query's components, at a temperature so many times smaller, is their sum."""
        temperature = self.temperature / self.query_components
        return Form(
            self.query_components, self.item_components, self.component_dim, temperature, True, None, None, False
        )

    def item_side(self, items: Any) -> ItemSide:
        """Items (m, P_x, d) as components of length one."""
        return ItemSide(_array(functional.normalize(_tensor(items).float(), dim=-1)), None)


def _check_width(rows: Tensor, layer: nn.Linear, name: str) -> None:
    if rows.dim() < 2 or rows.shape[-1] != layer.in_features:
        raise InputError(
            f"the {name} have shape {tuple(rows.shape)}; expected rows of {layer.in_features} numbers: encode them "
            "with the model that this similarity was made for."
        )


def _tensor(items: Any) -> Tensor:
    try:
        return torch.as_tensor(items)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"items are {show(items)}; expected an array or a tensor of numbers.") from error


def _two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))


def _array(tensor: Any) -> Any:
    return tensor.detach().to("cpu", torch.float32).numpy().astype(np.float32)


def _named_gate(layers: nn.Sequential) -> dict[str, Any]:
    names = ("gate_first", "gate_first_bias", "gate_second", "gate_second_bias")
    return dict(zip(names, _arrays(layers), strict=True))


def _arrays(layers: nn.Sequential) -> tuple[Any, ...]:
    first, second = layers[0], layers[2]
    return _array(first.weight), _array(first.bias), _array(second.weight), _array(second.bias)
