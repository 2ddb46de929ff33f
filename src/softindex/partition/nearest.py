"""Find the nearest centroid of every item."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import blocks, rows_per_block
from softindex.partition.frame import Frame
from softindex.records import Floats

__all__ = ["BLOCK_ELEMENTS", "BLOCK_ROWS", "Search", "assign"]

# A task for a worker: more rows only cost memory.
BLOCK_ROWS = 4096
BLOCK_ELEMENTS = 1 << 20
PRODUCTS = 1 << 18
"""Products of rows and centroids at a time: a megabyte stays near the cache.  And at least this many rows: a product of
fewer reads the centroids too often."""
FEWEST_ROWS = 32


class Search:
    """The nearest of some centroids by matrix products: |x - c|^2 = |x|^2 - 2 (x.c - |c|^2 / 2).

    The caller limits BLAS to one thread: workers take blocks in turn, and the rounding depends on nothing else.
    """

    def __init__(self, centroids: Floats) -> None:
        self.turned = np.ascontiguousarray(centroids.T)
        with np.errstate(over="ignore"):
            self.halves = np.einsum("kd,kd->k", centroids, centroids) / 2
        self.step = max(FEWEST_ROWS, PRODUCTS // len(centroids))

    def closeness(self, rows: Floats) -> Iterator[tuple[slice, Floats]]:
        """Blocks of the rows (m, d), and x.c - |c|^2 / 2 of each with each centroid, (m', k) to be overwritten."""
        for part in blocks(len(rows), self.step):
            products = rows[part] @ self.turned
            products -= self.halves
            yield part, products

    def nearest(self, rows: Floats, labels: NDArray[np.int32], best: Floats, second: Floats | None = None) -> None:
        """Write the nearest centroid of each row and its closeness, and on request that of the second nearest."""
        # An item 1e19 times longer than all sampled ones overflows; any cluster will do for it.
        with np.errstate(over="ignore", invalid="ignore"):
            for part, products in self.closeness(rows):
                chosen = products.argmax(axis=1)
                places = np.arange(len(chosen))
                labels[part], best[part] = chosen, products[places, chosen]
                if second is not None:
                    products[places, chosen] = -np.inf
                    second[part] = products.max(axis=1)


def assign(
    vectors: NDArray[Any],
    centroids: Floats,
    pool: Executor,
    *,
    labels: NDArray[np.int32],
    frame: Frame | None = None,
    squares: Floats | None = None,
    second: Floats | None = None,
    block: int = BLOCK_ROWS,
) -> Iterator[int]:
    """Write the nearest centroid of each item into `labels`, block by block; yields how many items are done.

    Without a frame, the vectors must be framed already.  `squares` receives the squared distances, and `second` those
    to the second nearest centroid.  `block` is the number of rows per search; another one can change the rounding.
    """
    n, d = vectors.shape
    search = Search(centroids)
    step = min(block, rows_per_block(BLOCK_ELEMENTS, d, least=256))

    def work(part: slice) -> int:
        rows = frame(vectors[part]) if frame else np.asarray(vectors[part], np.float32)
        best = np.empty(len(rows), np.float32)
        runner_up = None if second is None else np.empty(len(rows), np.float32)
        search.nearest(rows, labels[part], best, runner_up)
        if squares is not None or second is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                lengths = np.einsum("md,md->m", rows, rows)
                for asked, close in ((squares, best), (second, runner_up)):
                    if asked is not None and close is not None:
                        # Rounding can make a small one negative.
                        asked[part] = np.maximum(lengths - 2 * close, 0)
        return int(part.stop)

    yield from pool.map(work, blocks(n, step))
