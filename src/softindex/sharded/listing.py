"""Laws that keep the most probable items only: each shard lists its own, and the coordinator draws from the union."""

from __future__ import annotations

from typing import Any

import numpy as np

from softindex.index import Index
from softindex.laws import Method
from softindex.records import Doubles, Ids, Integers
from softindex.sharded.merging import log_sum
from softindex.sharded.questions import Listed, LogZ, Question, at_rows

__all__ = ["cut", "draw_listed", "list_best", "list_nucleus", "listed_steps", "nucleus_floor", "union"]

SPARE = 0.5
"""A shard lists its nucleus, and this part of what is left: the nucleus of all shards rarely reaches further down."""
BLOCK = 1 << 22
"""Log-probabilities that a shard holds at a time."""

Answered = tuple[Listed, LogZ, Doubles, Integers]
"""Items, log Z of all, stated error of the law, items scored."""


def list_best(
    index: Index, question: Question, left: Integers, rows: dict[str, Any], options: dict[str, Any]
) -> Answered:
    """The k best items of the shard, or all if it has fewer."""
    temperature, threads, b = options["temperature"], options["threads"], len(question.queries)
    counts = np.minimum(left, question.n)
    asked = {"temperature": temperature, "threads": threads, "probes": options["probes"]}
    most = int(counts[counts > 0].min())
    ids: list[Any] = []
    weights: list[Doubles] = []
    scored = np.zeros(b, np.int64)
    if (counts[counts > 0] == most).all():
        best = index.top_k(question.queries, most, **rows, **asked)
        ids, weights = list(best.ids), list(best.scores.astype(np.float64) / _column(temperature))
        scored += best.items_scored
    else:
        for row in range(b):
            own = {name: _row(value, row) if name != "unknown" else value for name, value in rows.items()}
            asked["temperature"] = at_rows(temperature, row)
            best = index.top_k(question.queries[row], max(int(counts[row]), 1), **own, **asked)
            ids.append(best.ids)
            weights.append(best.scores.astype(np.float64) / asked["temperature"])
            scored[row] = best.items_scored
    ids = [one[:count] for one, count in zip(ids, counts, strict=True)]
    weights = [one[:count] for one, count in zip(weights, counts, strict=True)]
    method: Method = "s-2ls" if index.parameters["dispersion"] == "none" else "sd-2ls"
    draws = index.sample(
        question.queries, 1, temperature=temperature, method=method, seed=0, threads=threads,
        tolerance=options["tolerance"], **rows,
    )  # fmt: skip
    assert draws.log_partition is not None
    value = np.array(draws.log_partition.value)
    log_z = LogZ(value, value.copy(), value.copy(), np.array(draws.log_partition.error))
    return _listed(ids, weights, counts == left), log_z, np.array(draws.error), scored + draws.items_scored


def list_nucleus(
    index: Index, question: Question, left: Integers, rows: dict[str, Any], options: dict[str, Any]
) -> Answered:
    """The items down to the floor of the question, or to where the shard has some more than the share top_p."""
    assert question.top_p is not None
    names = index.ids
    b, size = len(question.queries), max(1, BLOCK // len(names))
    ids: list[Any] = []
    weights: list[Doubles] = []
    draws = index.sample(question.queries, 1, seed=0, **rows, **options)
    assert draws.log_partition is not None
    value = np.array(draws.log_partition.value)
    for first in range(0, b, size):
        block = slice(first, min(first + size, b))
        own = {name: _row(given, block) if name != "unknown" else given for name, given in rows.items()}
        own["temperature"] = at_rows(options["temperature"], block)
        found = index.log_prob(question.queries[block], names, **{**options, **own})
        for row in range(*block.indices(b)):
            log_weight = found[row - first] + value[row]
            floor = None if question.floor is None else float(question.floor[row])
            keep = _nucleus(log_weight, value[row], question.top_p, floor)
            ids.append(names[keep])
            weights.append(log_weight[keep])
    complete = np.array([len(one) for one in ids]) >= left
    error = draws.log_partition.error
    log_z = LogZ(value, value.copy(), value.copy(), np.zeros(b) if error is None else np.array(error))
    scored = np.full(b, len(index))
    return _listed(ids, weights, complete), log_z, np.array(draws.error), scored


def _nucleus(log_weight: Doubles, log_z: float, top_p: float, floor: float | None) -> Integers:
    """Rows of the items to list, by decreasing weight."""
    order = np.argsort(-log_weight, kind="stable")
    ordered = log_weight[order]
    held = int(np.isfinite(ordered).sum())
    if floor is not None:
        return order[: min(held, int(np.searchsorted(-ordered, -floor, side="right")))]
    reached = np.cumsum(np.exp(ordered[:held] - log_z)) >= 1 - (1 - top_p) * SPARE
    return order[: int(np.argmax(reached)) + 1 if reached.any() else held]


def _listed(ids: list[Any], weights: list[Doubles], complete: Any) -> Listed:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in ids])]).astype(np.int64)
    return Listed(offsets, np.concatenate(ids), np.concatenate(weights), np.asarray(complete))


