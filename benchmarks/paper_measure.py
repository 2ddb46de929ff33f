"""Measure what the paper's tables show: KL and latency of our methods and of today's tools, in one run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.data import SETS, open_set
from benchmarks.peers import FaissTopK, GumbelMax, NumpyExact, NumpyTwoLevel, covariances, torch_draw
from softindex.builder import build
from softindex.evaluate.audit import TEMPERATURES
from softindex.evaluate.datasets import NAMES
from softindex.evaluate.distances import between, mean_interval
from softindex.evaluate.methods import DEFAULT, AuditMethod
from softindex.evaluate.timing import take_turns
from softindex.evaluate.truth import Truth, find_truth
from softindex.index import Index
from softindex.progress import reporting
from softindex.records import Doubles, Floats, Report

__all__ = ["METHODS", "Bench", "run_bench"]

TOP_K = 1000
SEARCH_PROBES = 32
"""Clusters that faiss searches, out of K; the table shows the mass it finds beside that of the true k best."""
Draw = Callable[[Floats, float], Any]
Mean = tuple[float, float]
"""A mean and half the width of its 95 % interval."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The measurements on one set."""

    name: str
    items: int
    queries: int
    kl: dict[tuple[str, float], Mean]
    """Mean KL by method and temperature."""
    milliseconds: dict[str, float]
    """Median over the queries and temperatures, by method."""
    head_recall: float
    """Share of the true sqrt(n) best that the search for the Gumbel head finds."""


@dataclass(frozen=True, slots=True)
class _Built:
    """The three indexes of one set, and a faiss index."""

    vectors: Floats
    full: Index
    """With full covariances, as in the paper."""
    usual: Index
    """With the default dispersion, rank 8."""
    tree: Index
    search: Any


METHODS = {
    "top-k": ("usual", AuditMethod("top-k")),
    "2ls": ("usual", AuditMethod("2ls", 0)),
    "hierarchical": ("tree", AuditMethod("hierarchical")),
    "s-hierarchical": ("tree", AuditMethod("s-hierarchical")),
    "sd-hierarchical": ("tree", AuditMethod("sd-hierarchical")),
    "s-2ls": ("usual", AuditMethod("s-2ls", 0)),
    "sd-2ls, full covariances": ("full", AuditMethod("sd-2ls", 0)),
    "sd-2ls, rank 8": ("usual", AuditMethod("sd-2ls", 0)),
    "default": ("usual", DEFAULT),
    "certified": ("usual", AuditMethod("certified")),
    "exact": ("usual", AuditMethod("exact")),
}
"""Our methods and the index each runs on, by the name in the tables."""


def run_bench(
    sets: Sequence[str] = SETS,
    *,
    queries: int = 1000,
    timed: int = 300,
    clusters: int = 1024,
    held_out: bool = False,
    threads: int = 1,
    progress: bool = False,
    items: int | None = None,
) -> Iterator[Bench]:
    """Measure each set in turn.

    Args:
        sets: Names of sets, or paths of vectors.
        queries: Queries whose distributions are compared with the softmax.
        timed: Queries that are timed; 0 for none.
        clusters: Clusters of all indexes but the tree.
        held_out: Remove the queries from the items first, so that no query is also an item.
        threads: Threads for everything that is not timed.
        progress: Show progress bars.
        items: Items of the synthetic sets, a million when None.
    """
    for name in sets:
        data = NAMES[name](items) if items is not None and name in NAMES else open_set(name)
        rows = np.random.default_rng(1).choice(len(data.vectors), size=min(queries, len(data.vectors)), replace=False)
        batch = np.ascontiguousarray(data.vectors[rows])
        vectors = np.delete(data.vectors, rows, axis=0) if held_out else data.vectors
        with reporting(progress) as report:
            built = _build(vectors, clusters, threads, report is not None)
            yield _measure(name, built, batch, timed=timed, threads=threads, report=report)


def _build(vectors: Floats, clusters: int, threads: int, progress: bool) -> _Built:
    options: dict[str, Any] = {"clusters": clusters, "threads": threads, "progress": progress}
    usual = build(vectors, codes=True, **options)
    full = build(vectors, dispersion="full", **options)
    tree = build(vectors, tree=True, threads=threads, progress=progress)
    d = vectors.shape[1]
    search = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, clusters, faiss.METRIC_INNER_PRODUCT)
    search.cp.min_points_per_centroid = 1
    search.train(vectors[: 256 * clusters])
    search.add(vectors)
    search.nprobe = min(SEARCH_PROBES, clusters)
    return _Built(vectors, full, usual, tree, search)


