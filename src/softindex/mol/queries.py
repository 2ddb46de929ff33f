"""The query side in NumPy, so that a served catalogue needs no torch: from queries to components and gates."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import as_array, check_queries
from softindex.errors import InputError
from softindex.mol.components import check_components
from softindex.mol.form import Form, QueryWeights
from softindex.records import Floats

__all__ = ["QuerySide", "encode"]

TINY = 1e-12
"""Shorter components are not stretched to length one: there is nothing to stretch."""


class QuerySide(NamedTuple):
    """What a similarity makes of queries."""

    components: Floats
    """(b, P_q, d)"""
    gates: Floats | None
    """(b, P), or None where the gate does not look at the query."""
    single: bool
    """Whether one query without a batch axis was given."""


def encode(form: Form, queries: Any, users: Any = None) -> QuerySide:
    """Components and gates of queries (b, D) or (D,); of a form without query weights, (b, P_q, d) or (P_q, d).

    users (b,): whole numbers from 0, for a similarity with a component for the user.
    """
    if form.query is None:
        return _given(form, queries, users)
    weights = form.query
    batch, single = check_queries(queries, weights.hidden.shape[1], owner="this similarity takes")
    known = _check_users(weights, users, len(batch))
    half = len(weights.hidden) // 2
    hidden = _times(batch, weights.hidden) + weights.hidden_bias
    made = _times(_silu(hidden[:, :half]) * hidden[:, half:], weights.out) + weights.out_bias
    components = made.reshape(len(batch), -1, form.component_dim)
    if known is not None:
        components = np.concatenate([components, known[:, None]], axis=1)
    if form.normalised:
        components = _normalise(components)
    gates = None
    if (gate := weights.gate) is not None:
        gates = _times(_silu(_times(batch, gate.first) + gate.first_bias), gate.second) + gate.second_bias
    _check_finite(components, gates)
    return QuerySide(
        np.ascontiguousarray(components, np.float32),
        None if gates is None else np.ascontiguousarray(gates, np.float32),
        single,
    )


def _given(form: Form, queries: Any, users: Any) -> QuerySide:
    if users is not None:
        raise InputError("users are given but this similarity has no component for them; leave users out.")
    array, parts = as_array(queries, "queries"), form.query_components
    # One component a query is a plain vector.
    if parts == 1 and array.ndim in (1, 2) and array.shape[-1] == form.component_dim:
        array = array[..., None, :]
    single = array.ndim == 2
    if single:
        array = array[None]
    if array.ndim != 3 or len(array) == 0 or array.shape[1:] != (parts, form.component_dim):
        raise InputError(
            f"queries have shape {np.shape(queries)}; expected components ({parts}, {form.component_dim}) of one query "
            f"or (b, {parts}, {form.component_dim}) of many."
        )
    return QuerySide(check_components(array, parts, form, "query"), None, single)


def _check_users(weights: QueryWeights, users: Any, b: int) -> Floats | None:
    """The components (b, d) of the users, or None where the similarity has none."""
    if weights.users is None:
        if users is not None:
            raise InputError("users are given but this similarity has no component for them; leave users out.")
        return None
    if users is None:
        raise InputError("this similarity has a component for the user; pass users, one whole number for each query.")
    numbers = as_array(users, "users").reshape(-1)
    if numbers.dtype.kind not in "iu" or len(numbers) != b or (numbers < 0).any():
        raise InputError(f"users must be {b} whole numbers from 0, one for each query; pass an array of integers.")
    return np.asarray(weights.users[numbers % len(weights.users)])


def _times(rows: Floats, weights: Floats) -> Floats:
    # One product per row: that of a whole matrix rounds otherwise for each size of the batch.
    return np.asarray(np.matmul(rows[:, None, :], weights.T)[:, 0])


def _silu(x: Floats) -> Floats:
    # exp overflows float32 above 88, and x / inf is the right zero.
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-x)))


def _normalise(components: Floats) -> Floats:
    lengths = np.linalg.norm(components, axis=-1, keepdims=True)
    return np.asarray(components / np.maximum(lengths, np.float32(TINY)))


def _check_finite(components: NDArray[Any], gates: NDArray[Any] | None) -> None:
    if not (np.isfinite(components).all() and (gates is None or np.isfinite(gates).all())):
        raise InputError("the query side of this similarity gives NaN or infinity; pass queries of the usual size.")
