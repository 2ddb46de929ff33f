"""Answers to single queries put together as the records that callers get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from softindex.adaptive.pac import Estimated
from softindex.adaptive.strategies import Answer, Cost
from softindex.records import Doubles, Estimate, Integers, TopK
from softindex.temperatures import temperature_of

__all__ = [
    "as_answers",
    "collect_best",
    "collect_estimated",
    "collect_log_partition",
    "collect_nuclei",
    "items_scored",
    "pick",
]

PROVEN = ("exact", "deterministic")


def collect_log_partition(answers: list[Answer], *, single: bool) -> Estimate:
    """log Z of every query."""
    if single:
        return Estimate(*answers[0].log_partition)
    return Estimate(*np.array([answer.log_partition for answer in answers]).T)


def collect_best(answers: list[Answer], temperature: float | Doubles, n: int, *, single: bool) -> TopK:
    """The best of every query, of n classes; shorter rows are filled with id -1, score and log_prob -inf."""
    ids = _rows([answer.rows for answer in answers], -1, single)
    proven = [answer.guarantee in PROVEN for answer in answers]
    return TopK(
        ids,
        _rows([temperature_of(temperature, row) * one.logits for row, one in enumerate(answers)], -np.inf, single),
        (ids >= 0) & (proven[0] if single else np.array(proven)[:, None]),
        gap=_each([0.0 if each else np.nan for each in proven], single),
        items_scored=_each([min(answer.cost.rows, n) for answer in answers], single),
        log_prob=_rows([_log_prob(answer) for answer in answers], -np.inf, single),
        log_partition=collect_log_partition(answers, single=single),
        guarantee=_each([answer.guarantee for answer in answers], single),
        multiplications=_each([answer.cost.multiplications for answer in answers], single),
        bytes_read=_each([answer.cost.bytes_read for answer in answers], single),
    )


def collect_estimated(found: Estimated, n: int, single: bool) -> TopK:
    """The same from the arrays of the guarantee "pac"."""
    labels = found.labels()
    if single:
        _, scored, multiplied, read = found.costs[0].tolist()
        exact = labels[0] == "exact"
        proven = (np.ones if exact else np.zeros)(found.rows.shape[1], bool)
        return TopK(
            found.rows[0], found.scores[0], proven, 0.0 if exact else np.nan, min(scored, n), found.log_prob[0],
            Estimate(*found.log_z[0].tolist()), labels[0], None, multiplied, read,
        )  # fmt: skip
    exacts = np.array([label == "exact" for label in labels])
    _, scored, multiplied, read = found.costs.T
    return TopK(
        found.rows,
        found.scores,
        np.repeat(exacts[:, None], found.rows.shape[1], axis=1),
        gap=np.where(exacts, 0.0, np.nan),
        items_scored=np.minimum(scored, n),
        log_prob=found.log_prob,
        log_partition=Estimate(*found.log_z.T),
        guarantee=np.array(labels),
        multiplications=multiplied,
        bytes_read=read,
    )


def as_answers(found: Estimated, temperature: float | Doubles) -> list[Answer]:
    """One answer per query from the arrays of the guarantee "pac"."""
    divisors = temperature if isinstance(temperature, float) else temperature[:, None]
    return [
        Answer(rows, logits, (value, low, high), label, Cost(*cost))
        for rows, logits, (value, low, high), label, (_, *cost) in zip(
            found.rows, found.scores / divisors, found.log_z.tolist(), found.labels(), found.costs.tolist(), strict=True
        )
    ]


def collect_nuclei(answers: list[Answer], temperature: float | Doubles, n: int, *, single: bool) -> TopK:
    """The same for nuclei, with their sizes."""
    sizes = _each([len(answer.rows) for answer in answers], single)
    return replace(collect_best(answers, temperature, n, single=single), sizes=sizes)


def _rows(parts: list[Any], fill: float, single: bool) -> Any:
    """(b, m) one row for each query, the shorter ones filled up; (m,) for a 1-D query, which needs no copy."""
    if single:
        return parts[0]
    rows = np.full((len(parts), max(map(len, parts))), fill, parts[0].dtype)
    for row, part in enumerate(parts):
        rows[row, : len(part)] = part
    return rows


def _each(values: list[Any], single: bool) -> Any:
    """(b,) one value for each query; the value itself for a 1-D query."""
    return values[0] if single else np.array(values)


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
