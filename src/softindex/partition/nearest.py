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

__all__ = ["BLOCK_ELEMENTS", "BLOCK_ROWS", "assign", "block_rows", "flat_search", "use_one_thread"]

# More rows only cost memory.
BLOCK_ROWS = 4096
FEWEST_VALUES = 1 << 17
BLOCK_ELEMENTS = 1 << 22


def use_one_thread() -> None:
    """Let faiss use one thread in the thread that calls this.

    The number of OpenMP threads belongs to the thread that sets it, so setting it in our workers affects no one else.
    Each worker uses one, and takes blocks in turn: OpenMP's own threads spin while they wait for each other, which on a
    busy machine makes two of them slower than one.
    """
    import faiss

    faiss.omp_set_num_threads(1)


def flat_search(centroids: Floats) -> Any:
    """A faiss index that searches the centroids (k, d) one by one."""
    # Not at the top: it takes tens of milliseconds to load, and most processes never build.
    import faiss

    index = faiss.IndexFlatL2(centroids.shape[1])
    index.add(centroids)
    return index


def block_rows(d: int) -> int:
    """The rows of d values that faiss searches fastest.

    With fewer than 2^17 values it uses a loop, three to ten times slower than its matrix products (version 1.15).
    """
    return max(BLOCK_ROWS, -(-FEWEST_VALUES // d))


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
    index = flat_search(centroids)
    step = min(block, rows_per_block(BLOCK_ELEMENTS, d, least=256))

    def work(part: slice) -> int:
        rows = vectors[part]
        distances, nearest = index.search(frame(rows) if frame else rows, 1 if second is None else 2)
        # An item 1e19 times longer than all sampled ones overflows and has no nearest centroid; any cluster will do.
        labels[part] = np.maximum(nearest[:, 0], 0)
        if squares is not None:
            squares[part] = distances[:, 0]
        if second is not None:
            second[part] = distances[:, 1]
        return int(part.stop)

    yield from pool.map(work, blocks(n, step))
