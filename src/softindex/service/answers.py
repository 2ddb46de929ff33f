"""The bodies of answers: the records of the library, under the names of their fields."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from softindex.records import Draws, Estimate, TopK

__all__ = [
    "ChangeAnswer",
    "DrawsAnswer",
    "EstimateAnswer",
    "IdsAnswer",
    "InfoAnswer",
    "ItemsAnswer",
    "LogProbAnswer",
    "PerQuery",
    "TopKAnswer",
    "answer_draws",
    "answer_estimate",
    "answer_log_prob",
    "answer_top_k",
    "plain",
    "portable",
]

SAFE = 2**53
"""Integers below this survive JavaScript."""

_ONE = {"type": ["number", "string", "null"]}
_EITHER = {"anyOf": [_ONE, {"type": "array", "items": _ONE}]}
_TABLE = {"anyOf": [{"type": "array", "items": _ONE}, {"type": "array", "items": {"type": "array", "items": _ONE}}]}
_ID = {"type": ["integer", "string"]}
_ID_TABLE = {"anyOf": [{"type": "array", "items": _ID}, {"type": "array", "items": {"type": "array", "items": _ID}}]}
_FLAG = {"type": "boolean"}
_FLAGS = {"anyOf": [{"type": "array", "items": _FLAG}, {"type": "array", "items": {"type": "array", "items": _FLAG}}]}

PerQuery = Annotated[
    Any, Meta(description='(b,), or one number; null is NaN, "-inf" minus infinity.', extra_json_schema=_EITHER)
]
PerResult = Annotated[
    Any, Meta(description='(b, n) or (n,); null is NaN, "-inf" minus infinity.', extra_json_schema=_TABLE)
]
IdTable = Annotated[Any, Meta(extra_json_schema=_ID_TABLE)]
FlagTable = Annotated[Any, Meta(extra_json_schema=_FLAGS)]
Snapshot = int | None | UnsetType


class DrawsAnswer(msgspec.Struct, kw_only=True):
    """`Draws`."""

    ids: IdTable
    log_prob: PerResult
    error: PerQuery
    log_partition: PerQuery | UnsetType = UNSET
    log_partition_low: PerQuery | UnsetType = UNSET
    log_partition_high: PerQuery | UnsetType = UNSET
    log_partition_guarantee: str | UnsetType = UNSET
    log_partition_error: PerQuery | UnsetType = UNSET
    low: PerResult | UnsetType = UNSET
    high: PerResult | UnsetType = UNSET
    scores: PerResult | UnsetType = UNSET
    items_scored: Annotated[Any, Meta(extra_json_schema=_EITHER)]
    method: str
    seed: int | str
    confidence: float | UnsetType = UNSET
    snapshot: Snapshot = UNSET


class TopKAnswer(msgspec.Struct, kw_only=True):
    """`TopK`."""

    ids: IdTable
    scores: PerResult
    proven: FlagTable
    gap: PerQuery
    items_scored: Annotated[Any, Meta(extra_json_schema=_EITHER)]
    recall: PerQuery | UnsetType = UNSET
    snapshot: Snapshot = UNSET


class LogProbAnswer(msgspec.Struct, kw_only=True):
    """What `log_prob` returns."""

    log_prob: Annotated[Any, Meta(extra_json_schema={"anyOf": [_ONE, *_TABLE["anyOf"]]})]
    snapshot: Snapshot = UNSET


class EstimateAnswer(msgspec.Struct, kw_only=True):
    """`Estimate`."""

    value: PerQuery
    low: PerQuery | UnsetType = UNSET
    high: PerQuery | UnsetType = UNSET
    guarantee: str | UnsetType = UNSET
    error: PerQuery | UnsetType = UNSET
    snapshot: Snapshot = UNSET


class ItemsAnswer(msgspec.Struct, kw_only=True):
    """Items and their vectors."""

    ids: list[int | str]
    vectors: list[list[float]]
    snapshot: Snapshot = UNSET


class IdsAnswer(msgspec.Struct, kw_only=True):
    """Ids that begin with a text."""

    ids: list[int | str]


class ChangeAnswer(msgspec.Struct, kw_only=True):
    """A change that is on disk."""

    snapshot: int
    """Number of the state with the change."""
    items: int
    """In all, afterwards."""


class InfoAnswer(msgspec.Struct, kw_only=True):
    """What is served."""

    kind: str
    """index, catalogue or learned-similarity."""
    items: int
    dim: int | None
    clusters: int | None
    ids: str | None
    """Kind of the ids: integers or strings."""
    methods: list[str]
    writable: bool
    snapshot: int | None
    version: str
    limits: dict[str, float]


def answer_draws(draws: Draws, snapshot: int | None) -> DrawsAnswer:
    """The answer to `sample`."""
    answer = DrawsAnswer(
        ids=draws.ids.tolist(),
        log_prob=plain(draws.log_prob),
        error=plain(draws.error),
        items_scored=plain(draws.items_scored),
        method=draws.method,
        seed=portable(draws.seed),
        snapshot=snapshot,
    )
    if (estimate := draws.log_partition) is not None:
        answer.log_partition = plain(estimate.value)
        if estimate.low is not None:
            answer.log_partition_low, answer.log_partition_high = plain(estimate.low), plain(estimate.high)
        if estimate.guarantee is not None:
            answer.log_partition_guarantee = estimate.guarantee
        if estimate.error is not None:
            answer.log_partition_error = plain(estimate.error)
    if draws.low is not None:
        answer.low, answer.high = plain(draws.low), plain(draws.high)
    if draws.scores is not None:
        answer.scores = plain(draws.scores)
    if draws.confidence is not None:
        answer.confidence = draws.confidence
    return answer


def answer_top_k(best: TopK, snapshot: int | None) -> TopKAnswer:
    """The answer to `top_k`."""
    answer = TopKAnswer(
        ids=best.ids.tolist(),
        scores=plain(best.scores),
        proven=best.proven.tolist(),
        gap=plain(best.gap),
        items_scored=plain(best.items_scored),
        snapshot=snapshot,
    )
    if best.recall is not None:
        answer.recall = plain(best.recall)
    return answer


def answer_log_prob(values: Any, snapshot: int | None) -> LogProbAnswer:
    """The answer to `log_prob`."""
    return LogProbAnswer(log_prob=plain(values), snapshot=snapshot)


def answer_estimate(found: Estimate, snapshot: int | None) -> EstimateAnswer:
    """The answer to `log_partition`."""
    answer = EstimateAnswer(value=plain(found.value), snapshot=snapshot)
    if found.low is not None:
        answer.low, answer.high = plain(found.low), plain(found.high)
    if found.guarantee is not None:
        answer.guarantee = found.guarantee
    if found.error is not None:
        answer.error = plain(found.error)
    return answer


def portable(seed: int) -> int | str:
    """The seed as a number where every program can read it, and as a string otherwise."""
    return seed if seed < SAFE else str(seed)


def plain(values: Any) -> Any:
    """Arrays as lists.  JSON has no NaN, which becomes null, and no infinity, which becomes "inf" or "-inf"."""
    array = np.asarray(values)
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    return _spell(array.tolist())


def _spell(value: Any) -> Any:
    if isinstance(value, list):
        return [_spell(one) for one in value]
    if value != value:
        return None
    return ("-inf" if value < 0 else "inf") if value in (np.inf, -np.inf) else value
