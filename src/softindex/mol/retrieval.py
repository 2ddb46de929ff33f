"""The k best items of a learned similarity: which items are scored, and what that proves of the rest.

A score is a convex combination of logits, so no item scores more than its largest logit.  That is the one fact behind
every proof here: an item that was left out scores at most its largest logit; and where a result scores more than all
that was left out can, it is among the true k best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from softindex.errors import CorruptIndexError
from softindex.mol.engine import Batch, Engine, Lists
from softindex.records import Doubles, Floats, Integers

__all__ = ["METHODS", "Found", "Plan", "retrieve"]

METHODS = ("exact", "brute-force", "two-pass", "per-embedding", "average", "combined")
SPARE = 4
"""So many times k items are kept of a scan: those that rounding may confuse with the k-th are mostly among them."""
HOPELESS = 0.6
"""Where so large a part of the items survives, a scan of all is faster than going through them twice."""
PROBED = 256
"""Items whose logits tell whether the second pass is worth its while."""
WORTH_PROBING = 16
"""Of fewer items than this many times those that are scored to tell, all are scored at once."""
GROUP = 64
"""Queries that take turns with one tile of items: they stay in the cache."""
GROWTH = 4


Best = Callable[[Integers, Batch, int], tuple[Integers, Floats]]
"""best(rows, their queries, keep): positions and scores (b, keep), best first; -1 and -inf where there are fewer."""


class Plan(NamedTuple):
    """What a call asks for."""

    method: str
    k: int
    per_pair: int
    """Items that are retrieved for each pair of components; 0: none."""
    by_average: int
    """Items that are retrieved by the mean of their components; 0: none."""
    tolerance: float | None
    threads: int


class Floor(NamedTuple):
    """What the first of two passes finds."""

    score: Doubles
    """(b,) k items reach it for certain."""
    positions: list[Integers]
    """The items that were scored for it."""

    def take(self, rows: Integers) -> Floor:
        """That of some queries."""
        return Floor(self.score[rows], [self.positions[row] for row in rows.tolist()])


@dataclass(frozen=True, slots=True)
class Found:
    """What a method found for b queries."""

    positions: Integers
    """(b, k) best first."""
    scores: Doubles
    """(b, k)"""
    gap: Doubles
    """(b,)"""
    proven: Any
    """(b, k) bool"""
    scored: Integers
    """(b,) items whose score was computed."""

    @classmethod
    def empty(cls, b: int, k: int) -> Found:
        """Room for b queries."""
        return cls(
            np.empty((b, k), np.int64),
            np.empty((b, k)),
            np.empty(b),
            np.zeros((b, k), bool),
            np.empty(b, np.int64),
        )

    def put(self, rows: Any, part: Found) -> None:
        """Fill in some rows."""
        for name in ("positions", "scores", "gap", "proven", "scored"):
            getattr(self, name)[rows] = getattr(part, name)


def retrieve(engine: Engine, batch: Batch, plan: Plan) -> Found:
    """Find the k best of each query by the plan's method."""
    found = Found.empty(len(batch), plan.k)
    # Of one pair of components the logit is the score: there is nothing to look at before it.
    method = brute_force if engine.form.pairs == 1 else _METHODS[plan.method]
    for rows, part in engine.groups(batch, GROUP):
        found.put(rows, method(engine, part, plan))
    return found


def brute_force(engine: Engine, batch: Batch, plan: Plan) -> Found:
    """Score every item."""

    def best(rows: Integers, part: Batch, keep: int) -> tuple[Integers, Floats]:
        return engine.best(part, keep, plan.threads)

    return _best(engine, batch, best, batch.left, np.full(len(batch), -np.inf), plan)


def two_pass(engine: Engine, batch: Batch, plan: Plan) -> Found:
    """Score a few good items, then all whose largest logit reaches the k-th best of those scores."""
    return _second_pass(engine, batch, plan, _floor(engine, batch, plan))


def _second_pass(engine: Engine, batch: Batch, plan: Plan, first: Floor) -> Found:
    floor = first.score
    largest, _ = engine.largest(batch, 0, plan.threads)
    # The largest logits are off by so much at most.
    need = (floor - batch.single.logit)[:, None]
    alive = largest >= need
    counts = alive.sum(axis=1)
    few = counts <= HOPELESS * batch.left
    found = Found.empty(len(batch), plan.k)
    if not few.all():
        many = np.flatnonzero(~few)
        found.put(many, brute_force(engine, batch.take(many), plan))
    if few.any():
        rows = np.flatnonzero(few)
        outside = np.where(alive, -np.inf, largest).max(axis=1) + batch.single.logit
        candidates = [np.flatnonzero(alive[row]) for row in rows.tolist()]
        settled = _score(engine, batch.take(rows), candidates, outside[rows], plan)
        # Most of the first ones were scored again: they count once.
        settled.scored[:] += [int((~alive[row, first.positions[row]]).sum()) for row in rows.tolist()]
        found.put(rows, settled)
    return found


