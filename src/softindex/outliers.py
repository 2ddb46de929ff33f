"""List the items farthest from the mean of their cluster, which its moments do not show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import blocks, rows_per_block
from softindex.outward import round_up
from softindex.records import Floats, Integers, Outliers
from softindex.workers import workers

__all__ = ["list_outliers"]

BLOCK_VALUES = 1 << 20
LISTED = 8
"""Times sqrt(n).  On vectors of very different length the mean KL at t = 0.05 was 1.6e-2 with 2, 8e-3 with 4 and 1e-4
with 8; 16 gained nothing and made a draw half as expensive again."""
UNUSUAL = 1.5
"""An outlier is farther away than this many times the root mean squared distance."""


def list_outliers(vectors: Floats, offsets: Integers, means: Floats, *, threads: int) -> Outliers:
    """List up to 8 sqrt(n) items that are farthest from the mean of their cluster.

    vectors (n, d) in cluster order, offsets (k + 1,), means (k, d).
    """
    n, d = vectors.shape
    count = min(round(LISTED * n**0.5), n // 8)
    squared = np.empty(n, np.float32)

    def fill(rows: slice) -> None:
        start, stop = rows.start, rows.stop
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, stop, side="left"))
        ends = np.clip(offsets[first : last + 1], start, stop)
        sizes = ends[1:] - ends[:-1]
        centres: Floats = np.repeat(means[first:last], sizes, axis=0)
        away = vectors[rows] - centres
        # Lengths are at most 1e15, so their squares fit float32.
        squared[rows] = np.einsum("nd,nd->n", away, away)

    with workers(threads) as pool:
        list(pool.map(fill, blocks(n, rows_per_block(BLOCK_VALUES, d))))
    order = np.argpartition(squared, n - count)[n - count :] if count else np.empty(0, np.int64)
    # Where all items are about equally far, the farthest are not special, and scanning them would gain nothing.
    order = order[squared[order] > UNUSUAL**2 * squared.mean(dtype=np.float64)]
    positions = np.sort(order).astype(np.int64)
    rest: NDArray[np.float32] = np.delete(squared, positions)
    # float32 loses at most a few parts per million of a sum of squares.
    farthest = round_up(float(rest.max(initial=0.0)) ** 0.5 * (1 + 1e-4))
    return Outliers(positions, np.ascontiguousarray(vectors[positions]), np.array([farthest], np.float32))
