"""Which strategies serve which guarantee, and the queries of one call on their way through them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from softindex.adaptive.answers import as_answers
from softindex.adaptive.calls import Call
from softindex.adaptive.classes import Exclusion
from softindex.adaptive.conformal import Answers, Calibration, Question, critical
from softindex.adaptive.goals import BestClasses, Drawn, Goal
from softindex.adaptive.layer import TINY, Layer, Logits
from softindex.adaptive.pac import Estimated, Pac
from softindex.adaptive.queries import check_given
from softindex.adaptive.screen import PreparedQuery, Scores, Screen
from softindex.adaptive.strategies import (
    Answer,
    ExactScan,
    PreciseScan,
    Query,
    Request,
    Screened,
    settle,
)
from softindex.arguments import check_confidence, check_fraction
from softindex.errors import MethodError, show
from softindex.lazy import lazy
from softindex.records import Doubles, Floats, Integers

__all__ = ["GUARANTEES", "Guarantee", "Solver"]

Guarantee = Literal["deterministic", "calibrated", "pac", "exact"]
GUARANTEES: tuple[str, ...] = get_args(Guarantee)

SHORT = 256
"""Rows with fewer numbers are all scored: screening them takes longer than reading them."""
TRUTH = 1e-3
"""Relative error of Z in what answers are compared with."""
GROUP = 8
"""Queries screened together: their scores of all rows are in memory at once."""


def _check_goal(k: int, epsilon: Any, confidence: Any) -> tuple[BestClasses, float]:
    return BestClasses(k, check_fraction(epsilon, "epsilon", 0.3)), check_confidence(confidence)


def _question(call: Call, goal: Goal) -> Question | None:
    """What the call asks, as answers are calibrated for it; None where queries differ in it or leave classes out."""
    if not isinstance(call.temperature, float) or call.exclusion.joined() is not None:
        return None
    return Question(goal.k, goal.epsilon, call.temperature)


class Solver:
    """Answers queries of one layer with any guarantee."""

    __slots__ = ("_pac", "calibration", "layer")

    def __init__(self, layer: Layer, calibration: Calibration | None = None) -> None:
        self.layer, self.calibration = layer, calibration
        self._pac: Pac | None = None

    def answer(
        self, call: Call, goals: Iterable[Goal], *, guarantee: str = "deterministic", confidence: float = 0.5
    ) -> list[Answer]:
        """One answer per query, each of which has its goal; only "calibrated" looks at the confidence."""
        wanted = list(goals)
        strategies = self._strategies(guarantee, confidence, _question(call, wanted[0]))
        return self._settle(call, strategies, ExactScan(self.layer), wanted)

    def best(self, call: Call, k: int, epsilon: Any, confidence: Any, guarantee: Any) -> list[Answer]:
        """The k best of each query and log Z, with any guarantee; arguments as the caller passed them."""
        if not isinstance(guarantee, str) or guarantee not in GUARANTEES:
            raise MethodError(f"there is no guarantee {show(guarantee)}; use one of {', '.join(GUARANTEES)}.")
        if guarantee == "pac":
            return as_answers(self.estimate(call, k, epsilon, confidence), call.temperature)
        goal, level = _check_goal(k, epsilon, confidence)
        if guarantee == "calibrated":
            if self.calibration is None:
                raise MethodError("nothing is calibrated yet; call calibrate(queries) with held-out queries first.")
            # Short rows are scored without it, but the caller should hear that it would not be enough.
            self.calibration.factors(level)
        return self.answer(call, [goal] * len(call.vectors), guarantee=guarantee, confidence=level)

    @property
    def pac(self) -> Pac:
        """Answers with the guarantee "pac"; made when first needed."""
        if self._pac is None:
            self._pac = Pac(self.layer)
        return self._pac

    def estimate(self, call: Call, k: int, epsilon: Any, confidence: Any) -> Estimated:
        """The same with the guarantee "pac"."""
        goal, level = _check_goal(k, epsilon, confidence)
        found = self.pac.answer(call, goal, level)
        if found.refused():
            # Says what is wrong, or that the length is just allowed.
            checked, _ = check_given(call.vectors[0] if call.single else call.vectors, self.layer.rows.d)
            found = self.pac.answer(replace(call, vectors=checked, limit=math.inf), goal, level)
        return found

    def draw(self, call: Call, n: int, streams: Sequence[np.random.Generator], epsilon: float) -> list[Answer]:
        """n draws from the softmax itself per query, each with its own generator; epsilon: relative error of Z."""
        goals = (Drawn(n, rng, epsilon) for rng in streams)
        return self._settle(call, self._strategies("deterministic"), PreciseScan(self.layer), goals)

    def logits(self, call: Call, row: int, classes: Integers) -> Doubles:
        """Exact logits of some classes for one query of the call."""
        query = self.layer.screen.prepare(call.vectors[row])
        return Logits(self.layer, query, call.inverse(row), None, call.threads).score(classes)

    def calibrate(self, vectors: Floats, question: Question | None, threads: int) -> None:
        """Measure on held-out queries (m, d) how far scores are from the truth, and how wide answers need radii."""
        screen = self.layer.screen
        ratios = np.empty((len(screen.levels), len(vectors)))
        for column, vector in enumerate(vectors):
            query = screen.prepare(vector)
            exact = self.layer.scan(query, threads)
            for row, level in enumerate(screen.levels):
                scores = level.score([query], threads)[0]
                errors = np.abs(exact.values - scores.values) + exact.radii
                ratios[row, column] = (errors / (scores.radii + TINY)).max()
        answers = None
        if question is not None:
            found = [
                self._fraction(vector, question, float(ratios[:, row].max()), threads)
                for row, vector in enumerate(vectors)
            ]
            answers = Answers(question, np.sort(found))
        self.calibration = Calibration(np.sort(ratios, axis=1), answers)

    def _fraction(self, vector: Floats, question: Question, enough: float, threads: int) -> float:
        """The smallest fraction of the radii from which on the answer to a question is right; enough: certainly so."""
        everything = Exclusion([np.empty(0, np.int64)], self.layer.rows.n)
        call = Call(vector[None], True, question.temperature, everything, threads)
        goal, levels = BestClasses(question.k, question.epsilon), len(self.layer.screen.levels)
        truth = self.answer(call, [BestClasses(question.k, TRUTH)], guarantee="exact")[0]

        def is_right(fraction: float) -> bool:
            tried = [Screened(self.layer, "calibrated", [fraction] * levels)]
            found = self._settle(call, tried, ExactScan(self.layer), [goal])[0]
            off = abs(found.log_partition[0] - truth.log_partition[0])
            return bool(np.allclose(found.logits, truth.logits, rtol=0, atol=1e-9)) and math.expm1(off) <= goal.epsilon

        return critical(is_right, enough)

    def _strategies(self, guarantee: str, confidence: float = 0.5, question: Question | None = None) -> list[Screened]:
        """What to try before every row is scored."""
        levels = len(self.layer.screen.levels)
        if self.layer.rows.d < SHORT or guarantee == "exact":
            return []
        if guarantee == "calibrated" and self.calibration is not None:
            return [Screened(self.layer, guarantee, self.calibration.factors(confidence, question))]
        return [Screened(self.layer, guarantee, [1.0] * levels)]

    def _settle(
        self, call: Call, strategies: Sequence[Screened], last: ExactScan | PreciseScan, goals: Iterable[Goal]
    ) -> list[Answer]:
        factors = strategies[0].factors if strategies else [1.0] * len(self.layer.screen.levels)
        paired = zip(self._queries(call, factors), goals, strict=True)
        return [settle(strategies, last, query, Request(goal, call.threads)) for query, goal in paired]

    def _queries(self, call: Call, factors: Sequence[float]) -> Iterator[Query]:
        screen = self.layer.screen
        for begin in range(0, len(call.vectors), GROUP):
            group = [screen.prepare(vector) for vector in call.vectors[begin : begin + GROUP]]
            inverses = [call.inverse(begin + place) for place in range(len(group))]
            scores = _FirstScores(screen, group, inverses, factors, call.threads)
            for place, query in enumerate(group):
                candidates = call.exclusion.candidates(begin + place)
                logits = Logits(self.layer, query, inverses[place], candidates, call.threads)
                yield Query(logits, partial(scores.of, place))


class _FirstScores:
    """Scores of a group of queries, each at the level it starts with; queries of one level are scored together."""

    def __init__(
        self,
        screen: Screen,
        group: list[PreparedQuery],
        inverses: Sequence[float],
        factors: Sequence[float],
        threads: int,
    ) -> None:
        self._screen, self._group, self._threads = screen, group, threads
        self._inverses, self._factors = inverses, factors
        self._scores: dict[int, tuple[int, Scores]] = {}

    @lazy
    def starts(self) -> list[int]:
        """The level that each query starts with."""
        paired = zip(self._group, self._inverses, strict=True)
        return [self._screen.start(query, inverse, self._factors) for query, inverse in paired]

    def of(self, place: int) -> tuple[int, Scores]:
        """The level and the scores of one query of the group."""
        if place not in self._scores:
            number = self.starts[place]
            same = [other for other, start in enumerate(self.starts) if start == number]
            scores = self._screen.levels[number].score([self._group[other] for other in same], self._threads)
            self._scores.update({other: (number, found) for other, found in zip(same, scores, strict=True)})
        return self._scores[place]
