"""The exact softmax in float64, computed in blocks: the reference for every method."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np

from softindex.blas import blas_threads
from softindex.blocks import blocks, rows_per_block
from softindex.records import Doubles, Floats, Integers, Items, Report
from softindex.workers import workers

__all__ = ["Truth", "find_truth", "log_sum_of", "longest"]

BLOCK_SCORES = 1 << 20
"""Scores that a thread computes at a time: 8 MB, and as much again for their exponentials."""
BLOCK_VALUES = 1 << 21
"""Values of items that are converted to float64 at a time."""
MOST_THREADS = 16


@dataclass(frozen=True, slots=True)
class Truth:
    """The exact softmax of some queries, by cluster, computed without the kernels it judges."""

    log_masses: Doubles
    """(t, b, k) log of the sum of exp(logit) over each cluster, at each temperature; -inf for an empty cluster."""
    variances: Doubles
    """(b, k) variance of the scores q.x in each cluster; 0 for an empty cluster."""

    @property
    def log_partition(self) -> Doubles:
        """(t, b) log Z."""
        return np.asarray(np.logaddexp.reduce(self.log_masses, axis=2))


@dataclass(frozen=True, slots=True)
class _Part:
    """Sums over one block of items, for each cluster that has items in it."""

    first: int
    """Number of the first of these clusters."""
    log_sums: Doubles
    """(t, clusters, b)"""
    counts: Integers
    means: Doubles
    """(clusters, b)"""
    squares: Doubles
    """(clusters, b) sums of squared deviations from the means."""


def find_truth(
    items: Items,
    queries: Floats,
    temperatures: list[float],
    *,
    own: Integers | None = None,
    threads: int,
    report: Report | None = None,
) -> Truth:
    """The exact softmax for queries (b, d), in a few blocks of memory whatever the number of items.

    own: (b,) positions of items that a query leaves out (variances are those of all items).
    """
    b, k = len(queries), len(items.offsets) - 1
    log_masses = np.empty((len(temperatures), k, b))
    # Row by row, because a signal waits for the end of a NumPy call: filling gigabytes at once takes seconds.
    for cluster in range(k):
        log_masses[:, cluster] = -np.inf
    counts, means, squares = np.zeros((k, 1)), np.zeros((k, b)), np.zeros((k, b))
    step = min(rows_per_block(BLOCK_SCORES, b), rows_per_block(BLOCK_VALUES, items.vectors.shape[1]))
    # Each thread has its own blocks in memory.
    threads = min(threads, MOST_THREADS)
    parts = list(blocks(len(items.vectors), step))
    wide = np.ascontiguousarray(queries.T, np.float64)

    def measure(rows: slice) -> _Part:
        return _measure_block(items, wide, temperatures, rows, own)

    with blas_threads(1), workers(threads) as pool:
        waiting = iter(parts)
        # At most twice as many blocks in flight as threads: each result stays in memory until it is merged.
        running = [pool.submit(measure, rows) for rows in islice(waiting, 2 * threads)]
        for done in range(1, len(parts) + 1):
            part = running.pop(0).result()
            running.extend(pool.submit(measure, rows) for rows in islice(waiting, 1))
            here = slice(part.first, part.first + len(part.counts))
            log_masses[:, here] = np.logaddexp(log_masses[:, here], part.log_sums)
            _merge(counts[here], means[here], squares[here], part)
            if report is not None:
                report("truth", done, len(parts))
    return Truth(np.ascontiguousarray(log_masses.transpose(0, 2, 1)), (squares / np.maximum(counts, 1)).T)


def log_sum_of(items: Items, rows: Integers, query: Floats, temperature: float) -> float:
    """Log of the sum of exp(logit) over some rows of the items, for one query (d,), in float64."""
    logits = items.scores(rows, query.astype(np.float64)) / temperature
    if items.log_bias is not None:
        logits += items.log_bias[rows]
    return float(np.logaddexp.reduce(logits))


def longest(vectors: Floats) -> float:
    """The largest norm of the rows of vectors (n, d)."""
    squared = 0.0
    for rows in blocks(len(vectors), rows_per_block(BLOCK_VALUES, vectors.shape[1])):
        squared = max(squared, float((vectors[rows].astype(np.float64) ** 2).sum(axis=1).max()))
    return float(squared**0.5)


def _measure_block(
    items: Items, queries: Doubles, temperatures: list[float], rows: slice, own: Integers | None
) -> _Part:
    """Sums over the items of each cluster that lie in these rows; queries (d, b)."""
    offsets, begin, end = items.offsets, rows.start, rows.stop
    first = int(np.searchsorted(offsets, begin, side="right")) - 1
    last = int(np.searchsorted(offsets, end, side="left"))
    edges = np.clip(offsets[first : last + 1], begin, end)
    counts = np.diff(edges)
    filled = counts > 0  # reduceat cannot sum over an empty cluster
    starts = (edges[:-1] - begin)[filled]
    scores = items.scores(rows, queries)
    sums = np.zeros((len(counts), scores.shape[1]))
    means, squares = np.zeros_like(sums), np.zeros_like(sums)
    means[filled] = np.add.reduceat(scores, starts, axis=0) / counts[filled, None]
    away = scores - np.repeat(means, counts, axis=0)
    np.square(away, out=away)
    squares[filled] = np.add.reduceat(away, starts, axis=0)
    log_sums = np.full((len(temperatures), *sums.shape), -np.inf)
    if own is not None:
        here = np.flatnonzero((own >= begin) & (own < end))
        scores[own[here] - begin, here] = -np.inf
    for place, temperature in enumerate(temperatures):
        logits = np.divide(scores, temperature, out=away)
        if items.log_bias is not None:
            logits += items.log_bias[rows, None]
        tops = np.maximum.reduceat(logits, starts, axis=0)
        if own is not None:
            tops[np.isneginf(tops)] = 0.0  # nothing is left of a cluster of one item
        logits -= np.repeat(tops, counts[filled], axis=0)
        np.exp(logits, out=logits)
        with np.errstate(divide="ignore"):
            log_sums[place, filled] = tops + np.log(np.add.reduceat(logits, starts, axis=0))
    return _Part(first, log_sums, counts, means, squares)


def _merge(counts: Doubles, means: Doubles, squares: Doubles, part: _Part) -> None:
    """Add a block's moments to those of the clusters so far, in place (Chan, Golub and LeVeque, 1983)."""
    new = part.counts[:, None]
    together = np.maximum(counts + new, 1)
    away = part.means - means
    squares += part.squares + away**2 * counts * new / together
    means += away * new / together
    counts += new
