"""What a learned similarity is to a catalogue: its sizes, its temperature and its weights, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import as_array, check_count, check_temperature
from softindex.errors import InputError
from softindex.records import Floats, Json

__all__ = ["Form", "Gate", "ItemSide", "LearnedSimilarity", "QueryWeights", "form_arrays", "form_from_arrays"]

MAX_WEIGHT = 1e6
"""Of the weights: far beyond any trained model, and far from where float32 overflows."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The part of the gate that looks at the logits l (P,): w(l) = second silu(first l + first_bias) + second_bias."""

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
    """The query side of a mixture of logits, for queries (b, D).

    Components are out (silu(a) * c) + out_bias, where a and c are the halves of hidden q + hidden_bias; the query's
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
    """(g, D), or None where the gate does not look at the query."""
    gate_first_bias: Floats | None = None
    """(g,)"""
    gate_second: Floats | None = None
    """(P, g)"""
    gate_second_bias: Floats | None = None
    """(P,)"""
    users: Floats | None = None
    """(rows, d) the last component of user i is row i % rows; None where users are not told apart."""

    @property
    def gate(self) -> Gate | None:
        """The query's gate, whose layers are those of the gate on logits but for their input."""
        weights = (self.gate_first, self.gate_first_bias, self.gate_second, self.gate_second_bias)
        return None if any(part is None for part in weights) else Gate(*weights)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Form:
    """Everything of a similarity but its items.

    The score of a query and an item is a convex combination of their P = P_q P_x logits: dot products of components,
    divided by the temperature.  With a gate it is the mixture of logits; without one the mean, over the query's
    components, of the largest logit.
    """

    query_components: int
    item_components: int
    component_dim: int
    temperature: float
    normalised: bool
    """Whether components have length one."""
    gate: Gate | None
    query: QueryWeights | None
    """None where queries come as components (b, P_q, d)."""
    item_gates: bool
    """Whether items have gates v(x) (P,), and queries u(q), whose products the gate adds."""

    @property
    def pairs(self) -> int:
        """P, the number of pairs of components."""
        return self.query_components * self.item_components


class ItemSide(NamedTuple):
    """What a similarity makes of items: components (m, P_x, d) and gates (m, P), or None."""

    components: NDArray[Any]
    gates: NDArray[Any] | None


class LearnedSimilarity(Protocol):
    """What `softindex.mol.build` needs of a similarity; any object with these two methods will do."""

    def form(self) -> Form:
        """Its sizes, temperature and weights."""

    def item_side(self, items: Any) -> ItemSide:
        """Components and gates of some items, as NumPy arrays or torch tensors."""


def check_form(form: Any) -> Form:
    """Return the form with float32 weights; InputError where something does not fit."""
    if not isinstance(form, Form):
        raise InputError(f"form() of the similarity gave a {type(form).__name__}; return a softindex.mol.Form.")
    for name in ("query_components", "item_components", "component_dim"):
        check_count(getattr(form, name), name)
    pairs, gate = form.pairs, form.gate
    if gate is not None:
        hidden = _rows_of(gate.first, "first of the gate")
        gate = Gate(
            _weights(gate.first, (hidden, pairs), "first of the gate"),
            _weights(gate.first_bias, (hidden,), "first_bias of the gate"),
            _weights(gate.second, (pairs, hidden), "second of the gate"),
            _weights(gate.second_bias, (pairs,), "second_bias of the gate"),
        )
    if form.item_gates and gate is None:
        raise InputError("items have gates but the similarity has no gate; give the form a gate.")
    query = None if form.query is None else _check_query(form, form.query)
    return Form(
        form.query_components,
        form.item_components,
        form.component_dim,
        check_temperature(form.temperature),
        bool(form.normalised),
        gate,
        query,
        bool(form.item_gates),
    )


def _check_query(form: Form, given: QueryWeights) -> QueryWeights:
    if not isinstance(given, QueryWeights):
        raise InputError(f"query of the form is a {type(given).__name__}; make it a softindex.mol.QueryWeights.")
    half, width = _rows_of(given.hidden, "hidden") // 2, np.shape(given.hidden)[1]
    from_query = form.query_components - (given.users is not None)
    expected = {
        "hidden": (2 * half, width),
        "hidden_bias": (2 * half,),
        "out": (from_query * form.component_dim, half),
        "out_bias": (from_query * form.component_dim,),
    }
    if given.users is not None:
        expected["users"] = (_rows_of(given.users, "users"), form.component_dim)
    if (given.gate_first is not None) != form.item_gates:
        raise InputError("only one of queries and items has gates; give both or neither.")
    if given.gate_first is not None:
        size = _rows_of(given.gate_first, "gate_first")
        expected |= {
            "gate_first": (size, width),
            "gate_first_bias": (size,),
            "gate_second": (form.pairs, size),
            "gate_second_bias": (form.pairs,),
        }
    return QueryWeights(**{name: _weights(getattr(given, name), shape, name) for name, shape in expected.items()})


def _rows_of(values: Any, name: str) -> int:
    """The rows of a matrix of weights; InputError where it is none, or empty."""
    shape = np.shape(as_array(values, name))
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"{name} has shape {shape}; expected a matrix with at least one row.")
    return int(shape[0])


def _weights(values: Any, shape: tuple[int, ...], name: str) -> Floats:
    given = as_array(values, name)
    if given.dtype.kind not in "fiu":
        raise InputError(f"{name} is {given.dtype}; expected floats.")
    with np.errstate(over="ignore"):
        array = np.array(given, np.float32, order="C")
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape} but {shape} fits the components; export the same model.")
    if not (np.abs(array) <= MAX_WEIGHT).all():
        raise InputError(f"{name} holds NaN or numbers above {MAX_WEIGHT:.0e}; train it again, or mend it.")
    return array


def form_arrays(form: Form) -> tuple[Json, dict[str, NDArray[Any]]]:
    """Parameters and arrays that `form_from_arrays` makes the same form of."""
    facts = {
        "query_components": form.query_components,
        "item_components": form.item_components,
        "component_dim": form.component_dim,
        "temperature": form.temperature,
        "normalised": form.normalised,
        "item_gates": form.item_gates,
        "gate": form.gate is not None,
        "query": form.query is not None,
    }
    arrays: dict[str, NDArray[Any]] = {}
    for prefix, part in (("gate", form.gate), ("query", form.query)):
        for field in () if part is None else fields(part):
            value = getattr(part, field.name)
            if value is not None:
                arrays[f"{prefix}.{field.name}"] = value
    return facts, arrays


def form_from_arrays(facts: Json, arrays: Mapping[str, NDArray[Any]]) -> Form:
    """The form that was saved; KeyError, TypeError or ValueError (InputError is one) where it is not whole."""

    def part(prefix: str) -> dict[str, Any]:
        begin = f"{prefix}."
        return {name.removeprefix(begin): array for name, array in arrays.items() if name.startswith(begin)}

    return check_form(
        Form(
            int(facts["query_components"]),
            int(facts["item_components"]),
            int(facts["component_dim"]),
            float(facts["temperature"]),
            bool(facts["normalised"]),
            Gate(**part("gate")) if facts["gate"] else None,
            QueryWeights(**part("query")) if facts["query"] else None,
            bool(facts["item_gates"]),
        )
    )
