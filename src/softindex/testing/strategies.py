"""Hypothesis strategies: catalogues, queries and temperatures worth trying."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from softindex.records import Floats

__all__ = ["Catalogue", "catalogues", "queries", "temperatures"]

KINDS = ("gaussian", "clustered", "unbalanced", "duplicated", "identical", "zero", "long", "line")


@dataclass(frozen=True)
class Catalogue:
    """Vectors (n, d) float32, a number of clusters that suits them, and log biases (n,) or None."""

    vectors: Floats
    clusters: int
    log_bias: Floats | None

    def first(self, items: int) -> Catalogue:
        """Return the same of the first items only."""
        bias = None if self.log_bias is None else self.log_bias[:items]
        return Catalogue(self.vectors[:items], min(self.clusters, items), bias)


def _vectors(kind: str, n: int, d: int, rng: np.random.Generator) -> NDArray[np.float64]:
    normal = rng.standard_normal((n, d))
    if kind == "clustered":
        return rng.standard_normal((5, d))[rng.integers(5, size=n)] + 0.1 * normal
    if kind == "unbalanced":
        weights = np.exp(2.0 * rng.standard_normal(6))
        return rng.standard_normal((6, d))[rng.choice(6, size=n, p=weights / weights.sum())] + 0.2 * normal
    if kind == "duplicated":
        return normal[rng.integers(max(1, n // 4), size=n)]
    if kind == "identical":
        return np.repeat(normal[:1], n, axis=0)
    if kind == "zero":
        return np.zeros((n, d))
    if kind == "long":
        return 1e3 * normal * np.exp(rng.standard_normal((n, 1)))
    if kind == "line":
        return rng.standard_normal((n, 1)) * normal[:1]
    return np.asarray(normal / np.sqrt(d))


@st.composite
def catalogues(draw: st.DrawFn, *, biased: bool | None = None) -> Catalogue:
    """Small catalogues of every kind: balanced or not, duplicated, identical, zero, long, on a line."""
    n, d = draw(st.integers(1, 200)), draw(st.sampled_from((1, 2, 3, 7, 16, 17, 33)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    vectors = _vectors(draw(st.sampled_from(KINDS)), n, d, rng).astype(np.float32)
    with_bias = draw(st.booleans()) if biased is None else biased
    # Multiples of 1/1024: so that adding a small integer to all of them rounds nothing.
    log_bias = np.asarray(np.round(3072.0 * rng.standard_normal(n)) / 1024, np.float32) if with_bias else None
    clusters = draw(st.sampled_from(sorted({1, min(n, 3), max(1, round(n**0.5)), n})))
    return Catalogue(vectors, clusters, log_bias)


@st.composite
def queries(draw: st.DrawFn, dim: int, *, count: int | None = None) -> Floats:
    """Between one and seven queries (b, dim), or `count` of them; now and then one is zero or long."""
    b = draw(st.integers(1, 7)) if count is None else count
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scales = np.array([draw(st.sampled_from((0.0, 0.01, 1.0, 1.0, 1.0, 30.0))) for _ in range(b)])
    return np.asarray(rng.standard_normal((b, dim)) * scales[:, None], np.float32)


def temperatures() -> st.SearchStrategy[float]:
    """Temperatures from nearly greedy to nearly uniform."""
    return st.sampled_from((1e-4, 0.05, 0.1, 0.2, 1.0, 7.5, 1e4))