def _measure(name: str, built: _Built, queries: Floats, *, timed: int, threads: int, report: Report | None) -> Bench:
    temperatures = list(TEMPERATURES)
    truths = {
        kind: find_truth(getattr(built, kind).items, queries, temperatures, threads=threads, report=report)
        for kind in ("usual", "tree")
    }
    truths["full"] = truths["usual"]  # the same seed and settings give the same clusters
    kl: dict[tuple[str, float], Mean] = {}
    for place, t in enumerate(temperatures):
        for label, (kind, method) in METHODS.items():
            if method.method not in ("top-k", "certified"):
                index = getattr(built, kind)
                masses = index.cluster_log_masses(queries, temperature=t, threads=threads, **method.options)[0]
                kl[label, t] = _mean(between(masses, truths[kind].log_masses[place]).kl)
        kl["top-k", t], kl["faiss top-1000", t] = _measure_top_k(built, queries, truths["usual"], place, threads)
    milliseconds = _time(built, queries[:timed], report) if timed else {}
    k = round(len(built.vectors) ** 0.5)
    few = queries[:100]
    best = built.usual.top_k(few, k, threads=threads).ids
    head = built.search.search(few, k)[1]
    recall = float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(best, head, strict=True)]))
    return Bench(name, len(built.vectors), len(queries), kl, milliseconds, recall)


def _mean(values: Doubles) -> Mean:
    mean, low, high = mean_interval(values)
    return mean, (high - low) / 2


def _measure_top_k(built: _Built, queries: Floats, truth: Truth, place: int, threads: int) -> tuple[Mean, Mean]:
    """KL of the softmax of the k best items, and of those that faiss finds: minus the log of their mass."""
    k = min(TOP_K, len(built.vectors))
    best = built.usual.top_k(queries, k, threads=threads).ids
    found = built.search.search(queries, k)[1]
    log_partition, temperature = truth.log_partition[place], TEMPERATURES[place]

    def lost(rows: Any) -> Doubles:
        kept = [
            np.logaddexp.reduce(built.vectors[chosen[chosen >= 0]].astype(np.float64) @ query / temperature)
            for query, chosen in zip(queries, rows, strict=True)
        ]
        return np.asarray(np.maximum(0.0, log_partition - kept))

    return _mean(lost(best)), _mean(lost(found))


def _draws(built: _Built) -> dict[str, Draw]:
    """A function that draws once, for each tool and each of our methods."""
    items = built.usual.items
    draws: dict[str, Draw] = {"NumPy exact": NumpyExact(built.vectors).draw}
    with contextlib.suppress(ImportError):
        draws["torch multinomial"] = torch_draw(built.vectors)
    draws["NumPy 2ls"] = NumpyTwoLevel(items, sizes=False).draw
    draws["NumPy s-2ls"] = NumpyTwoLevel(items, sizes=True).draw
    draws["NumPy sd-2ls"] = NumpyTwoLevel(items, sizes=True, covariances=covariances(items)).draw
    draws["faiss top-1000"] = FaissTopK(built.search, TOP_K).draw
    draws["Gumbel-max, faiss head"] = GumbelMax(built.vectors, built.search).draw
    for label, (kind, method) in METHODS.items():
        draws[label] = _our_draw(getattr(built, kind), method)
    return draws


def _our_draw(index: Index, method: AuditMethod) -> Draw:
    return lambda query, temperature: index.sample(query, temperature=temperature, threads=1, **method.options)


def _time(built: _Built, queries: Floats, report: Report | None) -> dict[str, float]:
    """Median milliseconds of a draw over queries and temperatures, all tools on one thread, taking turns."""
    # Every query at one of the temperatures, so that medians are over all of them.
    temperatures = np.random.default_rng(2).permutation(np.resize(TEMPERATURES, len(queries)))
    pairs = list(zip(queries, temperatures.tolist(), strict=True))
    functions = {label: (lambda pair, draw=draw: draw(*pair)) for label, draw in _draws(built).items()}
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        with threadpool_limits(1):
            take_turns(functions, pairs[:3])
            progress = None if report is None else lambda done, total: report("timing", done, total)
            seconds = take_turns(functions, pairs, report=progress)
    finally:
        faiss.omp_set_num_threads(before)
    return {label: float(np.median(values)) * 1e3 for label, values in seconds.items()}
