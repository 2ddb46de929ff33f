"""Draws as callers get them: from the softmax itself, from the k best, or from a nucleus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from softindex.adaptive.answers import collect_log_partition, items_scored, pick
from softindex.adaptive.calls import Call
from softindex.adaptive.goals import DRAWN_EPSILON, BestClasses
from softindex.adaptive.strategies import Answer
from softindex.arguments import check_count, check_fraction
from softindex.errors import InputError, MethodError, show
from softindex.records import Doubles, Draws
from softindex.rejection import choose
from softindex.restrictions import DEFAULT_K

__all__ = ["TOP_K", "SampleMethod", "check_method", "collect_draws", "draw_among", "goals_to_draw", "left_out"]

SampleMethod = Literal["exact", "top-k"]
TOP_K = "top-k"
TOP_K_EPSILON = 0.01
"""Relative error of Z in the error that "top-k" states."""


def goals_to_draw(call: Call, k: Any, n: int) -> list[BestClasses]:
    """What to find for each query of the method "top-k": the k best, or as many as there are of DEFAULT_K."""
    if k is not None:
        call.exclusion.check_fits(check_count(k, "k", n))
    left = (call.exclusion.left(row) for row in range(len(call.vectors)))
    return [BestClasses(k or min(DEFAULT_K, most), TOP_K_EPSILON) for most in left]


def check_method(method: Any, k: Any, top_p: Any, epsilon: Any) -> float:
    """Return the relative error of Z to reach; refuse a method that does not exist, or options it does not take."""
    if not isinstance(method, str) or method not in get_args(SampleMethod):
        names = ", ".join(get_args(SampleMethod))
        raise MethodError(f"there is no method {show(method)}; use one of {names}.")
    if k is not None and method != TOP_K:
        raise InputError(f"k is for method {TOP_K!r} only, but the method is {method!r}; leave k out.")
    if top_p is not None and method == TOP_K:
        raise InputError(f"top_p does not go with method {TOP_K!r}; draw from the k best or from a nucleus, not both.")
    if epsilon is None:
        return DRAWN_EPSILON
    if method == TOP_K or top_p is not None:
        raise InputError("epsilon is for draws from all classes; leave it out with top_p or the method 'top-k'.")
    return check_fraction(epsilon, "epsilon", 0.3)


def collect_draws(answers: list[Answer], n: int, seed: int, *, single: bool) -> Draws:
    """Draws from the softmax of n classes itself; bounds on log_prob come from those of log Z and of the logits."""
    ids, logits = np.array([answer.rows for answer in answers]), np.array([answer.logits for answer in answers])
    value, low, high = np.array([answer.log_partition for answer in answers]).T[:, :, None]
    # The subtraction rounds once more.
    errors = np.array([answer.errors for answer in answers]) + 2.0**-51 * (np.abs(logits) + np.abs(value))
    return Draws(
        pick(ids, single),
        pick(np.minimum(logits - value, 0.0), single),
        pick(np.zeros(len(answers)), single),
        pick(items_scored(answers, n), single),
        "exact",
        seed,
        collect_log_partition(answers, single=single),
        low=pick(np.minimum(logits - errors - high, 0.0), single),
        high=pick(np.minimum(logits + errors - low, 0.0), single),
    )


def draw_among(
    answers: list[Answer], count: int, streams: Sequence[np.random.Generator], n: int, seed: int, *, single: bool
) -> Draws:
    """Draws from the softmax of each answer's classes alone, of n classes in all; no error is stated yet."""
    ids, log_prob = np.empty((len(answers), count), np.int64), np.empty((len(answers), count))
    for row, (answer, rng) in enumerate(zip(answers, streams, strict=True)):
        chances = answer.logits - log_sum(answer.logits)
        drawn = choose(np.exp(chances), count, rng)
        ids[row], log_prob[row] = answer.rows[drawn], chances[drawn]
    return Draws(
        pick(ids, single),
        pick(log_prob, single),
        pick(np.zeros(len(answers)), single),
        pick(items_scored(answers, n), single),
        "exact",
        seed,
        collect_log_partition(answers, single=single),
    )


def left_out(answers: list[Answer], left: Sequence[int]) -> Doubles:
    """(b,) upper bound on the probability of the classes outside the answer; left: how many may be drawn in all."""
    result = np.zeros(len(answers))
    for row, (answer, count) in enumerate(zip(answers, left, strict=True)):
        if len(answer.rows) < count:
            off = 0.0 if answer.errors is None else float(answer.errors.max())
            result[row] = -np.expm1(min(0.0, log_sum(answer.logits) - off - answer.log_partition[2]))
    return result


def log_sum(logits: Doubles) -> float:
    """log of the sum of exp(logits)."""
    peak = float(logits.max())
    return peak + float(np.log(np.exp(logits - peak).sum()))
