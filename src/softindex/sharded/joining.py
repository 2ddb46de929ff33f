"""Shards in one process: for tests, and for indexes that were built apart and are served together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from softindex.errors import InputError, show
from softindex.index import Index
from softindex.sharded.answering import answer
from softindex.sharded.index import ShardedIndex
from softindex.sharded.questions import Description

__all__ = ["describe", "join"]

SHARED = ("dim", "dispersion", "bias", "log_bias", "storage")
"""Parameters that all shards must have in common: a method must mean the same to each of them."""


def join(indexes: Sequence[Index]) -> ShardedIndex:
    """One index of all items of several, in this process; their ids must differ.

    Args:
        indexes: The shards: indexes built with the same options, snapshots or subsets.

    Returns:
        The reading side of `Index`: `sample`, `log_prob`, `log_partition`, `top_k` and `vectors`.
    """
    shards = list(indexes)
    known = describe([(len(one), dict(one.parameters) | {"clusters": one.clusters}) for one in shards])
    ids = np.concatenate([np.asarray(one.ids) for one in shards])
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        twice = values[np.argmax(counts > 1)].item()
        raise InputError(f"id {show(twice)} is in more than one shard; build the shards with ids that differ.")
    return ShardedIndex(lambda question: [answer(one, question, number) for number, one in enumerate(shards)], known)


def describe(shards: Sequence[tuple[int, dict[str, Any]]]) -> Description:
    """What a coordinator must know of shards, from the number of items and the parameters of each."""
    if not shards:
        raise InputError("there are no shards; pass at least one index.")
    first = shards[0][1]
    for number, (_, parameters) in enumerate(shards):
        for name in SHARED:
            if parameters.get(name) != first.get(name):
                raise InputError(
                    f"shard {number} has {name} {show(parameters.get(name))} but shard 0 has "
                    f"{show(first.get(name))}; build all shards with the same options."
                )
    items = sum(count for count, _ in shards)
    fewest = min(parameters["clusters"] for _, parameters in shards)
    shared = {**first, "items": items, "tree": False}
    return Description(items, first["dim"], len(shards), shared, fewest)
