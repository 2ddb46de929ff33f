"""What users write today: the exact draw and the two-level draw in plain NumPy."""

from itertools import pairwise

import numpy as np


class NumpyExact:
    """One BLAS matrix-vector product, the exponentials in place, a cumulative sum, a binary search."""

    name = "NumPy exact"

    def __init__(self, vectors):
        self.vectors = vectors
        self.rng = np.random.default_rng(0)

    def draw(self, query, temperature):
        """Draw one row number."""
        logits = self.vectors @ query
        logits -= logits.max()
        logits /= temperature
        np.exp(logits, out=logits)
        cumulative = np.cumsum(logits, dtype=np.float64)
        return int(np.searchsorted(cumulative, self.rng.random() * cumulative[-1], side="right"))


class NumpyPlain:
    """s-2ls as one writes it down in NumPy: two softmaxes, two calls of choice, and the log-probability of the draw."""

    name = "NumPy s-2ls, plain"

    def __init__(self, vectors, offsets, means):
        self.clusters = [vectors[begin:end] for begin, end in pairwise(offsets)]
        self.offsets, self.means = offsets, means
        self.log_sizes = np.log(np.maximum(np.diff(offsets), 1e-300)).astype(np.float32)
        self.rng = np.random.default_rng(0)

    def _softmax(self, logits):
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def draw(self, query, temperature):
        """Draw one position in cluster order, with its log-probability."""
        cells = self._softmax(self.means @ query / temperature + self.log_sizes)
        cell = self.rng.choice(len(cells), p=cells)
        items = self._softmax(self.clusters[cell] @ query / temperature)
        item = self.rng.choice(len(items), p=items)
        return self.offsets[cell] + item, np.log(cells[cell]) + np.log(items[item])


class NumpyTuned:
    """The same with every trick that NumPy allows: in place, cumulative sums and binary search; no log-probability."""

    name = "NumPy s-2ls, tuned"

    def __init__(self, vectors, offsets, means):
        self.vectors, self.offsets, self.means = vectors, offsets, means
        self.log_sizes = np.log(np.maximum(np.diff(offsets), 1e-300)).astype(np.float32)
        self.rng = np.random.default_rng(0)

    def _pick(self, logits):
        logits -= logits.max()
        np.exp(logits, out=logits)
        cumulative = logits.cumsum()
        return int(cumulative.searchsorted(self.rng.random() * cumulative[-1], side="right"))

    def draw(self, query, temperature):
        """Draw one position in cluster order."""
        logits = self.means @ query
        logits /= temperature
        logits += self.log_sizes
        cell = self._pick(logits)
        begin, end = self.offsets[cell], self.offsets[cell + 1]
        inside = self.vectors[begin:end] @ query
        inside /= temperature
        return begin + self._pick(inside)
