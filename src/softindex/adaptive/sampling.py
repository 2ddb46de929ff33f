"""Draws as callers get them: from the softmax itself, from the k best, or from a nucleus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softindex.adaptive.answers import collect_log_partition, items_scored, pick
from softindex.adaptive.strategies import Answer
from softindex.records import Doubles, Draws
from softindex.rejection import choose

__all__ = ["collect_draws", "draw_among", "left_out"]


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
