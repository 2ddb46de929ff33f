"""A mixture of logits in float64, written to be read: what the kernels compute, and what the proofs are tested by."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.mol.form import Form
from softindex.records import Doubles

__all__ = ["gate_weights", "logits", "scores", "silu"]


def silu(x: Any) -> Doubles:
    """x times its sigmoid, without overflow."""
    wide = np.asarray(x, np.float64)
    return wide * np.exp(-np.logaddexp(0.0, -wide))


def logits(form: Form, queries: NDArray[Any], items: NDArray[Any]) -> Doubles:
    """(b, n, P) the dot products of queries (b, P_q, d) and items (n, P_x, d), divided by the temperature.

    Pair (p, r) of a query's component p and an item's component r is number p * P_x + r.
    """
    dots = np.einsum("bpd,nrd->bnpr", np.asarray(queries, np.float64), np.asarray(items, np.float64))
    return np.asarray(dots.reshape(len(queries), len(items), form.pairs) / form.temperature)


def gate_weights(
    form: Form, pair_logits: Doubles, query_gates: NDArray[Any] | None, item_gates: NDArray[Any] | None
) -> Doubles:
    """(b, n, P) the weights pi of the pairs: convex, so that a score lies between the least and the largest logit."""
    if form.gate is None:
        b, n, _ = pair_logits.shape
        parts = pair_logits.reshape(b, n, form.query_components, form.item_components)
        best = parts.argmax(axis=3)[..., None] == np.arange(form.item_components)
        return np.asarray(best.reshape(pair_logits.shape) / form.query_components)
    w = form.gate
    hidden = silu(pair_logits @ w.first.T.astype(np.float64) + w.first_bias)
    z = hidden @ w.second.T.astype(np.float64) + w.second_bias
    if query_gates is not None and item_gates is not None:
        z = z + np.asarray(query_gates, np.float64)[:, None] * np.asarray(item_gates, np.float64)
    g = silu(z)
    weights = np.exp(g - g.max(axis=2, keepdims=True))
    return np.asarray(weights / weights.sum(axis=2, keepdims=True))


def scores(
    form: Form,
    queries: NDArray[Any],
    items: NDArray[Any],
    query_gates: NDArray[Any] | None = None,
    item_gates: NDArray[Any] | None = None,
) -> Doubles:
    """(b, n) the similarity of every query to every item."""
    pair_logits = logits(form, queries, items)
    return np.asarray((gate_weights(form, pair_logits, query_gates, item_gates) * pair_logits).sum(axis=2))
