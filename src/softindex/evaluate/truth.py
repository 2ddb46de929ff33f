"""The softmax itself, in float64 and block by block: what every method is measured against."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np

from softindex.blas import blas_threads
from softindex.contents import Contents
from softindex.records import Doubles, Floats, Integers, Report

__all__ = ["Truth", "find_truth", "log_sum_of"]

BLOCK_SCORES = 1 << 20
"""Scores computed at a time by a thread: 8 MB, and as much again for their exponentials."""
BLOCK_VALUES = 1 << 21
"""Numbers of items that are widened to float64 at a time."""
MOST_THREADS = 16


@dataclass(frozen=True, slots=True)
class Truth:
    """The exact softmax of some queries, cluster by cluster.  Kernels have no part in it."""

    log_masses: Doubles
    """(t, b, k) log of the sum of exp(logit) over each cluster, at each temperature; -inf where it is empty."""
    variances: Doubles
    """(b, k) variance of the scores q.x in each cluster; 0 where it is empty."""

    @property
    def log_partition(self) -> Doubles:
        """(t, b) log Z."""
        return np.asarray(np.logaddexp.reduce(self.log_masses, axis=2))


@dataclass(frozen=True, slots=True)
class _Part:
    """What one block of items tells of the clusters it touches."""

    first: int
    log_sums: Doubles
    """(t, clusters, b)"""
    counts: Integers
    means: Doubles
    """(clusters, b)"""
    squares: Doubles
    """(clusters, b) sums of squared deviations from the means."""


def find_truth(
    contents: Contents, queries: Floats, temperatures: list[float], *, threads: int, report: Report | None = None
) -> Truth:
    """Compute the truth for queries (b, d).  Takes a few blocks of memory, whatever the number of items."""
    b, k = len(queries), len(contents.offsets) - 1
    log_masses = np.full((len(temperatures), k, b), -np.inf)
    counts, means, squares = np.zeros((k, 1)), np.zeros((k, b)), np.zeros((k, b))
    rows = max(1, min(BLOCK_SCORES // b, BLOCK_VALUES // contents.vectors.shape[1]))
    # Each thread holds blocks of its own.
    threads = min(threads, MOST_THREADS)
    begins = range(0, len(contents.vectors), rows)
    wide = np.ascontiguousarray(queries.T, np.float64)

    def one(begin: int) -> _Part:
        return _measure_block(contents, wide, temperatures, begin, min(begin + rows, len(contents.vectors)))

    with blas_threads(1), ThreadPoolExecutor(max_workers=threads) as pool:
        waiting = iter(begins)
        # No more blocks in flight than twice the threads, as each result is kept until it is merged.
        running = [pool.submit(one, begin) for begin in islice(waiting, 2 * threads)]
        for done in range(1, len(begins) + 1):
            part = running.pop(0).result()
            running.extend(pool.submit(one, begin) for begin in islice(waiting, 1))
            here = slice(part.first, part.first + len(part.counts))
            log_masses[:, here] = np.logaddexp(log_masses[:, here], part.log_sums)
            _merge(counts[here], means[here], squares[here], part)
            if report is not None:
                report("truth", done, len(begins))
    return Truth(np.ascontiguousarray(log_masses.transpose(0, 2, 1)), (squares / np.maximum(counts, 1)).T)


def log_sum_of(
    vectors: Floats, rows: Integers, query: Floats, temperature: float, log_bias: Floats | None = None
) -> float:
    """Log of the sum of exp(logit) over some rows of the vectors, for one query (d,), in float64."""
    logits = vectors[rows].astype(np.float64) @ query.astype(np.float64) / temperature
    if log_bias is not None:
        logits += log_bias[rows]
    return float(np.logaddexp.reduce(logits))


def _measure_block(contents: Contents, queries: Doubles, temperatures: list[float], begin: int, end: int) -> _Part:
    """Sums over the parts of clusters that lie in rows begin .. end; queries (d, b)."""
    offsets = contents.offsets
    first = int(np.searchsorted(offsets, begin, side="right")) - 1
    last = int(np.searchsorted(offsets, end, side="left"))
    edges = np.clip(offsets[first : last + 1], begin, end)
    counts = np.diff(edges)
    held = counts > 0  # reduceat does not know empty clusters
    starts = (edges[:-1] - begin)[held]
    scores = contents.vectors[begin:end].astype(np.float64) @ queries
    sums = np.zeros((len(counts), scores.shape[1]))
    means, squares = np.zeros_like(sums), np.zeros_like(sums)
    means[held] = np.add.reduceat(scores, starts, axis=0) / counts[held, None]
    away = scores - np.repeat(means, counts, axis=0)
    np.square(away, out=away)
    squares[held] = np.add.reduceat(away, starts, axis=0)
    log_sums = np.full((len(temperatures), *sums.shape), -np.inf)
    for place, temperature in enumerate(temperatures):
        logits = np.divide(scores, temperature, out=away)
        if contents.log_bias is not None:
            logits += contents.log_bias[begin:end, None]
        tops = np.maximum.reduceat(logits, starts, axis=0)
        logits -= np.repeat(tops, counts[held], axis=0)
        np.exp(logits, out=logits)
        log_sums[place, held] = tops + np.log(np.add.reduceat(logits, starts, axis=0))
    return _Part(first, log_sums, counts, means, squares)


def _merge(counts: Doubles, means: Doubles, squares: Doubles, part: _Part) -> None:
    """Add a block's moments to those of the clusters so far, in place (Chan, Golub and LeVeque, 1983)."""
    new = part.counts[:, None]
    together = np.maximum(counts + new, 1)
    away = part.means - means
    squares += part.squares + away**2 * counts * new / together
    means += away * new / together
    counts += new
