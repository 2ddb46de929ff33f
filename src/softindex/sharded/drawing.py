"""Draws over shards, from their answers: with replacement, as slates, and from lists of the most probable items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_flag
from softindex.errors import InputError
from softindex.laws import CERTIFIED, EXACT, PROVEN_METHODS, TOP_K
from softindex.records import Doubles, Draws, Estimate, Integers
from softindex.sharded.listing import cut, draw_listed, listed_steps, nucleus_floor, union
from softindex.sharded.merging import (
    bound_log_prob,
    log_shares,
    log_sum,
    merge_slates,
    pick_certainly,
    pick_shards,
    stated_error,
    sum_log_z,
    take,
)
from softindex.sharded.questions import Answer, Listed, LogZ, Question, at_rows
from softindex.sharded.streams import name_queries, pick_key, uniforms

__all__ = [
    "check_replace",
    "columns",
    "draw_from_lists",
    "draw_slates",
    "draw_with_replacement",
    "log_prob_of_lists",
    "log_prob_of_shards",
    "without_rows",
]

Ask = Callable[[Question], Sequence[Answer]]


def check_replace(value: Any) -> bool:
    """Return whether items are drawn with replacement."""
    return check_flag(value, "replace")


def columns(answers: Sequence[Answer], *names: str) -> list[list[Any]]:
    """One list per field, with an entry for each shard."""
    return [[getattr(one, name) for one in answers] for name in names]


def draw_with_replacement(ask: Ask, question: Question, answers: Sequence[Answer]) -> Draws:
    """For each draw the draw of one shard, picked by its log Z."""
    parts: list[LogZ] = columns(answers, "log_z")[0]
    uniform = _uniforms(question, question.n)
    proven = answers[0].low is not None and question.options["method"] == CERTIFIED
    picked = None
    if proven:
        parts, picked = _pick_with_proof(ask, question, parts, uniform)
    values = np.stack([part.value for part in parts])
    if picked is None:
        picked = pick_shards(values, uniform)
    ids, log_prob = (take(columns(answers, name)[0], picked) for name in ("ids", "log_prob"))
    total = sum_log_z(parts)
    result = _draws(question, answers, parts, total, ids)
    if not proven:
        result.log_prob = np.minimum(log_prob + _picked(list(log_shares(values)), picked), 0.0)
        return result
    low, high = (take(columns(answers, name)[0], picked) for name in ("low", "high"))
    own = LogZ(*(_picked([getattr(part, name) for part in parts], picked) for name in _FIELDS))
    every = LogZ(*(getattr(total, name)[:, None] for name in _FIELDS))
    share = _picked(list(_largest_shares(parts)), picked)
    bounds = bound_log_prob((log_prob, low, high), own, every, LogZ(share, share, share, share))
    result.log_prob, result.low, result.high = bounds
    return result


_FIELDS = tuple(one.name for one in fields(LogZ))


def _picked(per_shard: Sequence[Doubles], picked: Integers) -> Doubles:
    """(b, n) the number (b,) of the shard that each draw was picked from."""
    stacked = np.stack(per_shard)
    result: Doubles = stacked[picked, np.arange(picked.shape[0])[:, None]]
    return result


def _largest_shares(parts: Sequence[LogZ]) -> Doubles:
    """(S, b) upper bounds on the log shares of shards."""
    low, high = (np.stack([getattr(part, name) for part in parts]) for name in ("low", "high"))
    largest = np.empty_like(high)
    for shard in range(len(parts)):
        others = np.delete(low, shard, axis=0)
        everything = high[shard] if not len(others) else np.logaddexp(high[shard], log_sum(others))
        largest[shard] = np.minimum(high[shard] - everything + 1e-12, 0.0)
    return largest


def _pick_with_proof(
    ask: Ask, question: Question, parts: Sequence[LogZ], uniform: Doubles
) -> tuple[list[LogZ], Integers]:
    """The shards that exact log Z would pick.  Where bounds leave one open, all shards score every item of theirs."""
    low, high = (np.stack([getattr(part, name) for part in parts]) for name in ("low", "high"))
    picked, certain = pick_certainly(low, high, uniform)
    unsure = np.flatnonzero(~certain)
    if not len(unsure):
        return list(parts), picked
    temperature = at_rows(question.options["temperature"], unsure)
    options = {"temperature": temperature, "method": EXACT, "threads": question.options["threads"]}
    exact = ask(Question("log_partition", question.queries[unsure], options))
    settled = [LogZ(*(getattr(part, name).copy() for name in _FIELDS)) for part in parts]
    for part, one in zip(settled, exact, strict=True):
        assert one.log_z is not None
        for name in _FIELDS:
            getattr(part, name)[unsure] = getattr(one.log_z, name)
    values = np.stack([part.value[unsure] for part in settled])
    picked[unsure] = pick_shards(values, uniform[unsure])
    return settled, picked


def draw_slates(question: Question, answers: Sequence[Answer]) -> Draws:
    """n different items of each query: the next item of the shard that is picked by the mass it has left."""
    parts, left, log_left, log_prob, ids = columns(answers, "log_z", "left", "log_left", "log_prob", "ids")
    uniform = _uniforms(question, question.n)
    picked, places, result = merge_slates(log_left, log_prob, np.stack(left), uniform)
    drawn = _draws(question, answers, parts, sum_log_z(parts), take(ids, picked, places))
    drawn.log_prob = result
    return drawn


def draw_from_lists(ask: Ask, question: Question, answers: Sequence[Answer], n: int, replace_: bool) -> Draws:
    """n draws of each query from the items that "top-k" or the nucleus keeps."""
    answers, lists = _reach(ask, question, answers)
    parts: list[LogZ] = columns(answers, "log_z")[0]
    total, uniform = sum_log_z(parts), _uniforms(question, n)
    found, log_prob = [], np.empty((len(uniform), n))
    kept = np.empty(len(uniform))
    for row in range(len(uniform)):
        ids, weights, kept[row] = _law(question, lists, row, float(total.value[row]))
        if not replace_ and len(ids) < n:
            what = f"n is {n} but the nucleus of query {row} holds {len(ids)} item{'' if len(ids) == 1 else 's'}"
            raise InputError(f"{what} to draw without replacement; ask for at most that many, or raise top_p.")
        drawn, log_prob[row] = draw_listed(weights, uniform[row], replace=replace_)
        found.append(ids[drawn])
    result = _draws(question, answers, parts, total, np.stack(found))
    result.log_prob = log_prob
    stated = np.asarray(result.error)
    if question.options["method"] == TOP_K:
        complete = np.all([one.listed.complete for one in answers if one.listed is not None], axis=0)
        many = np.sum(columns(answers, "left")[0], axis=0) <= question.n
        stated = np.maximum(1.0 - kept, 0.0) + np.nan_to_num(stated) + 1e-16
        stated = np.where(complete & many, 0.0, np.minimum(stated, 1.0))
    assert question.top_p is not None
    result.error = np.minimum(stated / question.top_p, 1.0)
    return result


def log_prob_of_shards(answers: Sequence[Answer]) -> Doubles:
    """(b, m) log-probability of one draw, or of the steps of slates, from that under each shard."""
    own = np.stack(columns(answers, "log_prob")[0])
    shares = log_shares(np.stack([part.value for part in columns(answers, "log_z")[0]]))[:, :, None]
    if answers[0].log_left is not None:
        # Of slates every step has shares of its own: by the mass that shards have left.
        shares = log_shares(np.stack(columns(answers, "log_left")[0]))
    held = np.where(np.isneginf(own), -np.inf, own + np.where(np.isneginf(own), 0.0, shares))
    result: Doubles = np.minimum(held.max(axis=0), 0.0)
    return result


def log_prob_of_lists(ask: Ask, question: Question, answers: Sequence[Answer]) -> Doubles:
    """(b, m) log-probability of one draw, for the ids of the question; -inf for what the law leaves out."""
    answers, lists = _reach(ask, question, answers)
    total = sum_log_z(columns(answers, "log_z")[0])
    result = np.full(np.shape(question.ids), -np.inf)
    for row, wanted in enumerate(question.ids):
        ids, weights, _ = _law(question, lists, row, float(total.value[row]))
        order = np.argsort(ids, kind="stable")
        place = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
        there = ids[place] == wanted
        if question.options.get("replace", True):
            result[row, there] = (weights - log_sum(weights))[place[there]]
        else:
            result[row, there] = listed_steps(weights, place[there])
    return result


def _law(question: Question, lists: list[Listed | None], row: int, log_z: float) -> tuple[Any, Doubles, float]:
    """Ids and log weights of the items that a query draws from, and the share of the best ones in all mass."""
    best = question.options["method"] == TOP_K
    ids, weights = union(lists, row, question.n if best else None)
    own = float(log_sum(weights))
    assert question.top_p is not None
    size = len(ids) if question.top_p >= 1 else cut(weights, own if best else log_z, question.top_p)
    return ids[:size], weights[:size], float(np.exp(own - log_z))


def _reach(ask: Ask, question: Question, answers: Sequence[Answer]) -> tuple[Sequence[Answer], list[Listed | None]]:
    """The lists of shards, asked for again with a floor if the nucleus may reach below what one has listed."""
    lists: list[Listed | None] = columns(answers, "listed")[0]
    if question.options["method"] == TOP_K or question.floor is not None:
        return answers, lists
    assert question.top_p is not None
    b, parts = len(question.queries), columns(answers, "log_z")[0]
    total, floors, short = sum_log_z(parts).value, np.full(b, np.inf), False
    for row in range(b):
        for part, listed in zip(parts, lists, strict=True):
            if listed is not None:
                own = nucleus_floor(listed, row, float(part.value[row]), question.top_p)
                floors[row] = min(floors[row], own)
        _, weights = union(lists, row, None)
        last = weights[cut(weights, float(total[row]), question.top_p) - 1]
        short |= any(_ends_above(listed, row, float(last)) for listed in lists)
    if not short:
        return answers, lists
    again = replace(question, floor=floors, chosen=replace(question.chosen, must_exist=False))
    found = ask(again)
    return found, columns(found, "listed")[0]


def _ends_above(listed: Listed | None, row: int, weight: float) -> bool:
    """Whether the shard may hold items of at least this weight that it has not listed."""
    if listed is None or listed.complete[row]:
        return False
    own: NDArray[Any] = listed.log_weights[listed.row(row)]
    return not len(own) or bool(own[-1] > weight)


def _uniforms(question: Question, n: int) -> Doubles:
    return uniforms(pick_key(question.seed), name_queries(question.queries), n)


def _draws(question: Question, answers: Sequence[Answer], parts: Sequence[LogZ], total: LogZ, ids: Any) -> Draws:
    """The record without log_prob, method and seed, which the caller knows."""
    values, log_errors = (np.stack([getattr(part, name) for part in parts]) for name in ("value", "error"))
    errors, scored = np.stack(columns(answers, "error")[0]), np.sum(columns(answers, "items_scored")[0], axis=0)
    error = np.zeros(len(scored))
    if question.options["method"] not in PROVEN_METHODS:
        error = stated_error(values, errors, log_errors)
    estimate = Estimate(total.value, error=total.error)
    if question.options["method"] in PROVEN_METHODS:
        estimate = Estimate(total.value, total.low, total.high, "proven")
    return Draws(ids, np.empty(0), error, scored, "", 0, estimate)


def without_rows(record: Any) -> Any:
    """The record of a single query."""
    if isinstance(record, Estimate):
        return replace(record, **{name: _first(getattr(record, name)) for name in ("value", "low", "high", "error")})
    skipped = ("method", "seed", "confidence", "snapshot", "guarantee")
    changed = {one.name: _first(getattr(record, one.name)) for one in fields(record) if one.name not in skipped}
    return replace(record, **changed)


def _first(value: Any) -> Any:
    if isinstance(value, Estimate):
        return without_rows(value)
    return None if value is None else value[0]