def exact(engine: Engine, batch: Batch, plan: Plan) -> Found:
    """By two passes where a few logits tell that they leave out enough, by a scan of all items otherwise."""
    found = Found.empty(len(batch), plan.k)
    passes = np.zeros(len(batch), bool)
    if engine.n >= WORTH_PROBING * _first_ones(plan.k):
        first = _floor(engine, batch, plan)
        passes = (engine.sample_largest(batch, PROBED) >= first.score[:, None]).mean(axis=1) <= HOPELESS
        if passes.any():
            rows = np.flatnonzero(passes)
            found.put(rows, _second_pass(engine, batch.take(rows), plan, first.take(rows)))
    if not passes.all():
        rows = np.flatnonzero(~passes)
        found.put(rows, brute_force(engine, batch.take(rows), plan))
    return found


def approximate(engine: Engine, batch: Batch, plan: Plan) -> Found:
    """Score what the first stage retrieves; with a tolerance, ever more of it until the gap is within."""
    if plan.tolerance is None:
        return _approximate(engine, batch, plan)
    found, rows = Found.empty(len(batch), plan.k), np.arange(len(batch))
    most = max(plan.per_pair, plan.by_average)
    share = min(1.0, max(plan.k, 64) / most)
    while len(rows):
        per_pair, by_average = (int(np.ceil(share * count)) for count in (plan.per_pair, plan.by_average))
        part = _approximate(engine, batch.take(rows), plan._replace(per_pair=per_pair, by_average=by_average))
        found.put(rows, part)
        rows = rows[part.gap > plan.tolerance] if share < 1 else rows[:0]
        share = min(1.0, share * GROWTH)
    return found


def _approximate(engine: Engine, batch: Batch, plan: Plan) -> Found:
    parts: list[list[Integers]] = [[] for _ in range(len(batch))]
    if plan.by_average:
        nearest = engine.best_average(batch, min(plan.by_average, engine.n), plan.threads)
        for mine, near in zip(parts, nearest, strict=True):
            mine.append(near)
    outside = batch.single.ceiling
    largest: Floats | None = None
    # The mean says nothing of the logits: a gap that means something takes a look at all of them.
    if plan.per_pair or plan.tolerance is not None:
        largest, lists = engine.largest(batch, min(plan.per_pair, engine.n), plan.threads)
        if lists is not None:
            for mine, listed in zip(parts, lists, strict=True):
                mine.append(listed[listed >= 0].ravel())
    candidates = [mine[0] if len(mine) == 1 and largest is None else np.unique(np.concatenate(mine)) for mine in parts]
    if largest is not None:
        for row, chosen in zip(largest, candidates, strict=True):
            row[chosen] = -np.inf
        outside = largest.max(axis=1) + batch.single.logit
    return _score(engine, batch, candidates, outside, plan)


def rank(engine: Engine, batch: Batch, candidates: list[Integers], plan: Plan) -> Found:
    """Score candidates that the caller found; of the others only the largest possible score is known."""
    return _score(engine, batch, candidates, batch.single.ceiling, plan)


def _first_ones(k: int) -> int:
    return max(SPARE * k, 256)


def _floor(engine: Engine, batch: Batch, plan: Plan) -> Floor:
    first = engine.best_average(batch, min(engine.n, _first_ones(plan.k)), plan.threads)
    scores = engine.score(batch, Lists.of(first), plan.threads)
    floor = np.array([np.partition(row, len(row) - plan.k)[len(row) - plan.k] for row in scores], np.float64)
    return Floor(floor - batch.single.score, first)


def _score(engine: Engine, batch: Batch, candidates: list[Integers], outside: Doubles, plan: Plan) -> Found:
    """The k best of some candidates, in increasing order of positions; no other item scores more than `outside`."""
    lists = Lists.of(candidates)
    # Of items that are all candidates there is no other.
    outside = np.where(lists.counts == batch.left, -np.inf, outside)

    def best(rows: Integers, part: Batch, keep: int) -> tuple[Integers, Floats]:
        return engine.best_listed(part, lists.take(rows), keep, plan.threads)

    return _best(engine, batch, best, lists.counts, outside, plan)


