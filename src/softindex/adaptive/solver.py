"""Which strategies serve which guarantee, and the queries of one call on their way through them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from softindex.adaptive.classes import Exclusion
from softindex.adaptive.conformal import Calibration, calibrate, error_probability
from softindex.adaptive.goals import Drawn, Goal
from softindex.adaptive.layer import TINY, Layer, Logits
from softindex.adaptive.pulls import PulledRows, permute
from softindex.adaptive.screen import Level, PreparedQuery, Scores
from softindex.adaptive.strategies import (
    Answer,
    Estimated,
    ExactScan,
    PreciseScan,
    Query,
    Request,
    Screened,
    Strategy,
    settle,
)
from softindex.records import Doubles, Floats, Integers

__all__ = ["Call", "Solver"]

SHORT = 256
"""Rows with fewer numbers are all scored: screening them takes longer than reading them."""
SHORT_PULLED = 1024
"""The same for "pac": the first look at every row, and what it needs, take as long as a tenth of such a row."""
GROUP = 8
"""Queries screened together: their scores of all rows are in memory at once."""


@dataclass(frozen=True, slots=True)
class Call:
    """The queries of one call, and what they have in common."""

    vectors: Floats
    """(b, d)"""
    single: bool
    """Whether the caller passed one query (d,)."""
    temperature: float
    exclusion: Exclusion
    threads: int

    @property
    def inverse(self) -> float:
        """One over the temperature."""
        return 1.0 / self.temperature


class Solver:
    """Answers queries of one layer with any guarantee."""

    __slots__ = ("_pulls", "calibration", "layer")

    def __init__(self, layer: Layer, calibration: Calibration | None = None) -> None:
        self.layer, self.calibration = layer, calibration
        self._pulls: PulledRows | None = None

    def answer(
        self, call: Call, goals: Iterable[Goal], *, guarantee: str = "deterministic", confidence: float = 0.5
    ) -> list[Answer]:
        """One answer per query, each of which has its goal; only "pac" and "calibrated" look at the confidence."""
        return self._settle(call, self._strategies(guarantee, confidence), ExactScan(self.layer), goals)

    def draw(self, call: Call, n: int, streams: Sequence[np.random.Generator], epsilon: float) -> list[Answer]:
        """n draws from the softmax itself per query, each with its own generator; epsilon: relative error of Z."""
        goals = (Drawn(n, rng, epsilon) for rng in streams)
        return self._settle(call, self._strategies("deterministic"), PreciseScan(self.layer), goals)

    def logits(self, call: Call, row: int, classes: Integers) -> Doubles:
        """Exact logits of some classes for one query of the call."""
        query = self.layer.screen.prepare(call.vectors[row])
        return Logits(self.layer, query, call.inverse, None, call.threads).score(classes)

    def calibrate(self, vectors: Floats, threads: int) -> None:
        """Measure on held-out queries (m, d) how far the scores of each level really are from the truth."""
        screen = self.layer.screen
        ratios = np.empty((len(screen.levels), len(vectors)))
        for column, vector in enumerate(vectors):
            query = screen.prepare(vector)
            exact = self.layer.scan(query, threads)
            for row, level in enumerate(screen.levels):
                scores = level.score([query], threads)[0]
                errors = np.abs(exact.values - scores.values) + exact.radii
                ratios[row, column] = (errors / (scores.radii + TINY)).max()
        self.calibration = calibrate(ratios)

    def _strategies(self, guarantee: str, confidence: float = 0.5) -> list[Strategy]:
        """What to try before every row is scored."""
        levels = len(self.layer.screen.levels)
        shortest = SHORT_PULLED if guarantee == "pac" else SHORT
        if self.layer.rows.d < shortest or guarantee == "exact":
            return []
        if guarantee == "pac":
            if self._pulls is None:
                self._pulls = permute(self.layer.rows, self.layer.seed)
            return [Estimated(self.layer, self._pulls, error_probability(confidence))]
        if guarantee == "calibrated" and self.calibration is not None:
            return [Screened(self.layer, guarantee, self.calibration.factors(confidence))]
        return [Screened(self.layer, guarantee, [1.0] * levels)]

    def _settle(
        self, call: Call, strategies: Sequence[Strategy], last: ExactScan | PreciseScan, goals: Iterable[Goal]
    ) -> list[Answer]:
        paired = zip(self._queries(call), goals, strict=True)
        return [settle(strategies, last, query, Request(goal, call.threads)) for query, goal in paired]

    def _queries(self, call: Call) -> Iterator[Query]:
        screen = self.layer.screen
        for begin in range(0, len(call.vectors), GROUP):
            group = [screen.prepare(vector) for vector in call.vectors[begin : begin + GROUP]]
            coarse = _CoarseScores(screen.levels[0], group, call.threads)
            for place, query in enumerate(group):
                candidates = call.exclusion.candidates(begin + place)
                logits = Logits(self.layer, query, call.inverse, candidates, call.threads)
                yield Query(logits, partial(coarse.of, place))


class _CoarseScores:
    """Scores of a group of queries at the coarsest level, computed together when the first of them is needed."""

    __slots__ = ("_group", "_level", "_scores", "_threads")

    def __init__(self, level: Level, group: list[PreparedQuery], threads: int) -> None:
        self._level, self._group, self._threads = level, group, threads
        self._scores: list[Scores] | None = None

    def of(self, place: int) -> Scores:
        """Those of one query of the group."""
        if self._scores is None:
            self._scores = self._level.score(self._group, self._threads)
        return self._scores[place]
