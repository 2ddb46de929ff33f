"""A sampler from random features of the exponential kernel, for comparison.

It is here and not in the package because sampled softmaxes with random features are patented in the United States.
"""

import math

import torch

from softindex.train.contract import Sampler, Tables
from softindex.train.drawing import cumulate, find, log_normalise


class RandomFeatureSampler(Sampler):
    """Draw classes in proportion to the product of positive random features of query and class.

    With directions g ~ N(0, I) and f(x) = exp(g.x - |x|^2 / 2) the mean of f(query) f(class) over the directions is
    exp(query.class), so q approaches the softmax as their number grows.  A draw chooses a feature, then a class by its
    share of that feature.

    features: number of directions; seed: seed of the directions, which stay the same.
    """

    def __init__(self, num_items, *, features=64, seed=0):
        super().__init__(num_items)
        self.features, self.seed = features, seed

    def _options(self):
        return {"features": self.features}

    def _fit(self, inputs):
        items = inputs.require_items()
        random = torch.Generator().manual_seed(self.seed)
        directions = torch.randn(self.features, items.shape[1], generator=random)
        log_features = (items @ directions.T - (items**2).sum(1, keepdim=True) / 2).double()
        log_features = log_features if inputs.bias is None else log_features + inputs.bias[:, None]
        # The features one after the other, each a cumulative distribution plus its number: one search finds a class.
        numbers = torch.arange(self.features, dtype=torch.float64)
        return Tables(
            {
                "directions": directions,
                "log_features": log_features,
                "log_sums": torch.logsumexp(log_features, 0),
                "inside": (cumulate(log_features.T) + numbers[:, None]).flatten(),
            }
        )

    def _log_weights(self, queries):
        """Log-probabilities (b, features) of choosing each feature."""
        tables = self._ready()
        return log_normalise((queries.float() @ tables["directions"].T).double() + tables["log_sums"])

    def _draw(self, queries, n, positives, generator):
        uniforms = torch.rand((2, len(queries), n), generator=generator, dtype=torch.float64)
        chosen = find(cumulate(self._log_weights(queries)), uniforms[0])
        places = torch.searchsorted(self._ready()["inside"], chosen + uniforms[1], right=True)
        ids = (places - chosen * self.num_items).clamp(0, self.num_items - 1)
        return ids, self._log_q(queries, ids)

    def _log_q(self, queries, ids):
        tables = self._ready()
        log_weights, parts = self._log_weights(queries) - tables["log_sums"], []
        step = max(1, (1 << 22) // (ids.shape[1] * self.features))
        for begin in range(0, len(ids), step):
            here = slice(begin, begin + step)
            parts.append(torch.logsumexp(log_weights[here, None] + tables["log_features"][ids[here]], 2))
        return torch.cat(parts) if parts else torch.full(ids.shape, -math.inf, dtype=torch.float64)
