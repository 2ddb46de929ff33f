"""A peer that only a benchmark of latencies needs; the others are in softindex.evaluate.peers."""

import numpy as np


class NumpyTuned:
    """s-2ls with every trick that NumPy allows: in place, cumulative sums and binary search; no log-probability."""

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
        cluster = self._pick(logits)
        begin, end = self.offsets[cluster], self.offsets[cluster + 1]
        inside = self.vectors[begin:end] @ query
        inside /= temperature
        return begin + self._pick(inside)
