"""What the coordinator asks every shard, and what a shard answers: plain records of arrays, for any transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.records import Doubles, Floats, Ids, Integers

__all__ = ["Answer", "Chosen", "Description", "Listed", "LogZ", "Question", "Rows", "at_rows"]

Rows = list[Any] | None
"""Ids for all queries (one entry) or for each of them; None where nothing is said."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The items that queries may draw: ids of shards that are not asked here are unknown to this one, and ignored."""

    exclude: Rows = None
    allow: Rows = None
    must_exist: bool = True
    """Whether the shard says which of the ids it knows: an id that no shard knows is an error."""


@dataclass(frozen=True, slots=True)
class Question:
    """One call, for all its queries."""

    name: str
    """One of "sample", "listed", "log_prob", "log_partition", "top_k" and "vectors"."""
    queries: Floats
    """(b, d)"""
    options: dict[str, Any]
    """Of the method of `Index` that is asked, without what follows."""
    chosen: Chosen = field(default_factory=Chosen)
    n: int = 1
    """Draws, or best items, of each query."""
    seed: int = 0
    ids: Any = None
    """Whose log-probability is asked: (b, m)."""
    top_p: float | None = None
    floor: Doubles | None = None
    """(b,) of a nucleus: the smallest log weight that it may reach down to; None if that is not known yet."""


def at_rows(temperature: Any, rows: Any) -> Any:
    """The temperature of some queries: one number is that of all of them."""
    return temperature if np.ndim(temperature) == 0 else temperature[rows]


@dataclass(frozen=True, slots=True)
class LogZ:
    """log Z of the items of one shard that queries may draw; -inf where there are none."""

    value: Doubles
    """(b,)"""
    low: Doubles
    """(b,) proven lower bound; the value where there is none."""
    high: Doubles
    """(b,) proven upper bound; the value where there is none."""
    error: Doubles
    """(b,) expected |log Z - value|; 0 where the value is exact, NaN where nothing is known."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Items by decreasing log weight, query after query."""

    offsets: Integers
    """(b + 1,) query q has entries offsets[q] to offsets[q + 1]."""
    ids: Ids
    log_weights: Doubles
    """`(q.x + bias) / temperature + log_bias`, as the method estimates it."""
    complete: NDArray[np.bool_]
    """(b,) whether no other item of the shard may be drawn."""

    def row(self, query: int) -> slice:
        """The entries of one query."""
        return slice(int(self.offsets[query]), int(self.offsets[query + 1]))


@dataclass(frozen=True, slots=True)
class Answer:
    """What one shard knows.  Fields that the question does not need are None."""

    log_z: LogZ | None = None
    left: Integers | None = None
    """(b,) items of the shard that a query may draw."""
    known: tuple[NDArray[np.bool_] | None, ...] = (None, None, None)
    """Which of the ids in `exclude`, in `allow` and in `ids` the shard holds, flat; None where nobody asks."""
    ids: Ids | None = None
    """(b, m) draws, or best items."""
    log_prob: Doubles | None = None
    """(b, m) of the draws, or of the ids asked for, under the law of the shard."""
    log_left: Doubles | None = None
    """(b, m) of a slate: log of the mass that was left before each step."""
    low: Doubles | None = None
    high: Doubles | None = None
    error: Doubles | None = None
    """(b,) stated error of the law of the shard."""
    items_scored: Integers | None = None
    scores: Doubles | None = None
    """(b, m) of the best items; -inf where a shard has fewer."""
    proven: NDArray[np.bool_] | None = None
    rest: Doubles | None = None
    """(b,) no item of the shard that is not in `ids` scores more than this; inf where nothing is proven."""
    recall: Doubles | None = None
    listed: Listed | None = None
    guarantee: str | None = None
    vectors: Floats | None = None
    """Of the ids asked for that the shard holds, in their order."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a coordinator knows of all shards before the first call."""

    items: int
    dim: int
    shards: int
    parameters: dict[str, Any]
    """Of an index of all shards: dispersion, tree and so on are the same for all of them."""
    clusters: int
    """The fewest clusters of a shard: probes are counted per shard."""
