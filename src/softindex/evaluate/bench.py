"""The tables of the two-level paper on the sets that can be had, with today's peers in the same run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from softindex.builder import build
from softindex.evaluate.audit import TEMPERATURES
from softindex.evaluate.contestants import DEFAULT, Contestant, law_masses
from softindex.evaluate.datasets import MADE, open_dataset
from softindex.evaluate.distances import between, mean_interval
from softindex.evaluate.numbers import short
from softindex.evaluate.peers import FaissTopK, GumbelMax, NumpyExact, NumpyTwoLevel, covariances, torch_draw
from softindex.evaluate.tables import Table
from softindex.evaluate.timing import take_turns
from softindex.evaluate.truth import Truth, find_truth, log_sum_of
from softindex.index import Index
from softindex.progress import reporting
from softindex.records import Doubles, Floats, Report

__all__ = ["PAPER_KL", "PAPER_LATENCY", "SETS", "Bench", "kl_table", "latency_table", "run_bench"]

SETS = ("synth-balanced", "synth-unbalanced", "glove")
TOP_K = 1000
SEARCH_PROBES = 32
"""Clusters that faiss looks into, of K: the mass it finds is in the table, beside that of the true k best."""
Draw = Callable[[Floats, float], Any]

# Tables 1 and 2 of "Size- and dispersion-corrected two-level softmax sampling"; its GloVe has 1.2 million words.
PAPER_KL = {
    ("glove", 0.05): (1.9137, 0.0961, 0.5231, 0.0711, 0.0288),
    ("glove", 0.1): (3.9907, 0.0615, 0.2897, 0.0022, 0.0001),
    ("glove", 0.2): (5.4103, 0.0677, 0.3007, 0.0001, 1.2e-6),
    ("synth-balanced", 0.05): (0.0003, 0.5968, 9.4151, 0.3929, 0.6586),
    ("synth-balanced", 0.1): (0.1580, 0.3518, 2.6158, 0.2334, 0.0293),
    ("synth-balanced", 0.2): (2.2841, 0.1296, 0.6342, 0.0117, 0.0083),
    ("synth-unbalanced", 0.05): (0.0090, 0.8959, 10.3033, 0.7096, 0.1740),
    ("synth-unbalanced", 0.1): (0.2318, 0.2858, 3.1780, 0.1728, 0.0314),
    ("synth-unbalanced", 0.2): (2.2393, 0.1935, 0.9311, 0.0059, 0.0023),
}
"""KL of the names in PAPER_NAMES but the first."""
PAPER_LATENCY = {
    "glove": (10.30, 0.439, 0.235, 0.221, 0.245, 0.722),
    "synth-balanced": (8.543, 0.289, 0.222, 0.218, 0.213, 0.690),
    "synth-unbalanced": (8.619, 0.317, 0.213, 0.211, 0.214, 0.691),
}
"""Milliseconds of the names in PAPER_NAMES."""
PAPER_NAMES = ("NumPy exact", "faiss top-1000", "2ls", "hierarchical", "s-2ls", "sd-2ls, full covariances")
"""What the paper calls exact, top-k (by faiss IVFFlat), 2LS, hierarchical, S-2LS and SD-2LS, by our names."""
PAPER_CLUSTERS = 1024
PAPER_ITEMS = {"synth-balanced": 1_000_000, "synth-unbalanced": 1_000_000, "glove": 341_479}
"""Its figures are shown beside ours where these are for as many items (of GloVe: for all that we have)."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured on one set: mean KL with half its 95 % interval, and milliseconds, by contestant."""

    name: str
    items: int
    queries: int
    kl: dict[tuple[str, float], tuple[float, float]]
    milliseconds: dict[str, float]
    """Median over the queries and temperatures."""
    head_recall: float
    """Part of the true sqrt(n) best that the search for the Gumbel head finds."""


@dataclass(frozen=True, slots=True)
class _Built:
    """The three indexes of one set: covariances whole, as in the paper; the default; and a tree."""

    vectors: Floats
    full: Index
    usual: Index
    tree: Index
    search: Any


