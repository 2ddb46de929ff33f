"""Latency of one draw for one query, called from Python, and throughput of batches by number of threads."""

import numpy as np

import softindex
from benchmarks.data import glove
from benchmarks.peers import NumpyExact, NumpyTuned, NumpyTwoLevel
from benchmarks.tables import Table
from softindex.evaluate.datasets import synth_unbalanced
from softindex.evaluate.methods import name_dispersion
from softindex.evaluate.timing import take_turns

TEMPERATURE = 0.1
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


def interleave(functions, queries, stretch=20):
    """Median seconds of each function; they take turns."""
    found = take_turns(functions, queries, stretch=stretch)
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
