"""Nearest centroids: faiss against NumPy's matrix products in blocks: `python -m benchmarks.nearest`."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import Table
from softindex.blas import blas_threads
from softindex.partition.nearest import block_rows, flat_search
from softindex.records import Floats

ROUNDS = 7
ROWS = 16_384
SHAPES = ((447, 64), (1000, 100), (4472, 64), (1000, 384))
"""Numbers of centroids and dimensions: those of 200,000, a million and twenty million items."""


def by_products(centroids: Floats) -> Callable[[Floats], NDArray[np.intp]]:
    """A search by |c|^2 - 2 x.c, whose memory is one block of products."""
    halves, turned = (centroids * centroids).sum(axis=1) / 2, np.ascontiguousarray(centroids.T)
    step = max(64, (1 << 18) // len(centroids))

    def search(rows: Floats) -> NDArray[np.intp]:
        nearest = np.empty(len(rows), np.intp)
        for begin in range(0, len(rows), step):
            products = rows[begin : begin + step] @ turned
            products -= halves
            nearest[begin : begin + step] = products.argmax(axis=1)
        return nearest

    return search


def measure(k: int, d: int) -> list[str]:
    """The row of one shape: microseconds of processor time for each item, and the ratio of the two."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((ROWS, d), dtype=np.float32)
    centroids = rng.standard_normal((k, d), dtype=np.float32)
    index, other, step = flat_search(centroids), by_products(centroids), block_rows(d)
    times: dict[str, list[float]] = {"faiss": [], "NumPy": []}
    for _ in range(ROUNDS):
        begin = thread_time()
        found = np.concatenate([index.search(rows[at : at + step], 1)[1][:, 0] for at in range(0, ROWS, step)])
        middle = thread_time()
        again = other(rows)
        times["faiss"].append(middle - begin)
        times["NumPy"].append(thread_time() - middle)
    ratio = np.median(np.array(times["NumPy"]) / times["faiss"])
    cells = [f"{np.median(times[name]) / ROWS * 1e6:.2f}" for name in times]
    return [f"{k:,}", str(d), *cells, f"{ratio:.2f}", f"{np.mean(found == again):.4%}"]


def nearest() -> Table:
    """The table of all shapes."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        with blas_threads(1):
            rows = [measure(k, d) for k, d in SHAPES]
    finally:
        faiss.omp_set_num_threads(before)
    columns = ("centroids", "dimensions", "faiss, us per item", "NumPy, us per item", "NumPy / faiss", "same centroid")
    return Table("Nearest centroid, one thread, processor time, medians of interleaved rounds", columns, rows)


if __name__ == "__main__":
    print(nearest().markdown())
