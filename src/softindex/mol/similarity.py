"""Learned similarities as torch modules: train them, then pass them to `softindex.mol.build`."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_count, check_temperature
from softindex.errors import InputError, show
from softindex.mol.dots import as_float32, as_tensor
from softindex.mol.spec import Gate, ItemSide, QueryWeights, SimilaritySpec

__all__ = ["MixtureOfLogits", "mutual_information_loss"]


def mutual_information_loss(weights: Tensor, positives: Tensor | None = None) -> Tensor:
    """Return a loss that is small where all pairs of components are used evenly and each choice is sharp.

    It is -H(p) + H(p | q, x): the entropy of the mean weights should be large, so that every pair learns; the entropy
    of the weights of one query and item should be small, so that the gate chooses.  Add it to the training loss with a
    weight of 0.001.

    Args:
        weights: Weights of the gate for the positive pairs, (..., P).
        positives: Targets of the queries, (...): pairs of a query whose target is -100 do not count.  Weights may have
            more axes than targets, for several items of a query.

    Returns:
        A scalar.

    Raises:
        InputError: When a dtype or a shape is wrong.
    """
    _check_tensor(weights, "weights")
    if not weights.is_floating_point() or not weights.dim() or not weights.shape[-1]:
        raise InputError(
            f"weights are {weights.dtype} of shape {tuple(weights.shape)}; expected floats (..., P), as a mixture "
            "gives them with with_weights=True."
        )
    if positives is not None:
        _check_integers(positives, "positives")
        if positives.shape != weights.shape[: positives.dim()] or positives.dim() == weights.dim():
            raise InputError(
                f"positives have shape {tuple(positives.shape)} but weights {tuple(weights.shape)}; expected one "
                "target for each query."
            )
        weights = weights[positives != IGNORED]
    flat = weights.reshape(-1, weights.shape[-1])
    if not len(flat):
        return weights.sum()
    return _entropy(flat).mean() - _entropy(flat.mean(dim=0))


def _entropy(weights: Tensor) -> Tensor:
    # log(0) has no gradient.  The log of the smallest float has one, and is multiplied by zero.
    return -(weights * weights.clamp(min=torch.finfo(weights.dtype).tiny).log()).sum(dim=-1)


IGNORED = -100
"""Target that does not count, as in torch."""


class _Dropouts(NamedTuple):
    item: float
    user: float
    weight: float


class MixtureOfLogits(nn.Module):
    """Mixture of logits: phi(q, x) = sum_p pi_p(q, x) <f_p(q), g_p(x)> / temperature, over P pairs of components.

    P = query_components * item_components.  All components have length one.  Query components come from
    SwiGLU(query_dim -> hidden) and a linear layer, item components from a linear layer.  The weights pi are the softmax
    of z sigmoid(z) with z = u(q) * v(x) + w(l); l are the logits, and u, v and w are networks of two layers with SiLU
    between them.  Dropout acts only in training; after dropout the weights pi are normalised again.

    With pairing="paired" this is the first form of the paper: component p of a query meets component p of an item only,
    P = query_components = item_components, and components keep their lengths.  An index of this form needs P times the
    memory per item, because it stores every component with zeros in the place of the others.  It takes queries that
    come as components side by side, (b, P * component_dim).

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
        pairing: "all" combines every component of a query with every one of an item, "paired" each with its own.
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
        pairing: Literal["all", "paired"] = "all",
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
        self.paired = _check_pairing(pairing, self.query_components, self.item_components, users)
        pairs = self.item_components if self.paired else self.query_components * self.item_components
        all_gates = gates == "all"
        self.query_gate = _two_layers(query_dim, gate_hidden, pairs) if all_gates and query_dim is not None else None
        self.item_gate = _two_layers(item_dim, gate_hidden, pairs) if all_gates and item_dim is not None else None
        self.logit_gate = _two_layers(pairs, gate_hidden, pairs)
        self.item_dropout, self.user_dropout = nn.Dropout(shares.item), nn.Dropout(shares.user)
        self.weight_dropout = nn.Dropout(shares.weight)

    def forward(
        self, queries: Tensor, items: Tensor, users: Tensor | None = None, *, with_weights: bool = False
    ) -> Any:
        """Return scores (..., m), and the weights of the pairs if requested.

        Args:
            queries: (..., D).
            items: (m, D), shared by all queries, or (..., m, D), separate for each query.
            users: (...) user numbers, or (b,) for queries (b, s, D), for a similarity with a user component.
            with_weights: Also return the weights pi (..., m, P), before dropout, for `mutual_information_loss`.

        Returns:
            Scores (..., m); with weights, a pair of scores and weights.

        Raises:
            InputError: When a dtype or a shape is wrong, or users are missing.
        """
        components, query_gates = self.encode_queries(queries, users)
        item_components, item_gates = self.encode_items(items)
        return self.combine(components, query_gates, item_components, item_gates, with_weights=with_weights)

    def encode_queries(self, queries: Tensor, users: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Components (..., P_q, d), of length one unless paired, and gates u (..., P), or None."""
        if (users is None) != (self.user_table is None):
            has, advice = ("a", "pass users") if users is None else ("no", "leave users out")
            raise InputError(f"this similarity has {has} user component; {advice}.")
        if self.query_hidden is None or self.query_out is None:
            self._check_given(queries, self.query_components, "queries")
            components = queries
        else:
            _check_width(queries, self.query_hidden, "queries")
            if users is not None:
                _check_users(users, queries.shape[:-1])
            first, second = self.query_hidden(queries).chunk(2, dim=-1)
            flat = self.query_out(functional.silu(first) * second)
            components = flat.unflatten(-1, (-1, self.component_dim))
        if users is not None and self.user_table is not None:
            last = self.user_dropout(self.user_table(users.long() % self.user_table.num_embeddings))
            while last.dim() < components.dim() - 1:
                last = last.unsqueeze(-2)
            last = last.expand(*components.shape[:-2], -1)
            components = torch.cat([components, last.unsqueeze(-2)], dim=-2)
        gates = None if self.query_gate is None else self.query_gate(queries)
        return self._scale(components), gates

    def encode_items(self, items: Tensor) -> tuple[Tensor, Tensor | None]:
        """Components (..., P_x, d), of length one unless paired, and gates v (..., P), or None."""
        return self._encode_items(items, self.item_dropout)

    def _encode_items(self, items: Tensor, dropout: nn.Module) -> tuple[Tensor, Tensor | None]:
        if self.item_out is None:
            self._check_given(items, self.item_components, "items")
            components = items
        else:
            _check_width(items, self.item_out, "items")
            components = self.item_out(dropout(items)).unflatten(-1, (self.item_components, self.component_dim))
        gates = None if self.item_gate is None else self.item_gate(items)
        return self._scale(components), gates

    def _scale(self, components: Tensor) -> Tensor:
        return components if self.paired else functional.normalize(components, dim=-1)

    def _check_given(self, components: Tensor, count: int, name: str) -> None:
        _check_tensor(components, name, " of components")
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
        """Scores (..., m) of encoded queries and items, and the weights if requested.

        Items have the leading axes of the queries or none, as in `forward`.
        """
        logits = self._dots(queries, items) / self.temperature
        z = self.logit_gate(logits)
        if query_gates is not None and item_gates is not None:
            z = z + query_gates.unsqueeze(-2) * item_gates
        weights = torch.softmax(functional.silu(z), dim=-1)
        used = weights
        if self.training and self.weight_dropout.p > 0:
            dropped = self.weight_dropout(weights)
            used = dropped / dropped.sum(dim=-1, keepdim=True).clamp(min=1e-6)
        scores = (used * logits).sum(dim=-1)
        return (scores, weights) if with_weights else scores

    def _dots(self, queries: Tensor, items: Tensor) -> Tensor:
        """(..., m, P) products of query components (..., P_q, d) with items (m, P_x, d) or (..., m, P_x, d)."""
        if items.dim() > 3 and items.shape[:-3] != queries.shape[:-2]:
            raise InputError(
                f"the items have shape {tuple(items.shape)} but the queries {tuple(queries.shape)}, as components; "
                "expected the same leading axes, or items shared by all queries."
            )
        if self.paired:
            return torch.einsum("...pd,mpd->...mp" if items.dim() == 3 else "...pd,...mpd->...mp", queries, items)
        if items.dim() > 3:
            return torch.einsum("...pd,...mrd->...mpr", queries, items).flatten(-2)
        # Shared items: one matrix product for the entire batch.
        dots = queries.flatten(0, -2) @ items.flatten(0, 1).T
        return dots.reshape(*queries.shape[:-1], *items.shape[:2]).transpose(-3, -2).flatten(-2)

    def spec(self) -> SimilaritySpec:
        """Sizes, temperature and weights, as `softindex.mol.build` needs them."""
        users = None if self.user_table is None else as_float32(self.user_table.weight)
        query = None
        if self.query_hidden is not None and self.query_out is not None:
            query = QueryWeights(
                as_float32(self.query_hidden.weight),
                as_float32(self.query_hidden.bias),
                as_float32(self.query_out.weight),
                as_float32(self.query_out.bias),
                **({} if self.query_gate is None else _named_gate(self.query_gate)),
                users=users,
            )
        if self.paired:
            # One query component, all side by side, meets each item component in its own place: see `_in_places`.
            sizes = (1, self.item_components, self.item_components * self.component_dim)
        else:
            sizes = (self.query_components, self.item_components, self.component_dim)
        return SimilaritySpec(
            *sizes,
            self.temperature,
            not self.paired,
            Gate(*_arrays(self.logit_gate)),
            query,
            self.item_gate is not None,
        )

    def item_side(self, items: Any) -> ItemSide:
        """Components and gates of items (m, D), without dropout."""
        weight = next(self.parameters())
        given = as_tensor(items).to(weight.device, weight.dtype)
        with torch.no_grad():
            # eval() would not do: another thread may be training this module.
            components, gates = self._encode_items(given, nn.Identity())
            # In half precision the lengths are farther from one than an index accepts.
            components = (
                _in_places(components.float()) if self.paired else functional.normalize(components.float(), dim=-1)
            )
            return ItemSide(as_float32(components), None if gates is None else as_float32(gates))


def _check_sides(query_dim: int | None, item_dim: int | None, *, gates: str, users: int | None) -> None:
    if gates not in ("all", "logits"):
        raise InputError(f"gates is {show(gates)}; expected 'all' or 'logits'.")
    if gates == "all" and (query_dim is None or item_dim is None):
        raise InputError("gates='all' needs query_dim and item_dim; pass both, or gates='logits'.")
    if users is not None and query_dim is None:
        raise InputError("users needs query_dim, but queries come with all of their components; leave users out.")


def _check_pairing(pairing: str, query_components: int, item_components: int, users: int | None) -> bool:
    """Whether components come in pairs; InputError where they cannot."""
    if pairing not in ("all", "paired"):
        raise InputError(f"pairing is {show(pairing)}; expected 'all' or 'paired'.")
    if pairing == "paired" and (query_components != item_components or users is not None):
        raise InputError(
            f"pairing='paired' needs as many query components as item components and no users, but there are "
            f"{query_components} and {item_components}{'' if users is None else ', and users'}."
        )
    return pairing == "paired"


def _in_places(components: Tensor) -> Tensor:
    """Components (m, P, d) as (m, P, P * d): component p fills the p-th of P places, and the others are zero."""
    m, count, d = components.shape
    wide = components.new_zeros(m, count, count, d)
    wide.diagonal(dim1=1, dim2=2).copy_(components.transpose(1, 2))
    return wide.flatten(2)


def _check_dropouts(shares: _Dropouts) -> _Dropouts:
    for name, share in shares._asdict().items():
        if not isinstance(share, Real) or isinstance(share, bool) or not 0 <= float(share) < 1:
            raise InputError(f"{name}_dropout is {show(share)}; expected a number of at least 0 and below 1.")
    return shares


def _check_tensor(values: Any, name: str, kind: str = "") -> None:
    if not isinstance(values, Tensor):
        raise InputError(f"the {name} are {show(values)}; expected a tensor{kind}.")


def _check_integers(values: Any, name: str) -> None:
    _check_tensor(values, name, " of integers")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise InputError(f"the {name} are {values.dtype}; expected a tensor of integers.")


def _check_users(users: Any, lead: torch.Size) -> None:
    """InputError unless there is a user for each query of the leading axes, or for each row of queries."""
    _check_integers(users, "users")
    if not users.dim() or users.shape != lead[: users.dim()]:
        several = f", or ({lead[0]},) for one user in each row of queries" if len(lead) > 1 else ""
        raise InputError(
            f"the users have shape {tuple(users.shape)}; expected {tuple(lead)}, one for each query{several}."
        )


def _check_width(rows: Any, layer: nn.Linear, name: str) -> None:
    _check_tensor(rows, name, " of vectors, such as the weight of a layer")
    if rows.dim() < 2 or rows.shape[-1] != layer.in_features:
        raise InputError(
            f"the {name} have shape {tuple(rows.shape)}; expected rows of {layer.in_features} numbers: encode them "
            "with the model that this similarity was trained with."
        )


def _two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))


def _named_gate(layers: nn.Sequential) -> dict[str, Any]:
    names = ("gate_first", "gate_first_bias", "gate_second", "gate_second_bias")
    return dict(zip(names, _arrays(layers), strict=True))


def _arrays(layers: nn.Sequential) -> tuple[Any, ...]:
    first, second = layers[0], layers[2]
    return as_float32(first.weight), as_float32(first.bias), as_float32(second.weight), as_float32(second.bias)
