"""A mixture of logits in float64, written for reading: the tests compare the kernels and the proofs with it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.mol.clusters import ItemClusters
from softindex.mol.spec import SimilaritySpec
from softindex.records import Doubles, Integers

__all__ = ["cluster_candidates", "expansions", "gate_weights", "logits", "scores", "silu"]


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


def expansions(
    spec: SimilaritySpec, clusters: ItemClusters, queries: NDArray[Any], query_gates: NDArray[Any] | None = None
) -> tuple[Doubles, Doubles]:
    """(b, k) scores of the centres of clusters and (b, k, r) their slopes along the directions of the basis.

    A slope holds the weights of the pairs fixed at what they are at the centre: the gate's own slope is left out.
    """
    pair_logits = logits(spec, queries, clusters.centres)
    weights = gate_weights(spec, pair_logits, query_gates, clusters.gates)
    slopes = np.einsum("bkp,brp->bkr", weights, logits(spec, queries, clusters.basis))
    return np.asarray((weights * pair_logits).sum(axis=2)), np.asarray(slopes)


def cluster_candidates(clusters: ItemClusters, scores: Doubles, slopes: Doubles, keep: int, scanned: int) -> Integers:
    """(at most keep,) positions of the candidates of one query, given its expansions (k,) and (k, r).

    Clusters are visited by the maximum that is expected of their items, if these are normal, until at least `scanned`
    items were seen.  The candidates are those of the largest expanded scores.
    """
    sizes = np.diff(clusters.offsets)
    deviations = np.sqrt(np.square(slopes * clusters.spreads.astype(np.float64)).sum(axis=1))
    expected = scores + np.sqrt(2 * np.log(np.maximum(sizes, 1))) * deviations
    visited = np.argsort(-expected, kind="stable")
    visited = visited[: 1 + np.searchsorted(np.cumsum(sizes[visited]), scanned)]
    labels = np.repeat(np.arange(len(clusters)), sizes)
    expanded = scores[labels] + (slopes[labels] * clusters.features).sum(axis=1)
    expanded[~np.isin(labels, visited)] = -np.inf
    best = np.argsort(-expanded)[: min(keep, int(sizes[visited].sum()))]
    return np.asarray(clusters.order[best])
