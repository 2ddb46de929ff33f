"""One draw for one query, called from Python, all overhead included; and the throughput of batches by threads."""

import numpy as np

import softindex
from benchmarks.data import glove
from benchmarks.peers import NumpyTuned
from softindex.evaluate.datasets import synth_unbalanced
from softindex.evaluate.peers import NumpyExact, NumpyTwoLevel
from softindex.evaluate.tables import Table
from softindex.evaluate.timing import take_turns

TEMPERATURE = 0.1
CLUSTERS = 1024
EXACT, PLAIN, TUNED = "NumPy exact", "NumPy s-2ls, plain", "NumPy s-2ls, tuned"


def contestants(vectors):
    """Name and draw function of everything that is measured on these vectors."""
    index = softindex.build(vectors, clusters=CLUSTERS, progress=True)
    full = softindex.build(vectors, clusters=CLUSTERS, dispersion="full", progress=True)
    contents = index._contents
    exact = NumpyExact(vectors)
    arrays = (contents.vectors, contents.offsets, contents.moments.means)
    plain, tuned = NumpyTwoLevel(contents, sizes=True), NumpyTuned(*arrays)

    def ours(which, method, probes=0):
        return lambda query: which.sample(query, temperature=TEMPERATURE, method=method, probes=probes, threads=1)

    return index, {
        EXACT: lambda query: exact.draw(query, TEMPERATURE),
        PLAIN: lambda query: plain.draw(query, TEMPERATURE),
        TUNED: lambda query: tuned.draw(query, TEMPERATURE),
        "exact": ours(index, "exact"),
        "2ls": ours(index, "2ls"),
        "s-2ls": ours(index, "s-2ls"),
        f"sd-2ls, {describe(index)}": ours(index, "sd-2ls"),
        "sd-2ls, full covariances": ours(full, "sd-2ls"),
        "sd-2ls, adaptive probes (the default)": ours(index, "sd-2ls", None),
    }


def describe(index):
    """The dispersion of an index in words."""
    dispersion = index._contents.moments.dispersion
    return f"rank {dispersion.rank}" if dispersion.kind == "rank" else dispersion.kind


def interleave(functions, queries, stretch=20):
    """Median seconds of each function; they take turns."""
    found = take_turns(functions, queries, stretch=stretch)
    return {name: float(np.median(values)) for name, values in found.items()}


def latency_table(title, vectors, queries=200):
    """Latency of every contestant, and how many times faster than each NumPy peer it is."""
    _, functions = contestants(vectors)
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
    """Latency on synth-unbalanced and, where it can be had, on GloVe."""
    tables = [latency_table(f"synth-unbalanced, {options.items:,} x 100", synth_unbalanced(options.items).vectors)]
    words = glove()
    if words is not None:
        tables.append(latency_table(f"GloVe, {len(words):,} x 100, unit length", words))
    return tables


def run_threads(options):
    """Queries a second of a batch, on one thread and on two."""
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
    title = f"synth-unbalanced, {options.items:,} x 100, K = {CLUSTERS}: queries a second of a batch"
    return [Table(title, ["method", "batch", "one thread", "two threads", "ratio"], rows)]
