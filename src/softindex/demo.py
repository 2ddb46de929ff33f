"""The library's main job on a catalogue made up on the spot: how close each law is, and how fast."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from softindex.evaluate.datasets import synth_unbalanced
from softindex.index import Index, build
from softindex.laws import CERTIFIED
from softindex.records import Doubles, Floats

__all__ = ["LEGEND", "TEMPERATURES", "Line", "build_catalogue", "compare", "conclude"]

TEMPERATURES = (0.05, 0.1, 0.2)
DEFAULT = "sd-2ls", None
ASKED = ("exact", None), (CERTIFIED, None), ("2ls", 0), ("s-2ls", 0), ("sd-2ls", 0), DEFAULT
"""The methods compared, each with its number of probes."""
LEGEND = (
    "t is the temperature. KL(law || softmax) and TV, the total variation (the probability that lies on the wrong "
    "items, 0 to 1), are measured over all items against exact; those of certified are 0 by construction. Stated "
    "error: the TV that a method itself estimates and tells with its draws, as draws.error; - where it tells none. "
    "These and the items scored are means over the queries; microseconds are the median of one draw, and speed-up is "
    "against exact. probes=0 is the law as published, which chooses a cluster before it looks at any item; the "
    "default first scans the clusters that matter most."
)


@dataclass(frozen=True, slots=True)
class Line:
    """One method at one temperature."""

    temperature: float
    method: str
    probes: int | None
    """0: the published law."""
    kl: float
    """Mean over the queries of KL(law || exact softmax)."""
    total_variation: float
    """Mean over the queries of the total variation between the law and the exact softmax."""
    stated_error: float | None
    """Mean over the queries of the error that the draws came with; None where none is stated."""
    microseconds: float
    """Median latency of one draw for one query, on one thread."""
    speedup: float
    """How many times faster than this library's exact draw."""
    items_scored: float
    """Mean over the queries."""

    @property
    def label(self) -> str:
        """The method, and what is to be known about its probes."""
        if (self.method, self.probes) == DEFAULT:
            return f"{self.method} (default)"
        return self.method if self.probes is None else f"{self.method}, probes={self.probes}"


def build_catalogue(items: int, *, seed: int, threads: int | None) -> tuple[Index, Floats]:
    """Build an index of a made-up catalogue, items around groups of very different popularity.

    Returns it and 30 of its items to serve as queries.
    """
    groups = max(1, round(items**0.5))
    vectors = synth_unbalanced(items, d=64, groups=groups, seed=seed).vectors
    index = build(vectors, codes=True, seed=seed, threads=threads, progress=True)
    rows = np.random.default_rng(seed + 1).choice(items, size=min(30, items), replace=False)
    return index, vectors[rows]


def compare(index: Index, queries: Floats) -> Iterator[Line]:
    """Measure every method at every temperature on these queries."""
    for temperature in TEMPERATURES:
        truth = _laws(index, queries, "exact", None, temperature)
        slowest = 0.0
        for method, probes in ASKED:
            microseconds, scored, stated = _draw(index, queries, method, probes, temperature)
            slowest = microseconds if method == "exact" else slowest
            kl, variation = 0.0, 0.0  # of exact by definition, of certified by construction: it is the same law
            if method not in ("exact", CERTIFIED):
                kl, variation = _distances(_laws(index, queries, method, probes, temperature), truth)
            speedup = slowest / microseconds
            yield Line(temperature, method, probes, kl, variation, stated, microseconds, speedup, scored)


def conclude(lines: Sequence[Line]) -> str:
    """What to take from the lines, in words."""
    default, published, certified = (
        [line for line in lines if (line.method, line.probes) == asked]
        for asked in (DEFAULT, ("sd-2ls", 0), (CERTIFIED, None))
    )
    stated = max(line.stated_error or 0.0 for line in default)
    return (
        "What to take from it: start with the default, and read the error that it states. Here it is at least "
        f"{_slowest(default):.1f} times as fast as scoring every item, its mean TV is up to {_farthest(default):.2g}, "
        f"and it states up to {stated:.2g}; sd-2ls as published is up to {_farthest(published):.2g} off and does not "
        "say so. Where no error is allowed, use certified: the softmax itself, here at least "
        f"{_slowest(certified):.1f} times as fast as exact."
    )


def _farthest(lines: Sequence[Line]) -> float:
    return max(line.total_variation for line in lines)


def _slowest(lines: Sequence[Line]) -> float:
    return min(line.speedup for line in lines)


def _draw(
    index: Index, queries: Floats, method: str, probes: int | None, temperature: float
) -> tuple[float, float, float | None]:
    """Draw once for each query: the median latency, and the means of the items scored and of the stated error."""
    times, scored, stated = [], [], []
    # Round once before the clock runs, as the method before has emptied the caches.
    for query in (*queries[:5], *queries):
        begin = time.perf_counter()
        draws = index.sample(query, temperature=temperature, method=method, probes=probes, seed=0, threads=1)
        times.append(time.perf_counter() - begin)
        scored.append(int(draws.items_scored))
        stated.append(float(draws.error))
    error = float(np.mean(stated[5:]))
    return float(np.median(times[5:])) * 1e6, float(np.mean(scored[5:])), None if np.isnan(error) else error


def _laws(index: Index, queries: Floats, method: str, probes: int | None, temperature: float) -> Doubles:
    """Log-probability of every item for every query: (b, n)."""
    return index.log_prob(queries, index.ids, temperature=temperature, method=method, probes=probes)


def _distances(laws: Doubles, truth: Doubles) -> tuple[float, float]:
    """KL(law || truth) and total variation, means over the queries, from log-probabilities (b, n)."""
    kl, variation = [], []
    for law, exact in zip(laws, truth, strict=True):
        chances = np.exp(law)
        kl.append(max(0.0, float(chances @ (law - exact))))  # rounding may leave it just below
        variation.append(0.5 * float(np.abs(chances - np.exp(exact)).sum()))
    return float(np.mean(kl)), float(np.mean(variation))