def _best(engine: Engine, batch: Batch, best: Best, counts: Integers, outside: Doubles, plan: Plan) -> Found:
    """Settle the k best of so many items of each query, of which `best` gives the first few.

    Where rounding leaves a doubt whether one that was not kept is better than the k-th, more are kept.
    """
    found = Found.empty(len(batch), plan.k)
    # Where nothing is known of the others but what no score exceeds, there is hardly a doubt that could be settled.
    hopeless = bool((outside >= batch.single.ceiling).all())
    rows, keep = np.arange(len(batch)), plan.k if hopeless else SPARE * plan.k + 64
    while len(rows):
        part, count = batch.take(rows), counts[rows]
        room = min(keep, int(count.max()))
        positions, scores = best(rows, part, room)
        held = np.minimum(count, room)
        if (positions[np.arange(len(rows)), held - 1] < 0).any():
            raise _overflow()
        # Of the items that were not kept none was scored higher than the last one that was.
        beyond = np.where(held < count, scores[:, -1] + part.single.score, -np.inf)
        settled, sure = _settle(engine, part, positions, scores, np.maximum(outside[rows], beyond), plan)
        settled.scored[:] = count
        found.put(rows, settled)
        rows = rows[(beyond > sure) & (beyond > outside[rows])]
        keep *= GROWTH
    return found


def _settle(
    engine: Engine, batch: Batch, positions: Integers, scores: Floats, outside: Doubles, plan: Plan
) -> tuple[Found, Doubles]:
    """The k best of each row of positions, best first, with their proofs, and (b,) what all of them score for certain.

    No item that is not in the row scores more than `outside`.  Scores in float32 are off by up to e, so those within
    2 e of the k-th are computed again in float64: no other of the row can be among the k best.  Float64 is off by a
    little too, and of what it cannot tell apart nothing is proven, but for copies of an item.  Where `outside` leaves
    nothing to prove all of that is spared.
    """
    k, error = plan.k, batch.single.score
    found = Found.empty(len(batch), k)
    found.positions[:], found.scores[:] = positions[:, :k], scores[:, :k]
    worth = scores[:, 0] + error >= outside
    # A result is proven where its true score is not below what any other item may reach.
    rivals = np.repeat(outside[:, None], k, axis=1)
    rows, slack = np.flatnonzero(worth), error.copy()
    if len(rows):
        slack[rows] = engine.precise_errors(batch.take(rows))
        near = (scores >= (scores[:, k - 1] - 2 * error)[:, None]).sum(axis=1)
        contested = [positions[row, : near[row]] for row in rows.tolist()]
        precise = engine.score_precisely(batch.take(rows), Lists.of(contested), plan.threads)
        for row, mine, values in zip(rows.tolist(), contested, precise, strict=True):
            order = np.lexsort((mine, -values))
            best, rest = order[:k], order[k:]
            found.positions[row], found.scores[row] = mine[best], values[best]
            if len(rest) and values[rest[0]] + 2 * slack[row] > values[best[-1]]:
                doubtful = values[rest] + 2 * slack[row] > values[best[-1]]
                rivals[row] = _rivals(
                    engine, mine[best], mine[rest[doubtful]], values[rest[doubtful]] + slack[row], rivals[row]
                )
    low = found.scores - slack[:, None]
    found.proven[:] = (low >= rivals) & worth[:, None]
    # Of equal rivals the last result has the widest; of a copy's it may be another one.
    found.gap[:] = np.maximum(0.0, (rivals - low).max(axis=1))
    return found, low[:, -1]


def _rivals(engine: Engine, best: Integers, others: Integers, highest: Doubles, outside: Doubles) -> Doubles:
    """(k,) the most that an item which is no copy of it may score, for each of the best; outside (k,) is known.

    others: items that may be better, with the most that each may score.
    """
    found = outside.copy()
    for place, position in enumerate(best.tolist()):
        strange = ~engine.same(position, others)
        if strange.any():
            found[place] = max(found[place], float(highest[strange].max()))
    return found


def _overflow() -> CorruptIndexError:
    return CorruptIndexError("scores are not numbers: the catalogue is damaged; restore a copy or build it again.")


_METHODS = {
    "exact": exact,
    "brute-force": brute_force,
    "two-pass": two_pass,
    "per-embedding": approximate,
    "average": approximate,
    "combined": approximate,
}
