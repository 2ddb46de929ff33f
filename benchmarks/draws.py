"""Latency of one draw for one query, called from Python, of many draws, and of batches by number of threads."""

import time

import numpy as np

import softindex
from benchmarks.data import glove
from benchmarks.peers import NumpyExact, NumpyTuned, NumpyTwoLevel
from benchmarks.tables import Table
from softindex.evaluate.datasets import synth_unbalanced
from softindex.evaluate.methods import name_dispersion
from softindex.evaluate.timing import take_turns

TEMPERATURE = 0.1
FLAT = 0.2
CLUSTERS = 1024
EXACT, PLAIN, TUNED = "NumPy exact", "NumPy s-2ls, plain", "NumPy s-2ls, tuned"


def draw_functions(vectors):
    """A function that draws once, for each method and tool, by name."""
    index = softindex.build(vectors, clusters=CLUSTERS, progress=True)
    full = softindex.build(vectors, clusters=CLUSTERS, dispersion="full", progress=True)
    exact, plain, tuned = NumpyExact(vectors), NumpyTwoLevel(index.items, sizes=True), NumpyTuned(index.items)

    def ours(which, method, probes=0):
        return lambda query: which.sample(query, temperature=TEMPERATURE, method=method, probes=probes, threads=1)

    return {
        EXACT: lambda query: exact.draw(query, TEMPERATURE),
        PLAIN: lambda query: plain.draw(query, TEMPERATURE),
        TUNED: lambda query: tuned.draw(query, TEMPERATURE),
        "exact": ours(index, "exact"),
        "2ls": ours(index, "2ls"),
        "s-2ls": ours(index, "s-2ls"),
        f"sd-2ls, {name_dispersion(index.parameters)}, no probes": ours(index, "sd-2ls"),
        "sd-2ls, published (full covariances)": ours(full, "sd-2ls"),
        "sd-2ls, adaptive probes (the default)": ours(index, "sd-2ls", None),
    }


def interleave(functions, queries, stretch=20, clock=time.perf_counter):
    """Median seconds of each function by the clock; they take turns."""
    found = take_turns(functions, queries, stretch=stretch, clock=clock)
    return {name: float(np.median(values)) for name, values in found.items()}


def latency_table(title, vectors, queries=200):
    """Latency of every method and tool, and its speed-up over each NumPy version."""
    functions = draw_functions(vectors)
    rows = np.random.default_rng(1).choice(len(vectors), size=queries, replace=False)
    medians = interleave(functions, vectors[rows])
    exact, plain, tuned = (medians[peer] for peer in (EXACT, PLAIN, TUNED))
    return Table(
        f"{title}, K = {CLUSTERS}, t = {TEMPERATURE}: median of {queries} interleaved single-query calls, one thread",
        ["method", "microseconds", "against NumPy exact", "against plain NumPy s-2ls", "against tuned NumPy s-2ls"],
        [
            [name, f"{median * 1e6:,.1f}", *(f"{peer / median:,.2f}x" for peer in (exact, plain, tuned))]
            for name, median in medians.items()
        ],
    )


def run(options):
    """Latency on synth-unbalanced and, where it can be downloaded, on GloVe."""
    tables = [latency_table(f"synth-unbalanced, {options.items:,} x 100", synth_unbalanced(options.items).vectors)]
    words = glove()
    if words is not None:
        tables.append(latency_table(f"GloVe, {len(words):,} x 100, unit length", words))
    return tables


def run_many(options):
    """What several draws for each query cost, one query at a time and in a batch that shares its reads."""
    words = glove()
    if words is None:
        return []
    held = np.random.default_rng(3).choice(len(words), size=256, replace=False)
    queries, items = words[held], np.delete(words, held, axis=0)
    rows = []
    for storage in ("float32", "int8"):
        index = softindex.build(items, storage=storage, progress=True)
        for size in (1, len(queries)):
            functions = {
                n: lambda batch, n=n, index=index: index.sample(batch, n, temperature=FLAT, threads=1)
                for n in (1, 10, 100)
            }
            batches = [queries[i : i + size] for i in range(0, len(queries), size)] * (9 if size > 1 else 1)
            # Other programs interrupt a batch, which takes long: on one thread, processor time leaves them out.
            medians = interleave(functions, batches, stretch=20 if size == 1 else 1, clock=time.process_time)
            rows.append([storage, str(size), *(f"{medians[n] / size * 1e6:,.0f}" for n in (1, 10, 100))])
            rows[-1].append(f"{medians[100] / medians[1]:.1f}x")
    title = f"GloVe, {len(items):,} x 100, held-out queries, t = {FLAT}, one thread: processor microseconds per query"
    return [Table(title, ["storage", "queries", "1 draw", "10 draws", "100 draws", "100 against 1"], rows)]


def run_threads(options):
    """Queries per second in a batch, on one thread and on two."""
    vectors = synth_unbalanced(options.items).vectors
    index = softindex.build(vectors, clusters=CLUSTERS, progress=True)
    rng, rows = np.random.default_rng(2), []
    for method, size in (("exact", 32), ("2ls", 4000), ("s-2ls", 4000), ("sd-2ls", 4000)):
        queries = vectors[rng.choice(len(vectors), size=size, replace=False)]
        functions = {
            threads: lambda batch, t=threads, m=method: index.sample(
                batch, temperature=TEMPERATURE, method=m, probes=0, threads=t
            )
            for threads in (1, 2)
        }
        medians = interleave(functions, [queries] * 31, stretch=1)
        rows.append(
            [
                method,
                str(size),
                *(f"{size / medians[t]:,.0f}" for t in (1, 2)),
                f"{medians[1] / medians[2]:.2f}x",
            ]
        )
    title = f"synth-unbalanced, {options.items:,} x 100, K = {CLUSTERS}: queries per second in a batch"
    return [Table(title, ["method", "batch", "one thread", "two threads", "ratio"], rows)]
