"""Answers to single queries put together as the records that callers get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from softindex.adaptive.strategies import Answer
from softindex.records import Doubles, Estimate, Integers, TopK

__all__ = ["collect_best", "collect_log_partition", "collect_nuclei", "items_scored", "pick"]

PROVEN = ("exact", "deterministic")


def collect_log_partition(answers: list[Answer], *, single: bool) -> Estimate:
    """log Z of every query."""
    value, low, high = (pick(column, single) for column in np.array([answer.log_partition for answer in answers]).T)
    return Estimate(value, low, high)


def collect_best(answers: list[Answer], temperature: float, n: int, *, single: bool) -> TopK:
    """The best of every query, of n classes; shorter rows are filled with id -1, score and log_prob -inf."""
    shape = (len(answers), max(len(answer.rows) for answer in answers))
    ids, scores, log_prob = np.full(shape, -1), np.full(shape, -np.inf), np.full(shape, -np.inf)
    for row, answer in enumerate(answers):
        here = slice(len(answer.rows))
        ids[row, here], scores[row, here] = answer.rows, temperature * answer.logits
        log_prob[row, here] = _log_prob(answer)
    guarantees = np.array([answer.guarantee for answer in answers])
    proven = np.array([answer.guarantee in PROVEN for answer in answers])
    return TopK(
        pick(ids, single),
        pick(scores, single),
        pick(proven[:, None] & (ids >= 0), single),
        gap=pick(np.where(proven, 0.0, np.nan), single),
        items_scored=pick(items_scored(answers, n), single),
        log_prob=pick(log_prob, single),
        log_partition=collect_log_partition(answers, single=single),
        guarantee=pick(guarantees, single),
        multiplications=pick(np.array([answer.cost.multiplications for answer in answers]), single),
        bytes_read=pick(np.array([answer.cost.bytes_read for answer in answers]), single),
    )


def collect_nuclei(answers: list[Answer], temperature: float, n: int, *, single: bool) -> TopK:
    """The same for nuclei, with their sizes."""
    sizes = np.array([len(answer.rows) for answer in answers])
    return replace(collect_best(answers, temperature, n, single=single), sizes=pick(sizes, single))


def _log_prob(answer: Answer) -> Doubles:
    # log Z may be a little too small, and a probability is never above one.
    return np.minimum(answer.logits - answer.log_partition[0], 0.0)


def items_scored(answers: list[Answer], n: int) -> Integers:
    """(b,) of n classes; a row that two strategies scored is one class."""
    return np.array([min(answer.cost.rows, n) for answer in answers])


def pick(values: Any, single: bool) -> Any:
    """The results of all queries, or without the row axis for a 1-D query."""
    if not single:
        return values
    return values[0].item() if values.ndim == 1 else values[0]
