"""What the figures of the two-level paper show, on the user's own items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softindex.evaluate.contestants import DEFAULT, Contestant, law_masses
from softindex.evaluate.truth import Truth
from softindex.index import Index
from softindex.records import Doubles, Floats, Integers

__all__ = ["Figures", "draw_figures"]

SHOWN = Contestant("2ls", 0), Contestant("s-2ls", 0), Contestant("sd-2ls", 0), DEFAULT
POINTS = 1200
"""Items in the plot of one query."""
BEST = 200
"""So many of them are the most similar ones; the others are spread over all ranks."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Sampling ratios of clusters, averaged over the queries, and probabilities of items for one query."""

    temperature: float
    variances: Doubles
    """(k,) variance of the scores inside each cluster, averaged over the queries."""
    ratios: dict[str, Doubles]
    """By label: (k,) mean probability of the cluster under the law over that under the softmax; 1 where it is empty."""
    similarity: Doubles
    """(m,) score of some items for the first query."""
    softmax: Doubles
    """(m,) their log-probability under the softmax."""
    log_prob: dict[str, Doubles]
    """By label: (m,) that under the law."""


def draw_figures(index: Index, queries: Floats, truth: Truth, temperatures: list[float], *, threads: int) -> Figures:
    """Measure what the figures show at the temperature in the middle."""
    place = sorted(range(len(temperatures)), key=temperatures.__getitem__)[(len(temperatures) - 1) // 2]
    heat, masses = temperatures[place], truth.log_masses[place]
    shown = SHOWN if index.parameters["dispersion"] != "none" else SHOWN[:2]
    positions, similarity = _choose_items(index, queries[0])
    logits = similarity / heat
    if index._contents.log_bias is not None:
        logits = logits + index._contents.log_bias[positions]
    ids = index._contents.ids.at(positions)
    return Figures(
        temperature=heat,
        variances=truth.variances.mean(axis=0),
        ratios={law.label: _ratios(index, queries, masses, law, heat, threads) for law in shown},
        similarity=similarity,
        softmax=logits - truth.log_partition[place, 0],
        log_prob={
            law.label: index.log_prob(queries[0], ids, temperature=heat, threads=threads, **law.options)
            for law in shown
        },
    )


def _ratios(index: Index, queries: Floats, truth: Doubles, law: Contestant, heat: float, threads: int) -> Doubles:
    log_p, log_s = law_masses(index, queries, law, heat, threads)[0], truth
    log_p = log_p - np.logaddexp.reduce(log_p, axis=1, keepdims=True)
    log_s = log_s - np.logaddexp.reduce(log_s, axis=1, keepdims=True)
    p, s = np.exp(log_p).mean(axis=0), np.exp(log_s).mean(axis=0)
    # A mean of ratios would hang on clusters that some query all but rules out.
    return np.where(s > 0, p / np.where(s > 0, s, 1.0), 1.0)


def _choose_items(index: Index, query: Floats) -> tuple[Integers, Doubles]:
    """Positions (m,) of items of all similarities, the best among them, and their scores (m,)."""
    vectors, n = index._contents.vectors, len(index)
    wide, scores = query.astype(np.float64), np.empty(n)
    rows = 1 << 16
    for begin in range(0, n, rows):
        scores[begin : begin + rows] = vectors[begin : begin + rows].astype(np.float64) @ wide
    order = np.argsort(-scores)
    ranks = np.unique(np.concatenate([np.arange(min(BEST, n)), np.linspace(0, n - 1, min(POINTS, n)).astype(np.int64)]))
    chosen = order[ranks]
    return chosen, scores[chosen]
