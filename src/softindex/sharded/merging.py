"""Pure functions that make one answer of the answers of shards.  Axis 0 of stacked arrays is the shard.

A shard is one cluster of a larger partition: its mass is its Z, and inside it the shard has drawn already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.records import Doubles, Integers
from softindex.sharded.questions import LogZ

__all__ = [
    "Best",
    "bound_log_prob",
    "log_shares",
    "log_sum",
    "merge_best",
    "merge_slates",
    "pick_certainly",
    "pick_shards",
    "stated_error",
    "sum_log_z",
    "take",
]

SLACK = 1e-13
"""Room for the rounding of sums in float64, relative to the numbers that are added."""


def log_sum(values: Doubles, axis: int = 0) -> Doubles:
    """Log of the sum of exp(values) along an axis; -inf where all are."""
    peak = values.max(axis=axis, keepdims=True)
    safe = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(values - safe).sum(axis=axis, keepdims=True)) + safe
    result: Doubles = np.squeeze(total, axis)
    return result


def sum_log_z(parts: Sequence[LogZ]) -> LogZ:
    """log Z of all shards together; bounds are rounded outward."""
    value, low, high, error = (
        np.stack([getattr(part, name) for part in parts]) for name in ("value", "low", "high", "error")
    )
    total = log_sum(value)
    shares = np.exp(log_shares(value))
    if len(parts) == 1:
        return parts[0]
    lower, upper = log_sum(low), log_sum(high)
    # Errors of shards are independent, so that their squares add up.
    combined = np.sqrt(np.square(shares * np.where(shares > 0, error, 0.0)).sum(axis=0))
    return LogZ(total, lower - SLACK * (1 + np.abs(lower)), upper + SLACK * (1 + np.abs(upper)), combined)


def log_shares(log_z: Doubles) -> Doubles:
    """(S, b) log of the part of all mass that each shard has."""
    total = log_sum(log_z)
    shares: Doubles = np.minimum(log_z - np.where(np.isfinite(total), total, 0.0), 0.0)
    return shares


def pick_shards(log_z: Doubles, uniform: Doubles) -> Integers:
    """(b, n) the shard of each draw, by log_z (S, b) and uniform numbers (b, n); never one without mass."""
    ends = _ends(np.exp(log_shares(log_z)))
    return _first_above(ends, uniform * ends[-1][:, None])


def pick_certainly(low: Doubles, high: Doubles, uniform: Doubles) -> tuple[Integers, NDArray[np.bool_]]:
    """(b, n) the shard that `pick_shards` would pick for any log Z within bounds (S, b), and (b,) if it is certain.

    A query that is not certain for one of its draws needs tighter bounds.
    """
    base = high.max(axis=0)
    small, large = np.exp(low - base), np.exp(high - base)
    # The end of shard s is a share: smallest where shards up to s are small and the others large.
    before_small, before_large = np.cumsum(small, axis=0), np.cumsum(large, axis=0)
    after_small, after_large = before_small[-1] - before_small, before_large[-1] - before_large
    first = before_small / (before_small + after_large) * (1 - 1e-12)
    last = before_large / (before_large + np.maximum(after_small, 0.0)) * (1 + 1e-12)
    first[-1] = last[-1] = 1.0
    lower, upper = _first_above(last, uniform), _first_above(first, uniform)
    return lower, (lower == upper).all(axis=1)


def _ends(shares: Doubles) -> Doubles:
    return np.cumsum(shares, axis=0)


def _first_above(ends: Doubles, uniform: Doubles) -> Integers:
    """(b, n) the first shard whose end (S, b) is above the number (b, n)."""
    picked = (ends[:, :, None] <= uniform[None]).sum(axis=0)
    # Rounding may leave a number at the very end: it belongs to the last shard that has any mass.
    widths = np.diff(ends, axis=0, prepend=0.0) > 0
    last = len(ends) - 1 - np.argmax(widths[::-1], axis=0)
    result: Integers = np.minimum(picked, last[:, None])
    return result


def take(arrays: Sequence[NDArray[Any]], picked: Integers, columns: Integers | None = None) -> NDArray[Any]:
    """(b, n) entries of arrays (b, m) of the shards that were picked; columns (b, n), or the same column when None."""
    rows = np.arange(picked.shape[0])[:, None]
    places = np.arange(picked.shape[1])[None] if columns is None else columns
    stacked = np.stack([_widened(array, arrays) for array in arrays])
    return stacked[picked, rows, places]


def _widened(array: NDArray[Any], arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The array with as many columns as the widest: shards with few items return short slates."""
    missing = max(one.shape[1] for one in arrays) - array.shape[1]
    return array if missing == 0 else np.pad(array, ((0, 0), (0, missing)))


