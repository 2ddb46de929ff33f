"""Learned similarities as torch modules: train them, then pass them to `softindex.mol.build`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_count, check_temperature
from softindex.errors import InputError, show
from softindex.mol.spec import Gate, ItemSide, QueryWeights, SimilaritySpec

__all__ = ["DotProduct", "MaxSim", "MixtureOfLogits", "mutual_information_loss"]


def mutual_information_loss(weights: Tensor) -> Tensor:
    """Return a loss that is small where all pairs of components are used evenly and each choice is sharp.

    It is -H(p) + H(p | q, x): the entropy of the mean weights should be large, so that every pair learns; the entropy
    of the weights of one query and item should be small, so that the gate chooses.  Add it to the training loss with a
    weight of 0.001.

    Args:
        weights: Weights of the gate for the positive pairs, (..., P).

    Returns:
        A scalar.
    """
    flat = weights.reshape(-1, weights.shape[-1])
    return _entropy(flat).mean() - _entropy(flat.mean(dim=0))


def _entropy(weights: Tensor) -> Tensor:
    # log(0) has no gradient.  The log of the smallest float has one, and is multiplied by zero.
    return -(weights * weights.clamp(min=torch.finfo(weights.dtype).tiny).log()).sum(dim=-1)


class _Dropouts(NamedTuple):
    item: float
    user: float
    weight: float


class MixtureOfLogits(nn.Module):
    """Mixture of logits: phi(q, x) = sum_p pi_p(q, x) <f_p(q), g_p(x)> / temperature, over P pairs of components.

    P = query_components * item_components.  All components have length one.  Query components come from
    SwiGLU(query_dim -> hidden) and a linear layer, item components from a linear layer.  The weights pi are the softmax
    of z sigmoid(z) with z = u(q) * v(x) + w(l); l are the logits, and u, v and w are two layers each with SiLU between
    them.  Dropout acts in training only; after dropout the weights pi are normalised again.

    Args:
        query_dim: Dimensions of a query.  None: queries come as components (b, query_components, component_dim), for
            example from `ComponentPooling`.
        item_dim: Dimensions of an item.  None: items come as components (m, item_components, component_dim).
        query_components: Number of components of a query.
        item_components: Number of components of an item.
        component_dim: Dimensions of a component.
        temperature: Divides the dot products.
        users: Number of rows of a table that holds the last query component; user i gets row i modulo the rows.  None:
            no user component.
        hidden: Width of the query side.
        gate_hidden: Width of the gates.
        gates: "all", or "logits" to leave out u and v, as for text encoders and where a side comes as components.
        item_dropout: Dropout of the item vectors.
        user_dropout: Dropout of the user components.
        weight_dropout: Dropout of the weights pi.

    Raises:
        InputError: When a setting is invalid, or settings do not fit each other.
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
        gates: Literal["all", "logits"] = "all",
        item_dropout: float = 0.1,
        user_dropout: float = 0.5,
        weight_dropout: float = 0.2,
    ) -> None:
        super().__init__()
        _check_sides(query_dim, item_dim, gates=gates, users=users)
        self.query_components = check_count(query_components, "query_components")
        self.item_components = check_count(item_components, "item_components")
        self.component_dim = check_count(component_dim, "component_dim")
        self.temperature = check_temperature(temperature)
        for size, name in ((query_dim, "query_dim"), (item_dim, "item_dim")):
            if size is not None:
                check_count(size, name)
        check_count(hidden, "hidden")
        check_count(gate_hidden, "gate_hidden")
        shares = _check_dropouts(_Dropouts(item_dropout, user_dropout, weight_dropout))
        from_query = self.query_components - (users is not None)
        if from_query < 1:
            raise InputError(
                "the user component would be the only query component; pass query_components of at least 2."
            )
        # The order in which layers are made decides which random numbers they start from.
        self.query_hidden = None if query_dim is None else nn.Linear(query_dim, 2 * hidden)
        self.query_out = None if query_dim is None else nn.Linear(hidden, from_query * self.component_dim)
        self.item_out = None if item_dim is None else nn.Linear(item_dim, self.item_components * self.component_dim)
        self.user_table = None if users is None else nn.Embedding(check_count(users, "users"), self.component_dim)
        pairs, all_gates = self.query_components * self.item_components, gates == "all"
        self.query_gate = _two_layers(query_dim, gate_hidden, pairs) if all_gates and query_dim is not None else None
        self.item_gate = _two_layers(item_dim, gate_hidden, pairs) if all_gates and item_dim is not None else None
        self.logit_gate = _two_layers(pairs, gate_hidden, pairs)
        self.item_dropout, self.user_dropout = nn.Dropout(shares.item), nn.Dropout(shares.user)
        self.weight_dropout = nn.Dropout(shares.weight)

    def forward(
        self, queries: Tensor, items: Tensor, users: Tensor | None = None, *, with_weights: bool = False
    ) -> Any:
        """Return scores (b, m), and the weights of the pairs if requested.

        Args:
            queries: (b, D).
            items: (m, D), shared by all queries, or (b, m, D), separate for each query.
            users: (b,) user numbers, for a similarity with a user component.
            with_weights: Also return the weights pi (b, m, P), before dropout, for `mutual_information_loss`.

        Returns:
            Scores (b, m); with weights, a pair of scores and weights.
        """
        components, query_gates = self.encode_queries(queries, users)
        item_components, item_gates = self.encode_items(items)
        return self.combine(components, query_gates, item_components, item_gates, with_weights=with_weights)

    def encode_queries(self, queries: Tensor, users: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Components (b, P_q, d) of length one and gates u (b, P), or None."""
        if (users is None) != (self.user_table is None):
            has, advice = ("a", "pass users") if users is None else ("no", "leave users out")
            raise InputError(f"this similarity has {has} user component; {advice}.")
        if self.query_hidden is None or self.query_out is None:
            self._check_given(queries, self.query_components, "queries")
            components = queries
        else:
            _check_width(queries, self.query_hidden, "queries")
            first, second = self.query_hidden(queries).chunk(2, dim=-1)
            flat = self.query_out(functional.silu(first) * second)
            components = flat.unflatten(-1, (-1, self.component_dim))
        if users is not None and self.user_table is not None:
            last = self.user_dropout(self.user_table(users % self.user_table.num_embeddings))
            components = torch.cat([components, last.unsqueeze(-2)], dim=-2)
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

    def _check_given(self, components: Tensor, count: int, name: str) -> None:
        if components.dim() < 3 or components.shape[-2:] != (count, self.component_dim):
            raise InputError(
                f"the {name} have shape {tuple(components.shape)}; expected components "
                f"(..., {count}, {self.component_dim}): this similarity has no layers that make them."
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
        """Scores (b, m) of encoded queries and items, and the weights if requested.

        Items have a batch axis or not, as in `forward`.
        """
        if items.dim() == 3:
            # Shared items: one matrix product for the entire batch.
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

    def spec(self) -> SimilaritySpec:
        """Sizes, temperature and weights, as `softindex.mol.build` needs them."""
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
        return SimilaritySpec(
            self.query_components,
            self.item_components,
            self.component_dim,
            self.temperature,
            True,
            Gate(*_arrays(self.logit_gate)),
            query,
            self.item_gate is not None,
        )

    def item_side(self, items: Any) -> ItemSide:
        """Components and gates of items (m, D), without dropout."""
        weight = next(self.parameters())
        given = _tensor(items).to(weight.device, weight.dtype)
        with torch.no_grad():
            # eval() would not do: another thread may be training this module.
            components, gates = self._encode_items(given, nn.Identity())
            # In half precision the lengths are farther from one than an index accepts.
            components = functional.normalize(components.float(), dim=-1)
            return ItemSide(_array(components), None if gates is None else _array(gates))


class DotProduct(nn.Module):
    """Dot product <q, x> / temperature, or cosine / temperature.

    Args:
        dim: Dimensions of queries and items.
        temperature: Divides the dot products.
        normalised: Scale queries and items to length one first, which gives the cosine.
    """

    def __init__(self, dim: int, *, temperature: float = 1.0, normalised: bool = False) -> None:
        super().__init__()
        self.dim, self.temperature = check_count(dim, "dim"), check_temperature(temperature)
        self.normalised = normalised

    def forward(self, queries: Tensor, items: Tensor, users: Tensor | None = None) -> Tensor:
        """Return scores (b, m) of queries (b, d) and items (m, d), shared by all queries, or (b, m, d)."""
        if self.normalised:
            queries, items = functional.normalize(queries, dim=-1), functional.normalize(items, dim=-1)
        dots = queries @ items.T if items.dim() == 2 else torch.einsum("bd,bmd->bm", queries, items)
        return dots / self.temperature

    def spec(self) -> SimilaritySpec:
        """One component on each side, and no gate."""
        return SimilaritySpec(1, 1, self.dim, self.temperature, self.normalised, None, None, False)

    def item_side(self, items: Any) -> ItemSide:
        """Items (m, d) as components (m, 1, d)."""
        given = _tensor(items).float()
        return ItemSide(_array(functional.normalize(given, dim=-1) if self.normalised else given)[:, None], None)


class MaxSim(nn.Module):
    """MaxSim: sum_p max_r <q_p, x_r> / temperature.  Each query vector is matched with the nearest item vector.

    Args:
        query_components: Number of vectors of a query.
        item_components: Number of vectors of an item.
        component_dim: Dimensions of a vector.
        temperature: Divides the sum.
    """

    def __init__(
        self, query_components: int, item_components: int, component_dim: int, *, temperature: float = 1.0
    ) -> None:
        super().__init__()
        self.query_components = check_count(query_components, "query_components")
        self.item_components = check_count(item_components, "item_components")
        self.component_dim = check_count(component_dim, "component_dim")
        self.temperature = check_temperature(temperature)

    def forward(self, queries: Tensor, items: Tensor, users: Tensor | None = None) -> Tensor:
        """Return scores (b, m) of queries (b, P_q, d) and items (m, P_x, d), shared by all, or (b, m, P_x, d)."""
        pattern = "bpd,mrd->bmpr" if items.dim() == 3 else "bpd,bmrd->bmpr"
        dots = torch.einsum(pattern, functional.normalize(queries, dim=-1), functional.normalize(items, dim=-1))
        return dots.amax(dim=-1).sum(dim=-1) / self.temperature

    def spec(self) -> SimilaritySpec:
        """No gate.  A sum over P_q components is their mean at a temperature P_q times smaller."""
        temperature = self.temperature / self.query_components
        return SimilaritySpec(
            self.query_components, self.item_components, self.component_dim, temperature, True, None, None, False
        )

    def item_side(self, items: Any) -> ItemSide:
        """Items (m, P_x, d) as components of length one."""
        return ItemSide(_array(functional.normalize(_tensor(items).float(), dim=-1)), None)


def _check_sides(query_dim: int | None, item_dim: int | None, *, gates: str, users: int | None) -> None:
    if gates not in ("all", "logits"):
        raise InputError(f"gates is {show(gates)}; expected 'all' or 'logits'.")
    if gates == "all" and (query_dim is None or item_dim is None):
        raise InputError("gates='all' needs query_dim and item_dim; pass both, or gates='logits'.")
    if users is not None and query_dim is None:
        raise InputError("users needs query_dim, but queries come with all of their components; leave users out.")


def _check_dropouts(shares: _Dropouts) -> _Dropouts:
    for name, share in shares._asdict().items():
        if not 0 <= share < 1:
            raise InputError(f"{name}_dropout is {show(share)}; expected a number of at least 0 and below 1.")
    return shares


def _check_width(rows: Tensor, layer: nn.Linear, name: str) -> None:
    if rows.dim() < 2 or rows.shape[-1] != layer.in_features:
        raise InputError(
            f"the {name} have shape {tuple(rows.shape)}; expected rows of {layer.in_features} numbers: encode them "
            "with the model that this similarity was trained with."
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
