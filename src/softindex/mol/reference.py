"""A mixture of logits in float64, written for reading: the tests compare the kernels and the proofs with it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.mol.spec import SimilaritySpec
from softindex.records import Doubles

__all__ = ["gate_weights", "logits", "scores", "silu"]


def silu(x: Any) -> Doubles:
    """x times its sigmoid, without overflow."""
    wide = np.asarray(x, np.float64)
    return wide * np.exp(-np.logaddexp(0.0, -wide))


def logits(spec: SimilaritySpec, queries: NDArray[Any], items: NDArray[Any]) -> Doubles:
    """(b, n, P) dot products of queries (b, P_q, d) and items (n, P_x, d), divided by the temperature.

    The pair of query component p and item component r has number p * P_x + r.
    """
    dots = np.einsum("bpd,nrd->bnpr", np.asarray(queries, np.float64), np.asarray(items, np.float64))
    return np.asarray(dots.reshape(len(queries), len(items), spec.pairs) / spec.temperature)


def gate_weights(
    spec: SimilaritySpec, pair_logits: Doubles, query_gates: NDArray[Any] | None, item_gates: NDArray[Any] | None
) -> Doubles:
    """(b, n, P) weights of the pairs.  They are convex, so a score lies between the smallest and the largest logit."""
    if spec.gate is None:
        b, n, _ = pair_logits.shape
        by_component = pair_logits.reshape(b, n, spec.query_components, spec.item_components)
        best = by_component.argmax(axis=3)[..., None] == np.arange(spec.item_components)
        return np.asarray(best.reshape(pair_logits.shape) / spec.query_components)
    gate = spec.gate
    hidden = silu(pair_logits @ gate.first.T.astype(np.float64) + gate.first_bias)
    z = hidden @ gate.second.T.astype(np.float64) + gate.second_bias
    if query_gates is not None and item_gates is not None:
        z = z + np.asarray(query_gates, np.float64)[:, None] * np.asarray(item_gates, np.float64)
    g = silu(z)
    weights = np.exp(g - g.max(axis=2, keepdims=True))
    return np.asarray(weights / weights.sum(axis=2, keepdims=True))


def scores(
    spec: SimilaritySpec,
    queries: NDArray[Any],
    items: NDArray[Any],
    query_gates: NDArray[Any] | None = None,
    item_gates: NDArray[Any] | None = None,
) -> Doubles:
    """(b, n) similarity of every query to every item."""
    pair_logits = logits(spec, queries, items)
    return np.asarray((gate_weights(spec, pair_logits, query_gates, item_gates) * pair_logits).sum(axis=2))
