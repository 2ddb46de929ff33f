"""What users write today: the exact draw and the two-level draw in plain NumPy."""

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


class NumpyTwoLevel:
    """s-2ls with the clusters contiguous in memory and everything precomputed: no handicap but NumPy's own."""

    name = "NumPy s-2ls"

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
