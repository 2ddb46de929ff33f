"""Ways to answer a query, cheap ones first: each settles the question or passes it on, and costs add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from softindex.adaptive.bounds import Bounds, LogZ
from softindex.adaptive.goals import Goal, Solution
from softindex.adaptive.layer import Layer, Logits
from softindex.adaptive.screen import Scores
from softindex.records import Doubles, Integers

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
    coarse: Callable[[], Scores]
    """Scores of the coarsest level, which are computed for several queries at once."""
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
        bounds = logits.bounds(logits.values(scores), scores.radii, limited=False)
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
        logits, rows = query.logits, self.layer.rows
        values: Doubles | None = None
        for level, factor in zip(self.layer.screen.levels, self.factors, strict=True):
            if values is None:
                scores = query.coarse()
            else:
                radii = level.radii(logits.query)
                if self._is_hopeless(logits.bounds(values, radii, factor=factor), request.goal):
                    return None
                scores = level.score([logits.query], request.threads, [radii])[0]
            values = logits.values(scores)
            bounds = logits.bounds(values, scores.radii, factor=factor)
            solution = request.goal.find(bounds)
            query.cost.add(
                rows=bounds.scored,
                multiplications=(rows.n + bounds.scored) * rows.d,
                bytes_read=level.bytes_read + bounds.scored * rows.bytes_per_row,
            )
            if solution is not None:
                return _answer(solution, logits, self.guarantee, query.cost)
        return None

    def _is_hopeless(self, expected: Bounds, goal: Goal) -> bool:
        """Whether a finer level would leave too many rows as well, by its radii around the values of a coarser one."""
        # The coarse values are more spread out than the true ones, which makes it look easier than it is.
        return expected.is_hopeless(goal.k, goal.epsilon, expected.limit // 4)
