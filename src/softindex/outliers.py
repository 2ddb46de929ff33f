"""The items that lie farthest from the mean of their cluster: the moments do not show them, so they are listed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from softindex.outward import round_up
from softindex.records import Floats, Integers, Outliers

__all__ = ["list_outliers"]

BLOCK_VALUES = 1 << 22
LISTED = 8
"""Times sqrt(n).  On lengths of all sizes the mean KL at t = 0.05 was 1.6e-2 with 2, 8e-3 with 4 and 1e-4 with 8; 16
gained nothing and cost half of a draw."""
UNUSUAL = 1.5
"""An outlier is farther than this many times the root of the mean squared distance."""


def list_outliers(vectors: Floats, offsets: Integers, means: Floats, *, threads: int) -> Outliers:
    """List up to 8 sqrt(n) items, those farthest from the mean of their cluster.

    vectors (n, d) in cluster order, means (k, d).
    """
    n, d = vectors.shape
    count = min(round(LISTED * n**0.5), n // 8)
    squared, step = np.empty(n, np.float32), max(1, BLOCK_VALUES // d)

    def fill(start: int) -> None:
        stop = min(start + step, n)
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, stop, side="left"))
        ends = np.clip(offsets[first : last + 1], start, stop)
        sizes = ends[1:] - ends[:-1]
        centres: Floats = np.repeat(means[first:last], sizes, axis=0)
        away = vectors[start:stop] - centres
        # Lengths of up to 1e15 have squares that float32 still holds.
        squared[start:stop] = np.einsum("nd,nd->n", away, away)

    with ThreadPoolExecutor(max_workers=threads) as pool:
        list(pool.map(fill, range(0, n, step)))
    order = np.argpartition(squared, n - count)[n - count :] if count else np.empty(0, np.int64)
    # Where all are about as far, the farthest are not special, and scanning them would waste time.
    order = order[squared[order] > UNUSUAL**2 * squared.mean(dtype=np.float64)]
    positions = np.sort(order).astype(np.int64)
    rest: NDArray[np.float32] = np.delete(squared, positions)
    # Float32 loses at most a few millionths of a sum of squares.
    farthest = round_up(float(rest.max(initial=0.0)) ** 0.5 * (1 + 1e-4))
    return Outliers(positions, np.ascontiguousarray(vectors[positions]), np.array([farthest], np.float32))
