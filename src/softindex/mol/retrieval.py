"""The k best items of a learned similarity: which items are scored, and what that proves about the others.

A score is a convex combination of logits, so no item scores more than its largest logit.  Every proof here uses this
one fact.  An item that was left out scores at most its largest logit.  A result that scores more than every item that
was left out can is among the true k best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from softindex.errors import InputError
from softindex.mol.plans import FirstPass, Retrieved, SearchPlan
from softindex.mol.scorer import PositionLists, QueryBatch, Scorer, not_numbers
from softindex.records import Doubles, Floats, Integers

__all__ = ["METHODS", "rank", "retrieve"]

METHODS = ("exact", "brute-force", "two-pass", "per-embedding", "average", "clusters", "combined")
SPARE = 4
"""A scan keeps this many times k items: most items that rounding may confuse with the k-th are among them."""
MAX_SURVIVORS = 0.6
"""If a larger share of the items survives the first pass, one scan of all items is faster than two passes."""
MAX_SURVIVORS_SCREENED = 0.3
"""The same where a scan of all items is screened."""
PROBED = 256
"""Items whose logits predict whether a second pass pays off."""
MIN_RATIO = 16
"""With fewer items than this many times the size of the first pass, all items are scored at once."""
MIN_SCREEN_RATIO = 4
"""With fewer items than this many times those that a screen keeps, all items are scored at once."""
GROUP = 64
"""Queries that share one tile of items: they stay in the cache."""
GROWTH = 4


FindBest = Callable[[Integers, QueryBatch, int], tuple[Integers, Floats]]
"""find(rows, their queries, keep): positions and scores (b, keep), best first; -1 and -inf where there are fewer."""


def retrieve(scorer: Scorer, batch: QueryBatch, plan: SearchPlan) -> Retrieved:
    """Find the k best items of each query by the plan's method."""
    result = Retrieved.empty(len(batch), plan.k)
    # With one pair of components the logit is the score, so a first stage would save nothing.
    method = brute_force if scorer.spec.pairs == 1 else _METHODS[plan.method]
    for rows, group in scorer.groups(batch, GROUP):
        result.put(rows, method(scorer, group, plan))
    return result


def brute_force(scorer: Scorer, batch: QueryBatch, plan: SearchPlan) -> Retrieved:
    """Score every item; where that is faster, roughly first, and exactly if it may be among the k best."""
    result, left = Retrieved.empty(len(batch), plan.k), np.arange(len(batch))
    if scorer.n >= MIN_SCREEN_RATIO * (width := _screen_width(plan.k, scorer.n)):
        left = left[~_screen(scorer, batch, plan, width, result)]
    if len(left):

        def find(rows: Integers, queries: QueryBatch, keep: int) -> tuple[Integers, Floats]:
            return scorer.best(queries, keep, plan.threads)

        rest = batch.take(left)
        result.put(left, _settle_all(scorer, rest, find, rest.available, np.full(len(rest), -np.inf), plan))
    return result


def two_pass(scorer: Scorer, batch: QueryBatch, plan: SearchPlan) -> Retrieved:
    """Score a few good items, then every item whose largest logit reaches the k-th best of those scores."""
    return _second_pass(scorer, batch, plan, _first_pass(scorer, batch, plan))


def exact(scorer: Scorer, batch: QueryBatch, plan: SearchPlan) -> Retrieved:
    """Use two passes where a few logits predict that they leave out enough items; otherwise score all items."""
    result = Retrieved.empty(len(batch), plan.k)
    worthwhile = np.zeros(len(batch), bool)
    if scorer.n >= MIN_RATIO * _first_pass_size(plan.k):
        first = _first_pass(scorer, batch, plan)
        survivors = (scorer.sample_largest(batch, PROBED) >= first.floor[:, None]).mean(axis=1)
        worthwhile = survivors <= np.where(scorer.screens(batch), MAX_SURVIVORS_SCREENED, MAX_SURVIVORS)
        if worthwhile.any():
            rows = np.flatnonzero(worthwhile)
            result.put(rows, _second_pass(scorer, batch.take(rows), plan, first.take(rows)))
    if not worthwhile.all():
        rows = np.flatnonzero(~worthwhile)
        result.put(rows, brute_force(scorer, batch.take(rows), plan))
    return result


