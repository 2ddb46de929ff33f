"""Catalogues cut into shards, and the index of all items to compare with."""

from functools import cache

import numpy as np

import softindex
from softindex.sharded import join

N, D = 1200, 12
COUNTS = (1, 2, 3, 8)


@cache
def catalogue():
    """Unbalanced groups (N, D), log biases (N,), and queries (6, D)."""
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((20, D))
    group = rng.choice(20, size=N, p=np.arange(1, 21) / 210)
    vectors = (centres[group] + 0.4 * rng.standard_normal((N, D))).astype(np.float32)
    return vectors, rng.standard_normal(N).astype(np.float32), rng.standard_normal((6, D)).astype(np.float32)


@cache
def built(count, biased=False, how="uneven", **options):
    """The shards as indexes; how: "uneven" random parts, or "sorted" ones that are far from alike."""
    vectors, log_bias, _ = catalogue()
    rng = np.random.default_rng(4)
    order = rng.permutation(N) if how == "uneven" else np.argsort(vectors[:, 0])
    cuts = np.sort(rng.choice(np.arange(40, N - 40), count - 1, replace=False))
    return [
        softindex.build(
            vectors[rows], ids=rows, log_bias=log_bias[rows] if biased else None, threads=1, **dict(options)
        )
        for rows in np.split(order, cuts)
    ]


def sharded(count, **options):
    return join(built(count, **options))


@cache
def unsharded(biased=False):
    vectors, log_bias, _ = catalogue()
    return softindex.build(vectors, log_bias=log_bias if biased else None, threads=1)