LAWS = {
    "top-k": ("usual", Contestant("top-k")),
    "2ls": ("usual", Contestant("2ls", 0)),
    "hierarchical": ("tree", Contestant("hierarchical")),
    "s-2ls": ("usual", Contestant("s-2ls", 0)),
    "sd-2ls, full covariances": ("full", Contestant("sd-2ls", 0)),
    "sd-2ls, rank 8": ("usual", Contestant("sd-2ls", 0)),
    "default": ("usual", DEFAULT),
    "certified": ("usual", Contestant("certified")),
    "exact": ("usual", Contestant("exact")),
}
"""Ours, by the name in the tables."""


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

    - `held_out`: the queries are taken out of the items first, so that no query is an item too.
    - `timed`: queries whose latency is taken; 0 for none.
    - `items`: of the synthetic sets, a million when None.
    """
    for name in sets:
        data = MADE[name](items) if items is not None and name in MADE else open_dataset(name)
        rows = np.random.default_rng(1).choice(len(data.vectors), size=min(queries, len(data.vectors)), replace=False)
        asked = np.ascontiguousarray(data.vectors[rows])
        vectors = np.delete(data.vectors, rows, axis=0) if held_out else data.vectors
        with reporting(progress) as report:
            built = _build(vectors, clusters, threads, report is not None)
            yield _measure(name, built, asked, timed, threads, report)


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


def _measure(name: str, built: _Built, queries: Floats, timed: int, threads: int, report: Report | None) -> Bench:
    heats = list(TEMPERATURES)
    truths = {
        kind: find_truth(getattr(built, kind)._contents, queries, heats, threads=threads, report=report)
        for kind in ("usual", "tree")
    }
    truths["full"] = truths["usual"]  # the same seed and settings give the same clusters
    kl: dict[tuple[str, float], tuple[float, float]] = {}
    for place, heat in enumerate(heats):
        for label, (kind, law) in LAWS.items():
            if law.method not in ("top-k", "certified"):
                masses = law_masses(getattr(built, kind), queries, law, heat, threads)[0]
                kl[label, heat] = _mean(between(masses, truths[kind].log_masses[place]).kl)
        kl["top-k", heat], kl["faiss top-1000", heat] = _truncated(
            built, queries, truths["usual"], place, heat, threads
        )
    milliseconds = _time(built, queries[:timed], report) if timed else {}
    k = round(len(built.vectors) ** 0.5)
    few = queries[:100]
    best = built.usual.top_k(few, k, threads=threads).ids
    head = built.search.search(few, k)[1]
    recall = float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(best, head, strict=True)]))
    return Bench(name, len(built.vectors), len(queries), kl, milliseconds, recall)


def _mean(values: Doubles) -> tuple[float, float]:
    mean, low, high = mean_interval(values)
    return mean, (high - low) / 2


def _truncated(
    built: _Built, queries: Floats, truth: Truth, place: int, heat: float, threads: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """KL of the softmax of the k best, and of what faiss takes for them: minus the log of the mass they hold."""
    k = min(TOP_K, len(built.vectors))
    best = built.usual.top_k(queries, k, threads=threads).ids
    found = built.search.search(queries, k)[1]
    log_partition = truth.log_partition[place]

    def lost(rows: Any) -> Doubles:
        kept = [
            log_sum_of(built.vectors, chosen[chosen >= 0], query, heat)
            for query, chosen in zip(queries, rows, strict=True)
        ]
        return np.asarray(np.maximum(0.0, log_partition - kept))

    return _mean(lost(best)), _mean(lost(found))


def _time(built: _Built, queries: Floats, report: Report | None) -> dict[str, float]:
    """Median milliseconds over queries and temperatures of ours and of the peers, all on one thread, taking turns."""
    contents, rng = built.usual._contents, np.random.default_rng(2)
    draws: dict[str, Draw] = {"NumPy exact": NumpyExact(built.vectors).draw}
    with contextlib.suppress(ImportError):
        draws["torch multinomial"] = torch_draw(built.vectors)
    draws["NumPy 2ls"] = NumpyTwoLevel(contents, sizes=False).draw
    draws["NumPy s-2ls"] = NumpyTwoLevel(contents, sizes=True).draw
    draws["NumPy sd-2ls"] = NumpyTwoLevel(contents, sizes=True, covariances=covariances(contents)).draw
    draws["faiss top-1000"] = FaissTopK(built.search, TOP_K).draw
    draws["Gumbel-max, faiss head"] = GumbelMax(built.vectors, built.search).draw
    for label, (kind, law) in LAWS.items():
        draws[label] = _ours(getattr(built, kind), law)
    # Every query at one of the temperatures, so that medians are over all of them.
    heats = rng.permutation(np.resize(TEMPERATURES, len(queries)))
    pairs = list(zip(queries, heats.tolist(), strict=True))
    functions = {label: (lambda pair, draw=draw: draw(*pair)) for label, draw in draws.items()}
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        with threadpool_limits(1):
            take_turns(functions, pairs[:3])
            told = None if report is None else lambda done, total: report("timing", done, total)
            seconds = take_turns(functions, pairs, report=told)
    finally:
        faiss.omp_set_num_threads(before)
    return {label: float(np.median(values)) * 1e3 for label, values in seconds.items()}


def _ours(index: Index, law: Contestant) -> Draw:
    return lambda query, heat: index.sample(query, temperature=heat, threads=1, **law.options)


def kl_table(found: Sequence[Bench], clusters: int, *, held_out: bool = False) -> Table:
    """Table 1 of the paper, with its own figures after the stroke where they are comparable."""
    columns, ours = PAPER_NAMES[1:], ("top-k", "sd-2ls, rank 8", "default")
    rows, compared = [], False
    for heat in TEMPERATURES:
        for bench in found:
            theirs = PAPER_KL[bench.name, heat] if _comparable(bench, clusters) else None
            compared |= theirs is not None
            cells = [_pair(bench.kl[label, heat], theirs and theirs[place]) for place, label in enumerate(columns)]
            rows.append([f"{heat:g}", bench.name, *(_pair(bench.kl[label, heat]) for label in ours[::-1]), *cells])
    kind = "held out" if held_out else "drawn from the items"
    count = ", ".join(dict.fromkeys(str(bench.queries) for bench in found))
    title = f"KL(law || softmax), mean of {count} queries {kind} ± half the 95 % interval, K = {clusters}"
    named = {"hierarchical": "hierarchical, 1024 a leaf", "top-k": "top-k, proven"}
    heads = ["t", "set", *(named.get(label, label) for label in (*ours[::-1], *columns))]
    return Table(f"{title}; after the stroke the paper's figure" if compared else title, heads, rows)


def _comparable(bench: Bench, clusters: int) -> bool:
    """Whether the paper has figures for this set, or all but the few queries held out of it."""
    wanted = PAPER_ITEMS.get(bench.name, 0)
    return clusters == PAPER_CLUSTERS and wanted - bench.queries <= bench.items <= wanted


def _pair(ours: tuple[float, float], theirs: float | None = None) -> str:
    text = f"{short(ours[0])} ± {short(ours[1])}"
    return text if theirs is None else f"{text} / {short(theirs)}"


def latency_table(found: Sequence[Bench], timed: int, clusters: int) -> Table:
    """Table 2 of the paper: milliseconds and speed-up over NumPy exact, with its own figures after the stroke."""
    rows, compared = [], False
    for label in found[0].milliseconds:
        row = ["top-k, proven" if label == "top-k" else label]
        for bench in found:
            reference = bench.milliseconds["NumPy exact"]
            text = f"{bench.milliseconds[label]:.3g} ({reference / bench.milliseconds[label]:,.1f}x)"
            if _comparable(bench, clusters) and label in PAPER_NAMES:
                theirs, place, compared = PAPER_LATENCY[bench.name], PAPER_NAMES.index(label), True
                text += f" / {theirs[place]:.3g} ({theirs[0] / theirs[place]:.1f}x)"
            row.append(text)
        rows.append(row)
    title = (
        f"Milliseconds a draw (and speed-up over NumPy exact), median of {timed} queries at the three temperatures, "
        f"one thread, taking turns, K = {clusters}"
    )
    heads = ["method", *(f"{bench.name}, {bench.items:,} items" for bench in found)]
    return Table(f"{title}; after the stroke the paper's figure" if compared else title, heads, rows)
