"""Nearest centroids: faiss against our blocked matrix products: `python -m benchmarks.nearest`."""

from __future__ import annotations

from time import thread_time

import faiss
import numpy as np

from benchmarks.tables import Table
from softindex.blas import blas_threads
from softindex.partition.nearest import BLOCK_ROWS, Search

ROUNDS = 7
ROWS = 16_384
SHAPES = ((447, 64), (1000, 100), (4472, 64), (1000, 384))
"""Numbers of centroids and dimensions: those of 200,000, a million and twenty million items."""


def measure(k: int, d: int) -> list[str]:
    """The row of one shape: microseconds of processor time for each item, and the ratio of the two."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((ROWS, d), dtype=np.float32)
    centroids = rng.standard_normal((k, d), dtype=np.float32)
    index, ours, labels, best = faiss.IndexFlatL2(d), Search(centroids), np.empty(ROWS, np.int32), rows[:, 0].copy()
    index.add(centroids)
    # With fewer than 2^17 values faiss uses a loop, which is slower.
    step = max(BLOCK_ROWS, -(-(1 << 17) // d))
    times: dict[str, list[float]] = {"faiss": [], "ours": []}
    for _ in range(ROUNDS):
        begin = thread_time()
        found = np.concatenate([index.search(rows[at : at + step], 1)[1][:, 0] for at in range(0, ROWS, step)])
        middle = thread_time()
        ours.nearest(rows, labels, best)
        times["faiss"].append(middle - begin)
        times["ours"].append(thread_time() - middle)
    ratio = np.median(np.array(times["ours"]) / times["faiss"])
    cells = [f"{np.median(times[name]) / ROWS * 1e6:.2f}" for name in times]
    return [f"{k:,}", str(d), *cells, f"{ratio:.2f}", f"{np.mean(found == labels):.4%}"]


def nearest() -> Table:
    """The table of all shapes."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        with blas_threads(1):
            rows = [measure(k, d) for k, d in SHAPES]
    finally:
        faiss.omp_set_num_threads(before)
    columns = ("centroids", "dimensions", "faiss, us per item", "ours, us per item", "ours / faiss", "same centroid")
    return Table("Nearest centroid, one thread, processor time, medians of interleaved rounds", columns, rows)


if __name__ == "__main__":
    print(nearest().markdown())
