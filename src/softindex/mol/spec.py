"""SimilaritySpec: the sizes, temperature and weights of a learned similarity, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import as_array, check_count, check_temperature
from softindex.errors import InputError
from softindex.records import Floats

__all__ = ["Gate", "ItemSide", "LearnedSimilarity", "QueryWeights", "SimilaritySpec", "check_spec"]

MAX_WEIGHT = 1e6
"""Limit on the size of a weight: far above those of any trained model, far below the overflow of float32."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Gate on the logits l (P,): w(l) = second silu(first l + first_bias) + second_bias."""

    first: Floats
    """(h, P)"""
    first_bias: Floats
    """(h,)"""
    second: Floats
    """(P, h)"""
    second_bias: Floats
    """(P,)"""


@dataclass(frozen=True, slots=True)
class QueryWeights:
    """Query side of a mixture of logits, for queries (b, D).

    Components are out (silu(a) * c) + out_bias, where a and c are the halves of hidden q + hidden_bias.  The query's
    gate is u = second silu(first q + first_bias) + second_bias.
    """

    hidden: Floats
    """(2 h, D)"""
    hidden_bias: Floats
    """(2 h,)"""
    out: Floats
    """(components from the query * d, h)"""
    out_bias: Floats
    """(components from the query * d,)"""
    gate_first: Floats | None = None
    """(g, D); None where the gate does not depend on the query."""
    gate_first_bias: Floats | None = None
    """(g,)"""
    gate_second: Floats | None = None
    """(P, g)"""
    gate_second_bias: Floats | None = None
    """(P,)"""
    users: Floats | None = None
    """(rows, d) the last component of user i is row i % rows; None where there is no user component."""

    @property
    def gate(self) -> Gate | None:
        """The query's gate.  It has the layers of the gate on logits, with the query as input."""
        weights = (self.gate_first, self.gate_first_bias, self.gate_second, self.gate_second_bias)
        return None if any(values is None for values in weights) else Gate(*weights)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SimilaritySpec:
    """Everything about a similarity except its items.

    The score of a query and an item is a convex combination of their P = P_q P_x logits.  A logit is the dot product
    of a query component and an item component, divided by the temperature.  With a gate this is the mixture of logits.
    Without one it is the mean, over the query's components, of the largest logit.
    """

    query_components: int
    """P_q, the number of components of a query."""
    item_components: int
    """P_x, the number of components of an item."""
    component_dim: int
    """d, the dimensions of a component."""
    temperature: float
    """Divides the dot products."""
    normalised: bool
    """Whether components have length one."""
    gate: Gate | None
    """Gate on the logits, or None."""
    query: QueryWeights | None
    """Query side; None where queries come as components (b, P_q, d)."""
    item_gates: bool
    """Whether items have gates v(x) (P,) and queries have gates u(q) (P,); the gate adds their product."""

    @property
    def pairs(self) -> int:
        """P, the number of pairs of components."""
        return self.query_components * self.item_components


class ItemSide(NamedTuple):
    """Items as a similarity encodes them."""

    components: NDArray[Any]
    """(m, P_x, d)"""
    gates: NDArray[Any] | None
    """(m, P); None where items have no gates."""


class LearnedSimilarity(Protocol):
    """Interface that `softindex.mol.build` expects.  Any object with these two methods will do."""

    def spec(self) -> SimilaritySpec:
        """Sizes, temperature and weights of the similarity."""

    def item_side(self, items: Any) -> ItemSide:
        """Components and gates of the items, as NumPy arrays or torch tensors."""


def check_spec(spec: Any) -> SimilaritySpec:
    """Return the spec with float32 weights; InputError where its parts do not fit each other."""
    if not isinstance(spec, SimilaritySpec):
        raise InputError(
            f"spec() of the similarity returned a {type(spec).__name__}; return a softindex.mol.SimilaritySpec."
        )
    for name in ("query_components", "item_components", "component_dim"):
        check_count(getattr(spec, name), name)
    gate = None if spec.gate is None else _check_gate(spec.gate, spec.pairs)
    if spec.item_gates and gate is None:
        raise InputError("item_gates is True but the spec has no gate; pass a gate, or set item_gates to False.")
    return SimilaritySpec(
        spec.query_components,
        spec.item_components,
        spec.component_dim,
        check_temperature(spec.temperature),
        bool(spec.normalised),
        gate,
        None if spec.query is None else _check_query(spec, spec.query),
        bool(spec.item_gates),
    )


def _check_gate(gate: Gate, pairs: int) -> Gate:
    hidden = _row_count(gate.first, "first of the gate")
    return Gate(
        _weights(gate.first, (hidden, pairs), "first of the gate"),
        _weights(gate.first_bias, (hidden,), "first_bias of the gate"),
        _weights(gate.second, (pairs, hidden), "second of the gate"),
        _weights(gate.second_bias, (pairs,), "second_bias of the gate"),
    )


def _check_query(spec: SimilaritySpec, query: QueryWeights) -> QueryWeights:
    if not isinstance(query, QueryWeights):
        raise InputError(f"query of the spec is a {type(query).__name__}; pass a softindex.mol.QueryWeights.")
    half, width = _row_count(query.hidden, "hidden") // 2, np.shape(query.hidden)[1]
    from_query = spec.query_components - (query.users is not None)
    shapes = {
        "hidden": (2 * half, width),
        "hidden_bias": (2 * half,),
        "out": (from_query * spec.component_dim, half),
        "out_bias": (from_query * spec.component_dim,),
    }
    if query.users is not None:
        shapes["users"] = (_row_count(query.users, "users"), spec.component_dim)
    if (query.gate_first is not None) != spec.item_gates:
        raise InputError("only one of queries and items has gates; give gates to both or to neither.")
    if query.gate_first is not None:
        size = _row_count(query.gate_first, "gate_first")
        shapes |= {
            "gate_first": (size, width),
            "gate_first_bias": (size,),
            "gate_second": (spec.pairs, size),
            "gate_second_bias": (spec.pairs,),
        }
    return QueryWeights(**{name: _weights(getattr(query, name), shape, name) for name, shape in shapes.items()})


def _row_count(values: Any, name: str) -> int:
    """Number of rows of a weight matrix; InputError if it is empty or not a matrix."""
    shape = np.shape(as_array(values, name))
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"{name} has shape {shape}; expected a matrix with at least one row and one column.")
    return int(shape[0])


def _weights(values: Any, shape: tuple[int, ...], name: str) -> Floats:
    given = as_array(values, name)
    if given.dtype.kind not in "fiu":
        raise InputError(f"{name} is {given.dtype}; expected floats: pass a float32 array.")
    with np.errstate(over="ignore"):
        array = np.array(given, np.float32, order="C")
    if array.shape != shape:
        raise InputError(
            f"{name} has shape {array.shape}; the components need {shape}: export all weights from the same model."
        )
    if not (np.abs(array) <= MAX_WEIGHT).all():
        raise InputError(
            f"{name} has NaN or a number above {MAX_WEIGHT:.0e}; expected finite weights: fix the model or retrain it."
        )
    return array
