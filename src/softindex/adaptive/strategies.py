"""Ways to answer a query, cheap ones first: each settles the question or passes it on, and costs add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from softindex.adaptive.bounds import ALL, FEW, MANY, Bounds, LogZ
from softindex.adaptive.goals import Goal, Solution
from softindex.adaptive.layer import Layer, Logits
from softindex.adaptive.screen import Scores
from softindex.records import Doubles, Integers

MOST_DOUBTFUL = 0.4
"""Where a larger share of the rows is in doubt, all are scored at the finer level: reading in order is faster."""

__all__ = ["Answer", "Cost", "ExactScan", "PreciseScan", "Query", "Request", "Screened", "settle"]


@dataclass(slots=True)
class Cost:
    """What answering has taken so far."""

    rows: int = 0
    """Rows scored exactly; a row may count twice."""
    multiplications: int = 0
    bytes_read: int = 0

    def add(self, *, rows: int, multiplications: int, bytes_read: int) -> None:
        """Add what one strategy took."""
        self.rows += rows
        self.multiplications += multiplications
        self.bytes_read += bytes_read


@dataclass(slots=True)
class Query:
    """One query on its way through the strategies."""

    logits: Logits
    """Those of its candidates, with everything that strategies share."""
    first: Callable[[], tuple[int, Scores]]
    """The level to start with and its scores, which are computed for several queries at once."""
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of a query."""

    goal: Goal
    threads: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows with their logits, log Z, and the guarantee that they have."""

    rows: Integers
    logits: Doubles
    log_partition: LogZ
    guarantee: str
    cost: Cost
    errors: Doubles | None = None
    """How far the logits may be off; None for pac, where they are estimates."""


class Strategy(Protocol):
    """One way to answer."""

    def answer(self, query: Query, request: Request) -> Answer | None:
        """The answer, or None where this strategy cannot settle the question cheaply; adds to the query's cost."""


def settle(strategies: Sequence[Strategy], last: ExactScan | PreciseScan, query: Query, request: Request) -> Answer:
    """The answer of the first strategy that has one; the last always has."""
    for strategy in strategies:
        answer = strategy.answer(query, request)
        if answer is not None:
            return answer
    return last.answer(query, request)


def _answer(solution: Solution, logits: Logits, guarantee: str, cost: Cost) -> Answer:
    rows = logits.rows(solution.positions)
    return Answer(rows, solution.logits, solution.log_partition, guarantee, cost, solution.errors)


@dataclass(frozen=True, slots=True)
class ExactScan:
    """Score every row in float32, then in float64 those that rounding leaves in doubt."""

    layer: Layer

    def answer(self, query: Query, request: Request) -> Answer:
        """The answer: nothing is left in doubt."""
        logits, rows = query.logits, self.layer.rows
        scores = self.layer.scan(logits.query, request.threads)
        bounds = logits.bounds(logits.values(scores), scores.radii, ALL)
        solution = request.goal.find(bounds)
        assert solution is not None, "without a limit every goal is reached"
        count = rows.n + bounds.scored
        query.cost.add(rows=count, multiplications=count * rows.d, bytes_read=count * rows.bytes_per_row)
        return _answer(solution, logits, "exact", query.cost)


@dataclass(frozen=True, slots=True)
class PreciseScan:
    """Score every candidate in float64: for draws, which must not depend on how float32 sums are split over threads."""

    layer: Layer

    def answer(self, query: Query, request: Request) -> Answer:
        """The answer: nothing is left in doubt."""
        logits, rows = query.logits, self.layer.rows
        bounds = logits.precise_bounds()
        solution = request.goal.find(bounds)
        assert solution is not None, "without a limit every goal is reached"
        count = bounds.scored
        query.cost.add(rows=count, multiplications=count * rows.d, bytes_read=count * rows.bytes_per_row)
        return _answer(solution, logits, "exact", query.cost)


@dataclass(frozen=True, slots=True)
class Screened:
    """Score every row in few bits, and exactly those that this leaves in doubt; coarse copies before fine ones."""

    layer: Layer
    guarantee: str
    factors: Sequence[float]
    """Fraction of each level's radius that counts: 1 for a proof, less where it was calibrated."""

    def answer(self, query: Query, request: Request) -> Answer | None:
        """The answer of the coarsest level that has one."""
        logits, rows, levels = query.logits, self.layer.rows, self.layer.screen.levels
        number, scores = query.first()
        values, screened = logits.values(scores), rows.n
        bounds = logits.bounds(values, scores.radii, self._share(number), factor=self.factors[number])
        codes = rows.n * levels[number].bytes_per_row
        solution = request.goal.find(bounds)
        while solution is None and number + 1 < len(levels):
            number += 1
            doubtful = self._doubtful(number, bounds, values, query, request.goal)
            if doubtful is None:
                break
            self._tighten(number, bounds, doubtful, query, request.threads)
            screened += len(doubtful)
            codes += len(doubtful) * levels[number].bytes_per_row
            solution = request.goal.find(bounds)
        query.cost.add(
            rows=bounds.scored,
            multiplications=(screened + bounds.scored) * rows.d,
            bytes_read=codes + bounds.scored * rows.bytes_per_row,
        )
        return None if solution is None else _answer(solution, logits, self.guarantee, query.cost)

    def _share(self, number: int) -> int:
        """Limit of the rows to score exactly after a level, as for `Bounds`."""
        return FEW if number + 1 < len(self.factors) else MANY

    def _doubtful(self, number: int, bounds: Bounds, values: Doubles, query: Query, goal: Goal) -> Integers | None:
        """Positions to score at a finer level; None where it would leave too many rows as well."""
        radii = self.layer.screen.levels[number].radii(query.logits.query)
        expected = query.logits.bounds(values, radii, self._share(number), factor=self.factors[number])
        # The coarse values are more spread out than the true ones, which makes it look easier than it is.
        if expected.is_hopeless(goal.k, goal.epsilon, expected.limit // 2):
            return None
        found = goal.doubtful(bounds)
        return found if len(found) < MOST_DOUBTFUL * len(bounds) else np.arange(len(bounds))

    def _tighten(self, number: int, bounds: Bounds, positions: Integers, query: Query, threads: int) -> None:
        """Bounds of these positions by a finer level."""
        level, logits = self.layer.screen.levels[number], query.logits
        rows = logits.rows(positions)
        if len(rows) == self.layer.rows.n:
            scores = level.score([logits.query], threads)[0]
        else:
            scores = level.score_rows(logits.query, rows, threads)
        bounds.tighten(positions, *logits.values_of(scores, rows, self.factors[number]), self._share(number))
