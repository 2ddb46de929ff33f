"""How decisions ask an index: a server in calls of a size that it takes, and without adding to its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from softindex.records import Doubles

__all__ = ["CHOICES", "ask_log_prob", "ask_parts", "unlogged"]

CHOICES = ("exclude", "allow")
"""Of a batch of decisions: an entry for each."""


def unlogged(index: Any) -> Any:
    """The index; a client, such that its draws stay out of the log of decisions."""
    return index.unlogged() if hasattr(index, "unlogged") else index


def ask_parts(
    index: Any, options: dict[str, Any], *rows: Any, by_query: tuple[str, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """Parts of arrays with a row for each query, as many at a time as the index takes, and the options of each part.

    by_query: Options that have an entry for each query; a temperature may.
    """
    b = len(rows[0])
    most = getattr(index, "most_queries", b)
    cut = {name for name, value in options.items() if name in by_query or (name == "temperature" and np.ndim(value))}
    for begin in range(0, b, most):
        part = slice(begin, begin + most)
        own = {name: value[part] if name in cut else value for name, value in options.items()}
        yield (*(row[part] for row in rows), own)


def ask_log_prob(index: Any, queries: Any, ids: Any, **options: Any) -> Doubles:
    """`index.log_prob` of (b, m) ids; `exclude` and `allow` have an entry for each query."""
    parts = ask_parts(index, options, queries, ids, by_query=CHOICES)
    return np.concatenate([index.log_prob(some, those, **own) for some, those, own in parts])
