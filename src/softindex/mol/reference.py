"""A mixture of logits in float64, written for reading: the tests compare the kernels and the proofs with it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.mol.clusters import ItemClusters
from softindex.mol.screening import ScreenedGate, silu_of_integers
from softindex.mol.spec import SimilaritySpec
from softindex.records import Doubles, Integers

__all__ = [
    "cluster_candidates",
    "expansions",
    "gate_weights",
    "logit_slopes",
    "logits",
    "scores",
    "screened",
    "silu",
    "silu_slope",
]

DEVIATIONS = 2.3
"""Of the items of a cluster, one in a hundred lies more standard deviations above the mean, if they are normal."""


def silu(x: Any) -> Doubles:
    """x times its sigmoid, without overflow."""
    wide = np.asarray(x, np.float64)
    return wide * np.exp(-np.logaddexp(0.0, -wide))


def silu_slope(x: Any) -> Doubles:
    """The derivative of `silu`."""
    wide = np.asarray(x, np.float64)
    sigmoid = np.exp(-np.logaddexp(0.0, -wide))
    return np.asarray(sigmoid + wide * sigmoid * np.exp(-np.logaddexp(0.0, wide)))


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


def logit_slopes(
    spec: SimilaritySpec, pair_logits: Doubles, query_gates: NDArray[Any] | None, item_gates: NDArray[Any] | None
) -> Doubles:
    """(b, n, P) derivatives of the scores with respect to the logits; without a gate, those of the first of equals."""
    weights = gate_weights(spec, pair_logits, query_gates, item_gates)
    if spec.gate is None:
        return weights
    first, second = spec.gate.first.astype(np.float64), spec.gate.second.astype(np.float64)
    inner = pair_logits @ first.T + spec.gate.first_bias
    outer = silu(inner) @ second.T + spec.gate.second_bias
    if query_gates is not None and item_gates is not None:
        outer = outer + np.asarray(query_gates, np.float64)[:, None] * np.asarray(item_gates, np.float64)
    score = (weights * pair_logits).sum(axis=2, keepdims=True)
    back = weights * (pair_logits - score) * silu_slope(outer)
    return np.asarray(weights + ((back @ second) * silu_slope(inner)) @ first)


def screened(
    spec: SimilaritySpec,
    screen: ScreenedGate,
    pair_logits: Doubles,
    query_gates: NDArray[Any] | None = None,
    item_gates: NDArray[Any] | None = None,
) -> Doubles:
    """(b, n) upper bounds on the scores, from layers of the gate in sixteen bits."""
    assert spec.gate is not None
    logit_scale, output_scale, per_length = screen.scales.astype(np.float64)
    integers = np.rint(pair_logits * logit_scale).astype(np.int64)
    hidden = (integers @ screen.first.T.astype(np.int64) + screen.first_bias) >> 16
    activations = silu_of_integers(hidden, screen.bases, screen.slopes, screen.steps)
    z = (activations @ screen.second.T.astype(np.int64)) * output_scale + spec.gate.second_bias
    if query_gates is not None and item_gates is not None:
        z = z + np.asarray(query_gates, np.float64)[:, None] * np.asarray(item_gates, np.float64)
    weights = np.exp(silu(z) - silu(z).max(axis=2, keepdims=True))
    means = (weights * pair_logits).sum(axis=2) / weights.sum(axis=2)
    slack = screen.slack + per_length * np.linalg.norm(pair_logits, axis=2)
    return np.asarray(means + slack * (pair_logits.max(axis=2) - pair_logits.min(axis=2)))


def expansions(
    spec: SimilaritySpec, clusters: ItemClusters, queries: NDArray[Any], query_gates: NDArray[Any] | None = None
) -> tuple[Doubles, Doubles]:
    """(b, k) scores of the centres of clusters, and (b, k, r) their derivatives along the directions of the basis."""
    pair_logits = logits(spec, queries, clusters.centres)
    weights = gate_weights(spec, pair_logits, query_gates, clusters.gates)
    by_logit = logit_slopes(spec, pair_logits, query_gates, clusters.gates)
    slopes = np.einsum("bkp,brp->bkr", by_logit, logits(spec, queries, clusters.basis))
    return np.asarray((weights * pair_logits).sum(axis=2)), np.asarray(slopes)


def cluster_candidates(clusters: ItemClusters, scores: Doubles, slopes: Doubles, keep: int, scanned: int) -> Integers:
    """(at most keep,) positions of the candidates of one query, given its expansions (k,) and (k, r).

    Clusters are visited in the order of the score that few of their items exceed, until at least `scanned` items were
    seen.  The candidates are those of the largest expanded scores.
    """
    sizes = np.diff(clusters.offsets)
    deviations = np.sqrt(np.square(slopes * clusters.spreads.astype(np.float64)).sum(axis=1))
    visited = np.argsort(-(scores + DEVIATIONS * deviations), kind="stable")
    visited = visited[: 1 + np.searchsorted(np.cumsum(sizes[visited]), scanned)]
    labels = np.repeat(np.arange(len(clusters)), sizes)
    expanded = scores[labels] + (slopes[labels] * clusters.features).sum(axis=1)
    expanded[~np.isin(labels, visited)] = -np.inf
    best = np.argsort(-expanded)[: min(keep, int(sizes[visited].sum()))]
    return np.asarray(clusters.order[best])
