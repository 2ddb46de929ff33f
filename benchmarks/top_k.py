"""The ten best items: proven, and with a recall, against faiss and usearch in the same run."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np

import softindex
from benchmarks.data import glove
from benchmarks.tables import Table
from softindex.evaluate.datasets import synth_unbalanced
from softindex.evaluate.timing import take_turns
from softindex.records import Floats

BEST = 10
QUERIES = 200
BATCH = 256
RECALLS = (0.9, 0.95, 0.99)
PROBES = (8, 16, 32, 64, 128, 256)
"""Lists that IVF searches: its curve of recall against time."""
Search = Callable[[Floats], Floats]
"""The scores (b, 10) that a search finds for queries (b, d), in any order."""


def sentences() -> Floats | None:
    """117,000 definitions in 384 dimensions: a static sentence model (256) beside latent-semantic vectors (128)."""
    try:
        texts = importlib.import_module("benchmarks.texts")
    except ModuleNotFoundError as error:
        print(f"Sentences are left out: {error}")
        return None
    model, latent = texts.sentences(), texts.latent_semantic(128)
    if model is None or latent is None:
        return None
    joined = np.hstack([model.glosses, 0.7 * latent.glosses]).astype(np.float32)
    joined /= np.maximum(np.linalg.norm(joined, axis=1, keepdims=True), 1e-12)
    return np.unique(joined, axis=0)


def our_searches(index: Any) -> dict[str, Search]:
    """Ours, by name."""
    searches: dict[str, Search] = {"softindex, proven": lambda queries: index.top_k(queries, BEST, threads=1).scores}
    for recall in RECALLS:
        searches[f"softindex, recall={recall}"] = lambda queries, recall=recall: (  # type: ignore[misc]
            index.top_k(queries, BEST, recall=recall, threads=1).scores
        )
    return searches


def numpy_search(items: Floats) -> Search:
    """A matrix product and a selection: what BLAS makes of a batch."""
    return lambda queries: np.partition(queries @ items.T, -BEST, axis=1)[:, -BEST:]


def faiss_searches(items: Floats, clusters: int, *, graphs: bool) -> dict[str, Search]:
    """Those of faiss.  IVFPQ keeps four bits for two numbers, and refines 100 candidates with the vectors."""
    d = items.shape[1]

    def made(recipe: str) -> Any:
        index = faiss.index_factory(d, recipe, faiss.METRIC_INNER_PRODUCT)
        index.train(items)
        index.add(items)
        return index

    def search(index: Any, **parameters: int) -> Search:
        def run(queries: Floats) -> Floats:
            for name, value in parameters.items():
                faiss.ParameterSpace().set_index_parameter(index, name, value)
            return index.search(queries, BEST)[0]

        return run

    flat, ivf = made("Flat"), made(f"IVF{clusters},Flat")
    pq = made(f"IVF{clusters},PQ{d // 2}x4fs,RFlat")
    searches = {"faiss Flat": search(flat)}
    searches |= {f"faiss IVFFlat, nprobe {m}": search(ivf, nprobe=m) for m in PROBES}
    searches |= {f"faiss IVFPQ x4fs, refined, nprobe {m}": search(pq, nprobe=m, k_factor_rf=10) for m in (16, 64, 256)}
    if not graphs:
        return searches
    hnsw = made("HNSW32")
    return searches | {f"faiss HNSW32, efSearch {ef}": search(hnsw, efSearch=ef) for ef in (64, 256, 1024)}


def usearch_searches(items: Floats) -> dict[str, Search]:
    """Those of usearch, if it is installed."""
    try:
        usearch: Any = importlib.import_module("usearch.index")
    except ImportError as error:
        print(f"usearch is left out: {error}")
        return {}
    index = usearch.Index(ndim=items.shape[1], metric="ip", dtype="f32", connectivity=32)
    index.add(np.arange(len(items)), items, threads=0)

    def search(expansion: int) -> Search:
        def run(queries: Floats) -> Floats:
            index.expansion_search = expansion
            found = index.search(queries, BEST, threads=1)
            # It reports one minus the dot product.
            return np.atleast_2d(1.0 - found.distances)

        return run

    return {f"usearch HNSW, expansion {ef}": search(ef) for ef in (64, 256, 1024)}


def measure(name: str, vectors: Floats, *, graphs: bool) -> Table:
    """The table of one set, with queries held out; graphs: whether to build those that take long."""
    chosen = np.random.default_rng(5).choice(len(vectors), QUERIES + BATCH, replace=False)
    held, items = np.ascontiguousarray(vectors[chosen]), np.delete(vectors, chosen, axis=0)
    queries, batch = [query[None] for query in held[:QUERIES]], held[QUERIES:]
    index = softindex.build(items, progress=True)
    searches = {**our_searches(index), "NumPy": numpy_search(items)}
    searches |= faiss_searches(items, index.clusters, graphs=graphs)
    if graphs:
        searches |= usearch_searches(items)
    faiss.omp_set_num_threads(1)
    truth = np.sort(held[:QUERIES].astype(np.float64) @ items.T.astype(np.float64), axis=1)[:, -BEST:][:, :1]
    # The time of the process: all run on one thread, and others may be waiting for the same cores.
    single = take_turns(searches, queries, clock=time.process_time)
    together = take_turns(searches, [batch] * 3, stretch=1, clock=time.process_time)
    rows = []
    flat = {"single": np.median(single["faiss Flat"]), "batch": np.median(together["faiss Flat"])}
    for label, run in searches.items():
        scores = np.concatenate([run(query) for query in queries])
        recall = float((scores >= truth - 1e-5).mean())
        one, all_of_them = float(np.median(single[label])), float(np.median(together[label]))
        rows.append(
            (
                label,
                f"{recall:.4f}",
                f"{1e3 * one:.3g} ({flat['single'] / one:.1f}x)",
                f"{1e3 * all_of_them / len(batch):.3g} ({flat['batch'] / all_of_them:.1f}x)",
            )
        )
    n, d = items.shape
    stated = {recall: index.top_k(held[:QUERIES], BEST, recall=recall).recall.mean() for recall in RECALLS}
    said = ", ".join(f"{value:.4f} for {recall}" for recall, value in stated.items())
    title = f"{name}, {n:,} x {d}: the ten best of {QUERIES} held-out queries, and a batch of {BATCH}"
    title += f"; recall stated: {said}"
    return Table(title, ("search", "recall", "ms, single query (x faiss Flat)", "ms per query in a batch"), rows)


def run(options: Any) -> list[Table]:
    """Tables of GloVe, sentence vectors and the synthetic set."""
    faiss.omp_set_num_threads(2)
    sets = {"GloVe": glove(), "Sentences": sentences(), "synth-unbalanced": synth_unbalanced(options.items).vectors}
    return [
        measure(name, vectors, graphs=len(vectors) < 500_000) for name, vectors in sets.items() if vectors is not None
    ]