def stated_error(log_z: Doubles, errors: Doubles, log_errors: Doubles) -> Doubles:
    """(b,) estimated total variation of the law of all shards, from (S, b) log Z, stated errors and errors of log Z.

    With v the shares of shards, the law is v_s q_s and the softmax w_s p_s, and TV <= sum v_s TV(q_s, p_s) + TV(v, w).
    The first sum has the stated errors of the shards.  A share changes by v_s (d_s - sum of v_r d_r) if log Z of shard
    s is wrong by d_s.  An error that all shards have in common would cancel; these count as independent.
    """
    shares = np.exp(log_shares(log_z))
    held = shares > 0
    inside = (shares * np.where(held, errors, 0.0)).sum(axis=0)
    wrong = np.where(held, log_errors, 0.0)
    squares = np.square(shares * wrong)
    own = np.square((1 - shares) * wrong) + squares.sum(axis=0) - squares
    between = (shares * np.sqrt(np.maximum(own, 0.0))).sum(axis=0) / 2
    result: Doubles = np.minimum(inside + between, 1.0)
    return result


def bound_log_prob(
    draws: tuple[Doubles, Doubles, Doubles], own: LogZ, total: LogZ, picked: LogZ
) -> tuple[Doubles, Doubles, Doubles]:
    """log_prob, low and high (b, n) of certified draws, from those under the shard that each was picked from.

    own: log Z of that shard, (b, n) each.  total: log Z of all shards, (b, 1).  picked: log of the share of that shard.
    A shard's lower bound has the upper bound of its log Z subtracted: adding it again gives a bound on the logit.
    """
    value, low, high = draws
    at_least = low + own.high - total.high
    # A bound that was cut to 0 says nothing about the logit; then only the share of the shard bounds it.
    at_most = np.where(high < 0, high + own.low - total.low, 0.0)
    at_most = np.minimum(np.minimum(at_most, high + picked.high), 0.0)
    room = SLACK * (1 + np.abs(own.value) + np.abs(total.value))
    at_least, at_most = at_least - room, np.minimum(at_most + room, 0.0)
    return np.clip(value + own.value - total.value, at_least, at_most), at_least, at_most


def merge_slates(
    log_left: Sequence[Doubles], log_prob: Sequence[Doubles], left: Integers, uniform: Doubles
) -> tuple[Integers, Integers, Doubles]:
    """Shards (b, n), their steps (b, n) and log_prob (b, n) of slates that are drawn from the slates of shards.

    The next item is the next one of a shard, picked by the mass that each shard has left.  left: (S, b) items of each
    shard that may be drawn; a shard that gave all of them has no mass left.
    """
    b, n = uniform.shape
    mass = np.stack([_widened(part, log_left) for part in log_left])
    steps = np.stack([_widened(part, log_prob) for part in log_prob])
    lengths = np.minimum(left, np.array([part.shape[1] for part in log_prob])[:, None])
    place, rows = np.zeros((len(mass), b), np.int64), np.arange(b)
    picked, columns, result = np.empty((b, n), np.int64), np.empty((b, n), np.int64), np.empty((b, n))
    for step in range(n):
        last = np.minimum(place, mass.shape[2] - 1)
        now = np.where(place < lengths, np.take_along_axis(mass, last[:, :, None], 2)[:, :, 0], -np.inf)
        shard = pick_shards(now, uniform[:, step : step + 1])[:, 0]
        column = place[shard, rows]
        picked[:, step], columns[:, step] = shard, column
        result[:, step] = np.minimum(log_shares(now)[shard, rows] + steps[shard, rows, column], 0.0)
        place[shard, rows] += 1
    return picked, columns, result


Best = tuple[Integers, Integers, Doubles, NDArray[np.bool_], Doubles]
"""Shards, columns, scores and proofs of the best items, (b, k) each, and the gap (b,)."""


def merge_best(scores: Sequence[Doubles], proven: Sequence[NDArray[np.bool_]], rest: Doubles, k: int) -> Best:
    """The k best of the best of shards.  rest: (S, b) no other item of a shard scores more.

    Equal scores come in the order of the shards, and of the items in each.
    """
    owners = np.concatenate([np.full(part.shape[1], shard) for shard, part in enumerate(scores)])
    places = np.concatenate([np.arange(part.shape[1]) for part in scores])
    joined = np.concatenate(scores, axis=1)
    order = np.argsort(-joined, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(joined, order, 1)
    others = rest.max(axis=0)
    held = np.take_along_axis(np.concatenate(proven, axis=1), order, 1) & (best >= others[:, None])
    gap = np.maximum(others - best[:, -1], 0.0)
    return owners[order], places[order], best, held, np.where(np.isposinf(gap), np.nan, gap)
