"""Query side of a similarity in NumPy: turns queries into components and gates, so that serving needs no torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import as_array, check_queries
from softindex.errors import InputError
from softindex.mol.components import check_components
from softindex.mol.spec import QueryWeights, SimilaritySpec
from softindex.records import Floats

__all__ = ["QuerySide", "encode"]

TINY = 1e-12
"""Components shorter than this are not scaled to length one: they have no direction."""


class QuerySide(NamedTuple):
    """Queries as a similarity encodes them."""

    components: Floats
    """(b, P_q, d)"""
    gates: Floats | None
    """(b, P); None where the gate does not depend on the query."""
    single: bool
    """Whether the caller passed one query without a batch axis."""


def encode(spec: SimilaritySpec, queries: Any, users: Any = None) -> QuerySide:
    """Components and gates of queries (b, D) or (D,); without query weights, queries are (b, P_q, d) or (P_q, d).

    users (b,): user numbers from 0, for a similarity with a user component.
    """
    if spec.query is None:
        return _given_components(spec, queries, users)
    weights = spec.query
    batch, single = check_queries(queries, weights.hidden.shape[1], owner="this similarity takes")
    user_components = _user_components(weights, users, len(batch))
    half = len(weights.hidden) // 2
    hidden = _times(batch, weights.hidden) + weights.hidden_bias
    flat = _times(_silu(hidden[:, :half]) * hidden[:, half:], weights.out) + weights.out_bias
    components = flat.reshape(len(batch), -1, spec.component_dim)
    if user_components is not None:
        components = np.concatenate([components, user_components[:, None]], axis=1)
    if spec.normalised:
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


def _given_components(spec: SimilaritySpec, queries: Any, users: Any) -> QuerySide:
    if users is not None:
        raise InputError("users were passed but this similarity has no user component; leave users out.")
    array, count = as_array(queries, "queries"), spec.query_components
    # A query with one component is a plain vector.
    if count == 1 and array.ndim in (1, 2) and array.shape[-1] == spec.component_dim:
        array = array[..., None, :]
    single = array.ndim == 2
    if single:
        array = array[None]
    if array.ndim != 3 or len(array) == 0 or array.shape[1:] != (count, spec.component_dim):
        raise InputError(
            f"queries have shape {np.shape(queries)}; expected components ({count}, {spec.component_dim}) for one "
            f"query or (b, {count}, {spec.component_dim}) for many."
        )
    return QuerySide(check_components(array, count, spec, "query"), None, single)


def _user_components(weights: QueryWeights, users: Any, b: int) -> Floats | None:
    """(b, d) components of the users; None where the similarity has no user component."""
    if weights.users is None:
        if users is not None:
            raise InputError("users were passed but this similarity has no user component; leave users out.")
        return None
    if users is None:
        raise InputError("this similarity has a user component; pass users, one non-negative integer per query.")
    numbers = as_array(users, "users").reshape(-1)
    if numbers.dtype.kind not in "iu" or len(numbers) != b or (numbers < 0).any():
        raise InputError(f"users must be {b} non-negative integers, one per query; pass an integer array.")
    return np.asarray(weights.users[numbers % len(weights.users)])


def _times(rows: Floats, weights: Floats) -> Floats:
    # One product per row: a product of two matrices rounds differently for each batch size.
    return np.asarray(np.matmul(rows[:, None, :], weights.T)[:, 0])


def _silu(x: Floats) -> Floats:
    # exp overflows float32 above 88; x / inf is then 0, the correct limit.
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-x)))


def _normalise(components: Floats) -> Floats:
    lengths = np.linalg.norm(components, axis=-1, keepdims=True)
    return np.asarray(components / np.maximum(lengths, np.float32(TINY)))


def _check_finite(components: NDArray[Any], gates: NDArray[Any] | None) -> None:
    if not (np.isfinite(components).all() and (gates is None or np.isfinite(gates).all())):
        raise InputError(
            "the query side of this similarity gives NaN or infinity; pass queries of the size it was trained on."
        )
