"""Where the time of a single call goes: Python, arithmetic, memory, and the distance to the memory's bandwidth."""

import time

import numpy as np

import softindex
from benchmarks.data import glove
from benchmarks.tables import Table
from softindex.evaluate.datasets import synth_unbalanced
from softindex.evaluate.timing import take_turns
from softindex.kernels import padded

TEMPERATURE = 0.1
CLUSTERS = 1024
QUERIES = 200
BUFFER = 1 << 27
"""Floats read to measure the bandwidth: far more than any cache holds."""


def bandwidth(rounds=7):
    """Bytes per second that one thread reads from memory: the better of a sum and a matrix-vector product."""
    buffer = np.ones(BUFFER, np.float32)
    rows, vector = buffer.reshape(-1, 1024), np.ones(1024, np.float32)
    best = 0.0
    for _ in range(rounds):
        for function in (buffer.sum, lambda: rows @ vector):
            begin = time.perf_counter()
            function()
            best = max(best, buffer.nbytes / (time.perf_counter() - begin))
    return best


def calls(index):
    """Each call as a function of the query, and the bytes per cluster that its law reads before any item."""
    d, rank = padded(index.dim), index.parameters["rank"]
    means, forms = 4 * d, rank * d
    # A proof reads about all of the sketch.
    sketch = -(-len(index) // 16) * 64 * (1 + -(-index.dim // 8)) // index.clusters

    def draw(method, probes):
        return lambda query: index.sample(query, temperature=TEMPERATURE, method=method, probes=probes, threads=1)

    return {
        "s-2ls": (draw("s-2ls", 0), means),
        "sd-2ls (default)": (draw("sd-2ls", None), means + forms),
        "certified": (draw("certified", None), means + forms),
        "top_k, 10": (lambda query: index.top_k(query, 10, threads=1), means + sketch),
    }


def measure(name, vectors, speed):
    """Rows of the table for one set; the queries are not among the items."""
    chosen = np.random.default_rng(3).choice(len(vectors), QUERIES, replace=False)
    queries, items = np.ascontiguousarray(vectors[chosen]), np.delete(vectors, chosen, axis=0)
    index = softindex.build(items, clusters=CLUSTERS, progress=True)
    # Ten items: everything that a call does besides reading and multiplying.
    empty = softindex.build(items[:10], clusters=1)
    functions, tiny = calls(index), calls(empty)
    timed = {
        (label, kind): function
        for label, (function, _) in functions.items()
        for kind, function in (("once", function), ("twice", _twice(function)), ("empty", tiny[label][0]))
    }
    found = {key: float(np.median(values)) for key, values in take_turns(timed, queries).items()}
    rows = []
    for label, (function, per_cluster) in functions.items():
        scored = np.mean([np.sum(function(query).items_scored) for query in queries])
        read = index.clusters * per_cluster + scored * 4 * padded(index.dim)
        total, twice, nothing = (found[label, kind] for kind in ("once", "twice", "empty"))
        again, least = twice - total, nothing + read / speed
        parts = (nothing, max(0.0, again - nothing), max(0.0, total - again))
        rows.append(
            [
                *(name, label, f"{total * 1e6:,.0f}"),
                *(f"{part / total:.0%}" for part in parts),
                *(f"{read / 1e6:.2f}", f"{read / (total - nothing) / 1e9:.1f}", f"{total / least:.2f}"),
            ]
        )
    return rows


def _twice(function):
    """Two calls with the same query: the second finds in the cache what it reads."""

    def call(query):
        function(query)
        return function(query)

    return call


def run(options):
    """One table over both sets, with the bandwidth measured in the same run."""
    speed = bandwidth()
    rows = measure(f"synth-unbalanced, {options.items:,}", synth_unbalanced(options.items).vectors, speed)
    words = glove()
    if words is not None:
        rows += measure(f"GloVe, {len(words):,}", words, speed)
    title = (
        f"One call for one query on one thread, K = {CLUSTERS}, t = {TEMPERATURE}, {QUERIES} queries that are not "
        f"among the items, medians; memory bandwidth in this run {speed / 1e9:.1f} GB/s"
    )
    columns = ["set", "call", "microseconds", "overhead", "arithmetic", "waiting for memory"]
    return [Table(title, [*columns, "MB read", "GB/s", "time / time at full bandwidth"], rows)]
