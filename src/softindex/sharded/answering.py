"""The side of a shard: one question in, everything that the coordinator may need out, in one round trip."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.index import Index
from softindex.laws import CERTIFIED, TOP_K
from softindex.records import Doubles, Draws, Estimate, Integers
from softindex.restrictions import restrict
from softindex.sharded.listing import list_best, list_nucleus
from softindex.sharded.questions import Answer, Chosen, LogZ, Question, at_rows
from softindex.sharded.streams import shard_seed

__all__ = ["answer"]

NEARLY_ALL = -1e-6
"""log_prob of a step after which hardly any mass is left: subtracting it from the mass before would lose all digits."""


def answer(index: Index, question: Question, shard: int, threads: int | None = None) -> Answer:
    """What shard number `shard`, held by this index, answers."""
    options = dict(question.options)
    if options.get("threads") is None:
        options["threads"] = threads
    return _ANSWERS[question.name](index, question, shard, options)


def _sample(index: Index, question: Question, shard: int, options: dict[str, Any]) -> Answer:
    chosen, b = question.chosen, len(question.queries)
    left = _left(index, chosen, b)
    replace: bool = options["replace"]
    seed = shard_seed(question.seed, shard)
    # Without replacement a shard may hold fewer items than are asked for: then it gives all it has.
    most = question.n if replace else min(question.n, int(left.max()))
    if most == 0 or not left.any():
        return _nothing(index, question, left)
    short = left < (1 if replace else most)
    draws = index.sample(question.queries, most, seed=seed, **_rows(chosen, short), **options)
    ids, log_prob = draws.ids, draws.log_prob
    log_z = _log_z(draws.log_partition, draws, short & (left == 0))
    error, scored = np.array(draws.error), np.array(draws.items_scored)
    for row in np.flatnonzero(short & (left > 0)):
        one = _short_slate(index, question, int(row), int(left[row]), {**options, "seed": seed})
        ids, log_prob = _with_row(ids, row, one.ids), _with_row(log_prob, row, one.log_prob)
        assert one.log_partition is not None
        log_z.value[row] = log_z.low[row] = log_z.high[row] = one.log_partition.value
        log_z.error[row] = 0.0 if one.error == 0 else np.nan_to_num(one.log_partition.error or np.nan)
        error[row], scored[row] = one.error, scored[row] + one.items_scored
    log_left = None if replace else _log_left(index, question, ids, log_prob, log_z.value)
    known = _known(index, question)
    return Answer(log_z, left, known, ids, log_prob, log_left, draws.low, draws.high, error=error, items_scored=scored)


def _short_slate(index: Index, question: Question, row: int, count: int, options: dict[str, Any]) -> Draws:
    """All `count` items that this query may draw, in the order of a slate."""
    query, earlier = question.queries[row], question.queries[:row]
    # Copies of a query in one call draw differently.
    copy = int((earlier == query).all(axis=1).sum())
    options |= {"seed": shard_seed(options["seed"], copy), "temperature": at_rows(options["temperature"], row)}
    return index.sample(query, count, **_rows(question.chosen, None, row), **options)


def _log_left(index: Index, question: Question, ids: Any, log_prob: Doubles, log_z: Doubles) -> Doubles:
    """(b, m) log of the mass left before each step of slates."""
    with np.errstate(divide="ignore"):
        removed = np.log(-np.expm1(np.minimum(log_prob[:, :-1], -1e-300)))
    result: Doubles = np.cumsum(np.hstack([log_z[:, None], removed]), axis=1)
    for row in np.flatnonzero((log_prob[:, :-1] > NEARLY_ALL).any(axis=1)):
        own = np.flatnonzero(np.isfinite(log_prob[row]))
        temperature = at_rows(question.options["temperature"], row)
        logits = dict(zip(own, _logits(index, question.queries[row], ids[row, own], temperature), strict=True))
        for step in range(log_prob.shape[1] - 1):
            result[row, step + 1] = result[row, step] + removed[row, step]
            after = own[own > step]
            if log_prob[row, step] > NEARLY_ALL and len(after):
                # The weight of the next item, and its part of what is left, say how much that is.
                result[row, step + 1] = logits[after[0]] - log_prob[row, after[0]]
    return result


def _logits(index: Index, query: NDArray[Any], ids: Any, temperature: float) -> Doubles:
    items, held = index.items, index._contents
    # Snapshots and subsets have gaps between the positions of their items.
    rows = np.searchsorted(held.positions(), held.ids.find(ids))
    scores: Doubles = index.vectors(ids).astype(np.float64) @ query.astype(np.float64)
    if items.bias is not None:
        scores = scores + items.bias[rows]
    return scores / temperature + (0.0 if items.log_bias is None else items.log_bias[rows])


def _list(index: Index, question: Question, shard: int, options: dict[str, Any]) -> Answer:
    """The items that "top-k" or a nucleus may draw from, and log Z of all."""
    left = _left(index, question.chosen, len(question.queries))
    if not left.any():
        return _nothing(index, question, left)
    options.pop("replace", None)
    best = options["method"] == TOP_K
    short = left == 0
    rows = _rows(question.chosen, short)
    every = list_best if best else list_nucleus
    listed, log_z, error, scored = every(index, question, left, rows, options)
    log_z.value[short] = log_z.low[short] = log_z.high[short] = -np.inf
    return Answer(log_z, left, _known(index, question), error=error, items_scored=scored, listed=listed)


def _log_prob(index: Index, question: Question, shard: int, options: dict[str, Any]) -> Answer:
    b = len(question.queries)
    left = _left(index, question.chosen, b)
    if not left.any():
        return _nothing(index, question, left)
    rows = _rows(question.chosen, left == 0)
    log_prob = index.log_prob(question.queries, question.ids, missing="-inf", **rows, **options)
    replace = options.pop("replace")
    if options["method"] == CERTIFIED:
        # Probabilities of certified draws are those of the exact softmax.
        options = {**options, "method": "exact"}
    estimate = index.log_partition(question.queries, **rows, **options)
    log_z = _log_z(estimate, None, left == 0)
    log_prob[left == 0] = -np.inf
    steps = None if replace else _log_left(index, question, question.ids, log_prob, log_z.value)
    return Answer(log_z, left, _known(index, question), log_prob=log_prob, log_left=steps)


def _log_partition(index: Index, question: Question, shard: int, options: dict[str, Any]) -> Answer:
    left = _left(index, question.chosen, len(question.queries))
    if not left.any():
        return _nothing(index, question, left)
    rows = _rows(question.chosen, left == 0)
    if options.get("confidence") is not None:
        options = {**options, "seed": shard_seed(question.seed, shard)}
    estimate = index.log_partition(question.queries, **rows, **options)
    log_z = _log_z(estimate, None, left == 0)
    return Answer(log_z, left, _known(index, question), guarantee=estimate.guarantee)


def _top_k(index: Index, question: Question, shard: int, options: dict[str, Any]) -> Answer:
    left = _left(index, question.chosen, len(question.queries))
    if not left.any():
        return _nothing(index, question, left)
    most = min(question.n, int(left.max()))
    short = left < most
    best = index.top_k(question.queries, most, **_rows(question.chosen, short), **options)
    ids, scores, proven = best.ids, best.scores.astype(np.float64), best.proven
    rest = scores[:, -1] + np.where(np.isnan(best.gap), np.inf, best.gap)
    recall, scored = np.array(best.recall, np.float64), np.array(best.items_scored)
    for row in np.flatnonzero(short):
        scores[row], proven[row], count = -np.inf, True, int(left[row])
        if count:
            asked = {**options, **_rows(question.chosen, None, int(row))}
            asked["temperature"] = at_rows(options["temperature"], row)
            one = index.top_k(question.queries[row], count, **asked)
            ids, scores[row, :count], proven[row, :count] = _with_row(ids, row, one.ids), one.scores, one.proven
            recall[row], scored[row] = one.recall, scored[row] + one.items_scored
    # Where all that may be returned is returned, there is no other item.
    rest[left <= most] = -np.inf
    answered: dict[str, Any] = {"scores": scores, "proven": proven, "rest": rest, "recall": recall}
    return Answer(None, left, _known(index, question), ids, items_scored=scored, **answered)


def _vectors(index: Index, question: Question, shard: int, options: dict[str, Any]) -> Answer:
    known = index._contents.ids.find(question.ids, missing=-1) >= 0
    return Answer(known=(None, None, known), vectors=index.vectors(question.ids[known]))


_ANSWERS = {
    "vectors": _vectors,
    "sample": _sample,
    "listed": _list,
    "log_prob": _log_prob,
    "log_partition": _log_partition,
    "top_k": _top_k,
}


def _left(index: Index, chosen: Chosen, b: int) -> Integers:
    """(b,) items of the shard that each query may draw."""
    if chosen.exclude is None and chosen.allow is None:
        return np.full(b, len(index))
    rows = {"exclude": None, "allow": None, **_rows(chosen)}
    part = restrict(index._contents, b, method="", replace=True, top_p=None, k=None, **rows)
    return np.array(part.possible)


def _rows(chosen: Chosen, without: NDArray[np.bool_] | None = None, row: int | None = None) -> dict[str, Any]:
    """The options of a call that has these restrictions; those of one row, or none for the rows `without`.

    Rows that cannot have what is asked for still take part, unrestricted, as copies of queries are numbered in a call.
    """
    found: dict[str, Any] = {}
    for name in ("exclude", "allow"):
        rows = getattr(chosen, name)
        if rows is None:
            continue
        shared = len(rows) == 1
        if row is not None:
            found[name] = rows[0 if shared else row]
        elif without is None or not without.any():
            found[name] = rows[0] if shared else rows
        elif not without.all():
            found[name] = [None if skip else rows[0 if shared else q] for q, skip in enumerate(without)]
    return {**found, "unknown": "ignore"} if found else {}


def _known(index: Index, question: Question) -> tuple[NDArray[np.bool_] | None, ...]:
    """Which of the ids that the caller named are here."""
    chosen = question.chosen
    found: list[NDArray[np.bool_] | None] = []
    for rows in (chosen.exclude, chosen.allow):
        if rows is None or not chosen.must_exist:
            found.append(None)
            continue
        filled = [row for row in rows if row is not None and len(row)]
        parts = [index._contents.ids.find(row, missing=-1).ravel() >= 0 for row in filled]
        found.append(np.concatenate(parts) if parts else np.empty(0, bool))
    held = None if question.ids is None else index._contents.ids.find(question.ids, missing=-1).ravel() >= 0
    return (*found, held)


def _log_z(estimate: Estimate | None, draws: Draws | None, nothing: NDArray[np.bool_]) -> LogZ:
    assert estimate is not None
    value = np.array(estimate.value, np.float64)
    low, high = (value.copy() if bound is None else np.array(bound) for bound in (estimate.low, estimate.high))
    error = np.zeros(len(value)) if estimate.error is None else np.array(estimate.error, np.float64)
    if draws is not None:
        error[np.asarray(draws.error) == 0] = 0.0
    for array in (value, low, high):
        array[nothing] = -np.inf
    return LogZ(value, low, high, error)


def _nothing(index: Index, question: Question, left: Integers) -> Answer:
    """The answer of a shard that holds none of the items that may be drawn."""
    b = len(left)
    none, zero = np.full(b, -np.inf), np.zeros(b)
    ids = index._contents.ids.at(np.zeros((b, 1), np.int64))
    width = 1 if question.ids is None else np.shape(question.ids)[-1]
    empty = np.full((b, width), -np.inf)
    return Answer(
        LogZ(none, none, none, zero), left, _known(index, question), ids, empty, empty, empty, empty,
        error=zero, items_scored=np.zeros(b, np.int64), scores=empty[:, :1], proven=np.ones((b, 1), bool),
        rest=none, recall=np.ones(b), listed=None,
    )  # fmt: skip


def _with_row(array: NDArray[Any], row: Any, values: NDArray[Any]) -> NDArray[Any]:
    """The array with the first entries of one row replaced; strings keep their full length."""
    wide = array.astype(np.result_type(array, values), copy=True)
    wide[row, : len(values)] = values
    return wide
