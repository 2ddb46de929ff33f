"""Random streams named by the content of a query, so that draws do not depend on how queries are batched or ordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from softindex.kernels import hash_bytes

__all__ = ["generators"]


def generators(queries: Iterable[bytes], seed: int) -> list[np.random.Generator]:
    """One generator per query, determined by the seed, the query's bytes and how many copies of it came before.

    Copies of a query in one call draw differently.
    """
    copies: Counter[int] = Counter()
    streams = []
    for content in queries:
        name = hash_bytes(content)
        streams.append(np.random.default_rng([seed, name, copies[name]]))
        copies[name] += 1
    return streams