def _column(temperature: Any) -> Any:
    return temperature if np.ndim(temperature) == 0 else np.asarray(temperature)[:, None]


def _row(value: Any, rows: int | slice) -> Any:
    """Restrictions of some rows: a list has one entry per row if it has one for each."""
    nested = isinstance(value, list) and any(one is None or np.ndim(one) == 1 for one in value)
    return value[rows] if nested else value


def union(parts: list[Listed | None], query: int, k: int | None) -> tuple[Ids, Doubles]:
    """The items that shards list for a query, or the k best of them, by decreasing weight."""
    filled = [(part, part.row(query)) for part in parts if part is not None]
    ids = np.concatenate([part.ids[row] for part, row in filled])
    weights = np.concatenate([part.log_weights[row] for part, row in filled])
    order = np.argsort(-weights, kind="stable")[:k]
    return ids[order], weights[order]


def nucleus_floor(part: Listed, query: int, log_z: float, top_p: float) -> float:
    """The smallest log weight in the nucleus of one shard; no nucleus of all shards is below the least of these."""
    own = part.log_weights[part.row(query)]
    if not len(own):
        return np.inf
    reached = np.cumsum(np.exp(own - log_z)) >= top_p
    return float(own[int(np.argmax(reached))] if reached.any() else own[-1])


def cut(weights: Doubles, log_total: float, top_p: float) -> int:
    """How many of the items, by decreasing weight, make the smallest set with this share of the total."""
    reached = np.cumsum(np.exp(weights - log_total)) >= top_p
    return int(np.argmax(reached)) + 1 if reached.any() else len(weights)


def draw_listed(weights: Doubles, uniform: Doubles, *, replace: bool) -> tuple[Integers, Doubles]:
    """Rows (n,) and log_prob (n,) of n draws from items with these log weights (m,), by uniform numbers (n,)."""
    law = weights - log_sum(weights)
    if replace:
        rows = _pick(law, uniform)
        return rows, law[rows]
    left, rows, log_prob = weights.copy(), np.empty(len(uniform), np.int64), np.empty(len(uniform))
    for step, number in enumerate(uniform):
        now = left - log_sum(left)
        row = int(_pick(now, number))
        rows[step], log_prob[step] = row, min(now[row], 0.0)
        left[row] = -np.inf
    return rows, log_prob


def listed_steps(weights: Doubles, rows: Integers) -> Doubles:
    """(m,) log_prob of the steps of a slate, for rows of the list; -inf for a row that was drawn before."""
    left, result = weights.copy(), np.empty(len(rows))
    for step, row in enumerate(rows):
        result[step] = min(left[row] - log_sum(left), 0.0) if np.isfinite(left[row]) else -np.inf
        left[row] = -np.inf
    return result


def _pick(law: Doubles, uniform: Any) -> Any:
    ends = np.cumsum(np.exp(law))
    # Rounding may leave a number at the very end: it belongs to the last item that has any weight.
    last = np.searchsorted(ends, ends[-1], side="left")
    return np.minimum(np.searchsorted(ends, uniform * ends[-1], side="right"), last)
