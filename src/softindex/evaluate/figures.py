"""The data behind the figures of the report, after those of the two-level paper, on the user's own items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softindex.blocks import blocks
from softindex.evaluate.methods import DEFAULT, AuditMethod, name_dispersion
from softindex.evaluate.truth import Truth
from softindex.index import Index
from softindex.records import Doubles, Floats, Integers

__all__ = ["Figures", "measure_figures"]

SHOWN = AuditMethod("2ls", 0), AuditMethod("s-2ls", 0), AuditMethod("sd-2ls", 0), DEFAULT
POINTS = 1200
"""Items in the plot of one query."""
BEST = 200
"""How many of them are the best ones; the others are spread evenly over all ranks."""
BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Figures:
    """Sampling ratios of clusters, averaged over the queries, and probabilities of items for one query."""

    temperature: float
    variances: Doubles
    """(k,) variance of the scores inside each cluster, averaged over the queries."""
    ratios: dict[str, Doubles]
    """By label: (k,) mean probability of the cluster under the method, divided by that under the softmax; 1 for an
    empty cluster."""
    similarity: Doubles
    """(m,) score of some items for the first query."""
    softmax: Doubles
    """(m,) their log-probability under the softmax."""
    log_prob: dict[str, Doubles]
    """By label: (m,) their log-probability under the method."""


def measure_figures(index: Index, queries: Floats, truth: Truth, temperatures: list[float], *, threads: int) -> Figures:
    """Measure what the figures show, at the middle one of the temperatures."""
    place = sorted(range(len(temperatures)), key=temperatures.__getitem__)[(len(temperatures) - 1) // 2]
    temperature, masses = temperatures[place], truth.log_masses[place]
    dispersion, log_bias = name_dispersion(index.parameters), index.items.log_bias
    shown = {one.label(dispersion): one for one in (SHOWN if dispersion != "none" else SHOWN[:2])}
    positions, similarity = _choose_items(index, queries[0])
    logits = similarity / temperature
    if log_bias is not None:
        logits = logits + log_bias[positions]
    ids = index.ids[positions]
    return Figures(
        temperature=temperature,
        variances=truth.variances.mean(axis=0),
        ratios={label: _ratios(index, queries, masses, one, temperature, threads) for label, one in shown.items()},
        similarity=similarity,
        softmax=logits - truth.log_partition[place, 0],
        log_prob={
            label: index.log_prob(queries[0], ids, temperature=temperature, threads=threads, **one.options)
            for label, one in shown.items()
        },
    )


def _ratios(
    index: Index, queries: Floats, truth: Doubles, method: AuditMethod, temperature: float, threads: int
) -> Doubles:
    masses = index.cluster_log_masses(queries, temperature=temperature, threads=threads, **method.options)[0]
    p, s = (np.exp(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True)).mean(axis=0) for logs in (masses, truth))
    # A mean of ratios would be dominated by clusters that are almost impossible for some query.
    return np.where(s > 0, p / np.where(s > 0, s, 1.0), 1.0)


def _choose_items(index: Index, query: Floats) -> tuple[Integers, Doubles]:
    """Positions (m,) of items of all similarities, the best among them, and their scores (m,)."""
    items, n = index.items, len(index)
    wide, scores = query.astype(np.float64), np.empty(n)
    for rows in blocks(n, BLOCK_ROWS):
        scores[rows] = items.scores(rows, wide)
    order = np.argsort(-scores)
    ranks = np.unique(np.concatenate([np.arange(min(BEST, n)), np.linspace(0, n - 1, min(POINTS, n)).astype(np.int64)]))
    chosen = order[ranks]
    return chosen, scores[chosen]
