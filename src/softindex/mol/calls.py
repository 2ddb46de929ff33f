"""What the calls of a MixtureIndex share: encoded queries with their exclusions, and records of results."""

from __future__ import annotations

from typing import Any

import numpy as np

from softindex.arguments import check_choice
from softindex.blas import blas_threads
from softindex.mol.plans import Retrieved
from softindex.mol.queries import encode
from softindex.mol.sampling import DrawnPositions
from softindex.mol.scorer import QueryBatch
from softindex.mol.snapshot import Snapshot
from softindex.records import Draws, Estimate, TopK

__all__ = ["draws_record", "make_batch", "top_k_record"]


def make_batch(snapshot: Snapshot, queries: Any, users: Any, chosen: tuple[Any, Any, Any]) -> QueryBatch:
    """Encode the queries and find the items that they leave out.  chosen: exclude, allow and unknown."""
    exclude, allow, unknown = chosen
    policy = check_choice(unknown, "unknown", ("error", "ignore"))
    with blas_threads(1):
        side = encode(snapshot.spec, queries, users)
        return snapshot.scorer.batch(side, snapshot.left_out(exclude, allow, len(side.components), unknown=policy))


def top_k_record(snapshot: Snapshot, result: Retrieved, single: bool) -> TopK:
    """The record of a search; single: without the axis of the queries."""
    first = 0 if single else slice(None)
    return TopK(
        snapshot.ids.at(result.positions)[first],
        result.scores[first],
        result.proven[first],
        result.gap[first],
        result.scored[first],
    )


def draws_record(snapshot: Snapshot, drawn: DrawnPositions, single: bool, method: str, seed: int) -> Draws:
    """The record of draws; single: without the axis of the queries."""
    first = 0 if single else slice(None)
    log_z = drawn.log_partition
    if log_z is not None and single:
        log_z = Estimate(*(np.asarray(values)[0] for values in (log_z.value, log_z.low, log_z.high)))
    return Draws(
        snapshot.ids.at(drawn.positions)[first],
        drawn.log_prob[first],
        drawn.error[first],
        drawn.scored[first],
        method,
        seed,
        log_partition=log_z,
        scores=drawn.scores[first],
    )
