"""Layers and references that the tests of AdaptiveSoftmax share."""

import numpy as np
import pytest


class Case:
    """A layer with both biases, a few queries, and its logits in float64."""

    def __init__(self, n=300, d=320, scale=1.0, planted=8.0, noise=1.0, seed=0):
        rng = np.random.default_rng(seed)
        self.weights = (scale * rng.standard_normal((n, d)) / np.sqrt(d)).astype(np.float32)
        self.bias = (2 * rng.standard_normal(n)).astype(np.float32)
        self.log_bias = rng.standard_normal(n).astype(np.float32)
        leaning = self.weights[rng.integers(n, size=12)]
        self.queries = (planted * leaning + noise * rng.standard_normal((12, d))).astype(np.float32)

    def scores(self, query):
        """(n,) W x + bias."""
        dots = np.einsum("nd,d->n", self.weights.astype(np.float64), query.astype(np.float64))
        return dots + self.bias

    def logits(self, query, temperature, exclude=()):
        logits = self.scores(query) / temperature + self.log_bias
        logits[list(exclude)] = -np.inf
        return logits

    def log_prob(self, query, temperature, exclude=()):
        logits = self.logits(query, temperature, exclude)
        return logits - np.logaddexp.reduce(logits)


@pytest.fixture
def make_case():
    return Case
