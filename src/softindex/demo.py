"""The library's main job on a catalogue made up on the spot: how close each law is, and how fast."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from softindex.index import Index, build
from softindex.laws import FLAT_METHODS
from softindex.records import Doubles, Floats

__all__ = ["TEMPERATURES", "Line", "build_catalogue", "compare", "unbalanced_catalogue"]

TEMPERATURES = (0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True)
class Line:
    """One method at one temperature."""

    temperature: float
    method: str
    kl: float
    """Mean over the queries of KL(law || exact softmax)."""
    microseconds: float
    """Median latency of one draw for one query, on one thread."""
    speedup: float
    """How many times faster than this library's exact draw."""
    items_scored: float


def unbalanced_catalogue(items: int, *, dim: int, groups: int, seed: int) -> Floats:
    """Items around groups of very different popularity: means on the unit sphere, noise of 0.1, weights exp(0.8 Z)."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((groups, dim), dtype=np.float32)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    weights = np.exp(0.8 * rng.standard_normal(groups))
    group = rng.choice(groups, size=items, p=weights / weights.sum())
    vectors = rng.standard_normal((items, dim), dtype=np.float32)
    vectors *= 0.1
    for start in range(0, items, 1 << 16):
        vectors[start : start + (1 << 16)] += means[group[start : start + (1 << 16)]]
    return vectors


def build_catalogue(items: int, *, seed: int, threads: int | None) -> tuple[Index, Floats]:
    """Build an index of the made-up catalogue; returns it and 30 of its items to serve as queries."""
    groups = max(1, round(items**0.5))
    vectors = unbalanced_catalogue(items, dim=64, groups=groups, seed=seed)
    index = build(vectors, seed=seed, threads=threads, progress=True)
    rows = np.random.default_rng(seed + 1).choice(items, size=min(30, items), replace=False)
    return index, vectors[rows]


def compare(index: Index, queries: Floats) -> Iterator[Line]:
    """Measure every method at every temperature on these queries."""
    for temperature in TEMPERATURES:
        truth = _laws(index, queries, "exact", temperature)
        slowest = 0.0
        for method in FLAT_METHODS:
            microseconds, scored = _latency(index, queries, method, temperature)
            slowest = microseconds if method == "exact" else slowest
            kl = 0.0  # of exact, by definition
            if method != "exact":
                laws = _laws(index, queries, method, temperature)
                kl = float((np.exp(laws) * (laws - truth)).sum(axis=1).mean())
            yield Line(temperature, method, kl, microseconds, slowest / microseconds, scored)


def _latency(index: Index, queries: Floats, method: str, temperature: float) -> tuple[float, float]:
    times, scored = [], []
    # Round once before the clock runs, as the method before has emptied the caches.
    for query in (*queries[:5], *queries):
        begin = time.perf_counter()
        draws = index.sample(query, temperature=temperature, method=method, seed=0, threads=1)
        times.append(time.perf_counter() - begin)
        scored.append(int(draws.items_scored))
    return float(np.median(times[5:])) * 1e6, float(np.mean(scored[5:]))


def _laws(index: Index, queries: Floats, method: str, temperature: float) -> Doubles:
    """Log-probability of every item for every query: (b, n)."""
    return index.log_prob(queries, index.ids, temperature=temperature, method=method)