def approximate(scorer: Scorer, batch: QueryBatch, plan: SearchPlan) -> Retrieved:
    """Score the candidates of a first stage; with a gap, add candidates until it is reached or none are left."""
    if plan.gap is None:
        return _score_candidates(scorer, batch, plan, None)
    result, rows, counts = Retrieved.empty(len(batch), plan.k), np.arange(len(batch)), plan.start
    # The largest logits are the same for any number of candidates; the lists of each pair are not.
    largest = None if plan.candidates.per_pair else scorer.largest(batch, 0, plan.threads)[0]
    while len(rows):
        logits = None if largest is None else [largest[row] for row in rows.tolist()]
        step = _score_candidates(scorer, batch.take(rows), plan._replace(candidates=counts), logits)
        result.put(rows, step)
        rows = rows[step.gap > plan.gap] if counts != plan.candidates else rows[:0]
        counts = counts.times(GROWTH).at_most(plan.candidates)
    return result


def rank(scorer: Scorer, batch: QueryBatch, candidates: list[Integers], plan: SearchPlan) -> Retrieved:
    """Score the caller's candidates; of the other items only an upper bound on any score is known."""
    return _score_listed(scorer, batch, candidates, batch.errors.ceiling, plan)


def _screen_width(k: int, n: int) -> int:
    """Items that a screen keeps: bounds of more items reach the k-th score where there are more items."""
    return 10 * k + 256 + min(n // 200, 10_000)


def _screen(scorer: Scorer, batch: QueryBatch, plan: SearchPlan, width: int, result: Retrieved) -> NDArray[np.bool_]:
    """Fill in the queries whose k best follow from bounds on all scores and the scores of a few items; (b,) which."""
    settled, rows = np.zeros(len(batch), bool), np.flatnonzero(scorer.screens(batch))
    if len(rows):
        queries = batch.take(rows)
        positions, scores, outside = scorer.best_screened(queries, plan.k, SPARE * plan.k + 64, width, plan.threads)
        if (positions[:, plan.k - 1] < 0).any():
            raise not_numbers()
        beyond = np.where(positions[:, -1] >= 0, scores[:, -1] + queries.errors.score, -np.inf)
        step, floor = _settle(scorer, queries, positions, scores, np.maximum(outside, beyond), plan)
        step.scored[:] = queries.available
        result.put(rows, step)
        settled[rows] = np.maximum(outside, beyond) <= floor
    return settled


def _first_pass_size(k: int) -> int:
    return max(SPARE * k, 256)


def _first_pass(scorer: Scorer, batch: QueryBatch, plan: SearchPlan) -> FirstPass:
    positions = scorer.best_average(batch, min(scorer.n, _first_pass_size(plan.k)), plan.threads)
    scores = scorer.score(batch, PositionLists.of(positions), plan.threads)
    shape = (len(batch), max(len(row) for row in positions))
    first = FirstPass(np.empty(len(batch)), np.full(shape, -1), np.full(shape, -np.inf, np.float32))
    for row, (listed, values) in enumerate(zip(positions, scores, strict=True)):
        if not np.isfinite(values).all():
            raise not_numbers()
        first.floor[row] = np.partition(values, len(values) - plan.k)[len(values) - plan.k] - batch.errors.score[row]
        first.positions[row, : len(listed)], first.scores[row, : len(listed)] = listed, values
    return first


def _second_pass(scorer: Scorer, batch: QueryBatch, plan: SearchPlan, first: FirstPass) -> Retrieved:
    largest, _ = scorer.largest(batch, 0, plan.threads)
    # An item stays if its true largest logit may reach the floor.
    survives = largest >= (first.floor - batch.errors.logit)[:, None]
    few = survives.sum(axis=1) <= MAX_SURVIVORS * batch.available
    result = Retrieved.empty(len(batch), plan.k)
    if not few.all():
        rows = np.flatnonzero(~few)
        result.put(rows, brute_force(scorer, batch.take(rows), plan))
    if few.any():
        rows = np.flatnonzero(few)
        outside = np.where(survives, -np.inf, largest).max(axis=1) + batch.errors.logit
        listed = first.take(rows).among(survives[rows])
        dropped = (first.positions[rows] >= 0).sum(axis=1) - (listed.positions >= 0).sum(axis=1)
        for row, positions in zip(rows.tolist(), listed.positions, strict=True):
            survives[row, positions[positions >= 0]] = False
        others = [np.flatnonzero(survives[row]) for row in rows.tolist()]
        settled = _score_listed(scorer, batch.take(rows), others, outside[rows], plan, listed)
        settled.scored[:] += dropped
        result.put(rows, settled)
    return result


def _score_candidates(
    scorer: Scorer, batch: QueryBatch, plan: SearchPlan, largest: Sequence[Floats] | None
) -> Retrieved:
    """Score as many candidates as the plan says; largest: logits (n,) of each query, where they are known."""
    lists: list[list[Integers]] = [[] for _ in range(len(batch))]
    per_pair, by_average, by_cluster = plan.candidates
    for count, find in ((by_average, scorer.best_average), (by_cluster, scorer.best_clustered)):
        if count:
            for row, found in zip(lists, find(batch, min(count, scorer.n), plan.threads), strict=True):
                row.append(found)
    outside = batch.errors.ceiling
    # Neither averages nor clusters bound single logits; a useful gap needs the largest logit of every item.
    if largest is None and (per_pair or plan.gap is not None):
        logits, by_pair = scorer.largest(batch, min(per_pair, scorer.n), plan.threads)
        largest = list(logits)
        if by_pair is not None:
            expected = np.minimum(by_pair.shape[2], batch.available)
            for row, listed, count in zip(lists, by_pair, expected.tolist(), strict=True):
                if (listed[:, :count] < 0).any():
                    raise not_numbers("logits")
                row.append(listed[listed >= 0].ravel())
    candidates = [row[0] if len(row) == 1 and largest is None else np.unique(np.concatenate(row)) for row in lists]
    _check_enough(candidates, plan.k)
    if largest is not None:
        outside = np.empty(len(batch))
        for q, (values, positions) in enumerate(zip(largest, candidates, strict=True)):
            others = values.copy()
            others[positions] = -np.inf
            outside[q] = others.max()
        outside += batch.errors.logit
    return _score_listed(scorer, batch, candidates, outside, plan)


def _check_enough(candidates: list[Integers], k: int) -> None:
    """Refuse a first stage whose lists, without their repeats, have fewer than k items."""
    for row, positions in enumerate(candidates):
        if len(positions) < k:
            raise InputError(
                f"the candidates of query {row} are {len(positions)} different items but k is {k}; pass more "
                "candidates."
            )


def _score_listed(
    scorer: Scorer,
    batch: QueryBatch,
    candidates: list[Integers],
    outside: Doubles,
    plan: SearchPlan,
    first: FirstPass | None = None,
) -> Retrieved:
    """The k best of the candidates, whose positions increase, and of the items that a first pass has scored.

    No other item scores more than `outside`.
    """
    lists = PositionLists.of(candidates)
    counts = lists.counts if first is None else lists.counts + (first.positions >= 0).sum(axis=1)
    if np.isnan(outside).any() or (counts < plan.k).any():
        raise not_numbers("logits")
    # If every available item is a candidate, there is no other item.
    outside = np.where(counts == batch.available, -np.inf, outside)

    def find(rows: Integers, queries: QueryBatch, keep: int) -> tuple[Integers, Floats]:
        best = scorer.best_listed(queries, lists.take(rows), keep, plan.threads)
        return best if first is None else first.take(rows).merge(*best)

    return _settle_all(scorer, batch, find, counts, outside, plan)


def _settle_all(
    scorer: Scorer, batch: QueryBatch, find: FindBest, counts: Integers, outside: Doubles, plan: SearchPlan
) -> Retrieved:
    """Settle the k best of counts (b,) items per query; `find` returns the best few of them.

    If rounding may hide a better item among those that were not kept, keep more.
    """
    result = Retrieved.empty(len(batch), plan.k)
    # If only the ceiling bounds the other items, keeping more could hardly prove anything.
    unprovable = bool((outside >= batch.errors.ceiling).all())
    rows, keep = np.arange(len(batch)), plan.k if unprovable else SPARE * plan.k + 64
    while len(rows):
        queries, count = batch.take(rows), counts[rows]
        width = min(keep, int(count.max()))
        positions, scores = find(rows, queries, width)
        kept = np.minimum(count, width)
        if (positions[np.arange(len(rows)), kept - 1] < 0).any():
            raise not_numbers()
        # No item that was not kept has a higher computed score than the last one that was.
        beyond = np.where(kept < count, scores[:, -1] + queries.errors.score, -np.inf)
        settled, floor = _settle(scorer, queries, positions, scores, np.maximum(outside[rows], beyond), plan)
        settled.scored[:] = count
        result.put(rows, settled)
        rows = rows[(beyond > floor) & (beyond > outside[rows])]
        keep *= GROWTH
    return result


def _settle(
    scorer: Scorer, batch: QueryBatch, positions: Integers, scores: Floats, outside: Doubles, plan: SearchPlan
) -> tuple[Retrieved, Doubles]:
    """The k best of each row of positions with their proofs, and (b,) a proven lower bound on the scores of all k.

    Positions come best first.  No item outside the row scores more than `outside`.  Scores in float32 have errors of up
    to e, so those within 2 e of the k-th are computed again in float64; no other item of the row can be among the k
    best.  Float64 has small errors too: items that it cannot tell apart are not proven, except copies of an item.  All
    of this is skipped where `outside` leaves nothing to prove.
    """
    k, error = plan.k, batch.errors.score
    result = Retrieved.empty(len(batch), k)
    result.positions[:], result.scores[:] = positions[:, :k], scores[:, :k]
    provable = scores[:, 0] + error >= outside
    # A result is proven if its true score is at least the upper bound of every rival.
    rivals = np.repeat(outside[:, None], k, axis=1)
    rows, slack = np.flatnonzero(provable), error.copy()
    if len(rows):
        queries = batch.take(rows)
        slack[rows] = queries.precise().error
        near = (scores >= (scores[:, k - 1] - 2 * error)[:, None]).sum(axis=1)
        contested = [positions[row, : near[row]] for row in rows.tolist()]
        precise = scorer.score_precisely(queries, PositionLists.of(contested), plan.threads)
        for row, listed, values in zip(rows.tolist(), contested, precise, strict=True):
            order = np.lexsort((listed, -values))
            best, rest = order[:k], order[k:]
            result.positions[row], result.scores[row] = listed[best], values[best]
            doubtful = rest[values[rest] + 2 * slack[row] > values[best[-1]]]
            if len(doubtful):
                highest = values[doubtful] + slack[row]
                rivals[row] = _rivals(scorer, listed[best], listed[doubtful], highest, rivals[row])
    low = result.scores - slack[:, None]
    result.proven[:] = (low >= rivals) & provable[:, None]
    # With equal rivals the last result has the widest gap; where copies make rivals differ it may be another one.
    result.gap[:] = np.maximum(0.0, (rivals - low).max(axis=1))
    return result, low[:, -1]


def _rivals(scorer: Scorer, best: Integers, others: Integers, highest: Doubles, outside: Doubles) -> Doubles:
    """(k,) upper bound, for each of the best items, on the scores of items that are not copies of it.

    others: items that may be better, with upper bounds `highest`; outside (k,): bound on all the rest.
    """
    bounds = outside.copy()
    for place, position in enumerate(best.tolist()):
        different = ~scorer.copies(position, others)
        if different.any():
            bounds[place] = max(bounds[place], float(highest[different].max()))
    return bounds


_METHODS = {
    "exact": exact,
    "brute-force": brute_force,
    "two-pass": two_pass,
    "per-embedding": approximate,
    "average": approximate,
    "clusters": approximate,
    "combined": approximate,
}
