"""The same draw with NumPy, faiss and torch, each written as well as the tool allows."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from softindex.records import Floats, Integers, Items

__all__ = ["FaissTopK", "GumbelMax", "NumpyExact", "NumpyTuned", "NumpyTwoLevel", "covariances", "torch_draw"]


class NumpyExact:
    """One BLAS matrix-vector product, the exponentials in place, a cumulative sum, a binary search."""

    def __init__(self, vectors: Floats) -> None:
        self.vectors = vectors
        self.rng = np.random.default_rng(0)

    def draw(self, query: Floats, temperature: float) -> int:
        """Draw one row number."""
        logits = self.vectors @ query
        logits -= logits.max()
        logits /= temperature
        np.exp(logits, out=logits)
        cumulative = np.cumsum(logits, dtype=np.float64)
        return int(np.searchsorted(cumulative, self.rng.random() * cumulative[-1], side="right"))


class NumpyTwoLevel:
    """Two levels as in the paper: a softmax over clusters, then one inside the cluster.

    `sizes` adds log |C| (S-2LS); `covariances` (k, d, d) adds q' S q / 2t^2 as well (SD-2LS).
    """

    def __init__(self, items: Items, *, sizes: bool, covariances: Floats | None = None) -> None:
        self.clusters = [items.vectors[begin:end] for begin, end in pairwise(items.offsets)]
        self.offsets, self.means = items.offsets, items.means
        counts = np.diff(items.offsets)
        offset = np.log(np.maximum(counts, 1)) if sizes else np.zeros(len(counts))
        self.offset = np.where(counts > 0, offset, -np.inf).astype(np.float32)
        self.covariances = covariances
        self.rng = np.random.default_rng(0)

    def _softmax(self, logits: Floats) -> Floats:
        weights = np.exp(logits - logits.max())
        return np.asarray(weights / weights.sum())

    def draw(self, query: Floats, temperature: float) -> tuple[int, float]:
        """Draw one position in cluster order, with its log-probability."""
        logits = self.means @ query / temperature + self.offset
        if self.covariances is not None:
            # Two matrix products: einsum over three operands takes thirty times as long.
            logits += (self.covariances @ query) @ query / np.float32(2 * temperature**2)
        clusters = self._softmax(logits)
        cluster = int(self.rng.choice(len(clusters), p=clusters))
        items = self._softmax(self.clusters[cluster] @ query / temperature)
        item = int(self.rng.choice(len(items), p=items))
        return int(self.offsets[cluster]) + item, float(np.log(clusters[cluster]) + np.log(items[item]))


class NumpyTuned:
    """s-2ls as fast as NumPy allows: in place, with cumulative sums and binary search; no log-probability."""

    def __init__(self, items: Items) -> None:
        self.vectors, self.offsets, self.means = items.vectors, items.offsets, items.means
        self.log_sizes = np.log(np.maximum(np.diff(items.offsets), 1e-300)).astype(np.float32)
        self.rng = np.random.default_rng(0)

    def _pick(self, logits: Floats) -> int:
        logits -= logits.max()
        np.exp(logits, out=logits)
        cumulative = logits.cumsum()
        return int(cumulative.searchsorted(self.rng.random() * cumulative[-1], side="right"))

    def draw(self, query: Floats, temperature: float) -> int:
        """Draw one position in cluster order."""
        logits = self.means @ query
        logits /= temperature
        logits += self.log_sizes
        cluster = self._pick(logits)
        begin, end = self.offsets[cluster], self.offsets[cluster + 1]
        inside = self.vectors[begin:end] @ query
        inside /= temperature
        return int(begin) + self._pick(inside)


class FaissTopK:
    """The softmax of the k best that a faiss index finds."""

    def __init__(self, index: Any, k: int) -> None:
        self.index, self.k = index, k
        self.rng = np.random.default_rng(0)

    def draw(self, query: Floats, temperature: float) -> tuple[int, float]:
        """Draw one row number, with its log-probability among the k."""
        scores, rows = self.index.search(query[None], self.k)
        found = rows[0] >= 0
        logits = scores[0][found] / temperature
        logits -= logits.max()
        weights = np.exp(logits)
        cumulative = weights.cumsum()
        place = int(cumulative.searchsorted(self.rng.random() * cumulative[-1], side="right"))
        return int(rows[0][place]), float(logits[place] - np.log(cumulative[-1]))


class GumbelMax:
    """Gumbel-max with a head found by search and a tail drawn lazily (Mussmann, Levy and Ermon, 2017).

    Each of the sqrt(n) best items, the head, gets a Gumbel number.  Another item can only win if its own Gumbel number
    exceeds the best sum so far minus the head's worst score.  The number of such items is binomial, they are uniform
    among the others, and their Gumbel numbers are drawn above that bound.  Exact if the head is; no log-probability.
    """

    def __init__(self, vectors: Floats, index: Any) -> None:
        self.vectors, self.index = vectors, index
        self.k = round(len(vectors) ** 0.5)
        self.rng = np.random.default_rng(0)

    def draw(self, query: Floats, temperature: float) -> int:
        """Draw one row number."""
        scores, rows = self.index.search(query[None], self.k)
        found = rows[0] >= 0
        head, logits = rows[0][found], scores[0][found].astype(np.float64) / temperature
        sums = logits - np.log(self.rng.standard_exponential(len(logits)))
        best = int(sums.argmax())
        bound = sums[best] - logits.min()
        chance = -np.expm1(-np.exp(-bound))
        count = int(self.rng.binomial(len(self.vectors) - len(head), chance))
        if count == 0:
            return int(head[best])
        tail = self._others(head, count)
        # Above the bound, -log(-log u) for u uniform between exp(-exp(-bound)) and 1.
        gumbels = -np.log(-np.log1p(-chance * self.rng.random(count)))
        tail_sums = (self.vectors[tail] @ query).astype(np.float64) / temperature + gumbels
        place = int(tail_sums.argmax())
        return int(tail[place]) if tail_sums[place] > sums[best] else int(head[best])

    def _others(self, head: Integers, count: int) -> Integers:
        """`count` different rows outside the head, uniformly."""
        taken, chosen = set(head.tolist()), list[int]()
        while len(chosen) < count:
            row = int(self.rng.integers(len(self.vectors)))
            if row not in taken:
                taken.add(row)
                chosen.append(row)
        return np.array(chosen)


def torch_draw(vectors: Floats) -> Callable[[Floats, float], int]:
    """A draw by torch.multinomial from the full softmax, on one thread; ImportError without torch."""
    # Imported only here: the tables can be measured without torch.
    torch: Any = importlib.import_module("torch")
    # torch warns about read-only memory, such as a mapped file.
    items = torch.from_numpy(np.require(vectors, requirements="W"))

    def draw(query: Floats, temperature: float) -> int:
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        logits = items @ torch.from_numpy(query)
        return int(torch.multinomial(torch.softmax(logits / temperature, dim=0), 1))

    return draw


def covariances(items: Items) -> Floats:
    """The full covariance (k, d, d) of each cluster, for NumpyTwoLevel."""
    d = items.vectors.shape[1]
    forms = np.zeros((len(items.offsets) - 1, d, d), np.float32)
    for cluster, (begin, end) in enumerate(pairwise(items.offsets)):
        if end > begin:
            away = items.vectors[begin:end] - items.means[cluster]
            forms[cluster] = away.T @ away / (end - begin)
    return forms
