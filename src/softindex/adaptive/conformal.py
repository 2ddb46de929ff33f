"""How wide radii must be, measured on held-out queries: conformal quantiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from softindex.arguments import check_confidence, check_count, check_fraction, check_temperature
from softindex.errors import InputError
from softindex.quantiles import conformal_rank, fewest_queries
from softindex.records import Doubles

__all__ = ["Answers", "Calibration", "Question", "check_enough", "check_question", "critical"]

STEPS = np.concatenate([[0.0], np.geomspace(1e-3, 1.0, 31)])
"""Fractions of the proven radii that answers are tried with."""


class Question(NamedTuple):
    """What answers were calibrated for."""

    k: int
    epsilon: float
    temperature: float


@dataclass(frozen=True, slots=True)
class Answers:
    """For each held-out query, the smallest fraction of the radii from which on its answer to a question is right."""

    question: Question
    fractions: Doubles
    """(m,) sorted."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """For each level and held-out query, the largest error of any score as a fraction of its radius, sorted."""

    ratios: Doubles
    """(levels, m)"""
    answers: Answers | None = None

    def factors(self, confidence: float, question: Question | None = None) -> list[float]:
        """Fraction of each level's radius that counts, for all levels with this confidence.

        A new query stays within it; or, for a question that answers were calibrated for, its answer is right.
        """
        levels, count = self.ratios.shape
        rank = conformal_rank(count, confidence, levels)
        if rank > count:
            raise InputError(
                f"confidence is {confidence:g} but only {count} queries were used to calibrate; calibrate with at "
                f"least {fewest_queries(levels, confidence)}."
            )
        within = [min(1.0, float(value)) for value in self.ratios[:, rank - 1]]
        if self.answers is None or question != self.answers.question:
            return within
        # Answers were tried with the same fraction at all levels.
        right = float(self.answers.fractions[conformal_rank(count, confidence) - 1])
        return [right] * levels if right < min(within) else within


def check_enough(count: int, levels: int, confidence: Any) -> None:
    """Refuse to calibrate with fewer queries than a confidence takes."""
    wanted = fewest_queries(levels, check_confidence(confidence))
    if count < wanted:
        raise InputError(
            f"there are {count} queries to calibrate with, but a confidence of {confidence:g} takes at least {wanted}; "
            "pass more queries or a lower confidence."
        )


def check_question(k: Any, temperature: Any, epsilon: Any, n: int) -> Question | None:
    """Return what answers are to be calibrated for, of n classes; None without k."""
    if k is None:
        return None
    return Question(
        check_count(k, "k", n), check_fraction(epsilon, "epsilon", 0.3), float(check_temperature(temperature))
    )


def critical(is_right: Callable[[float], bool], enough: float) -> float:
    """The smallest of STEPS from which on all are right; `enough`: one that is right without a try, like all above."""
    fraction = 1.0
    for step in STEPS[::-1]:
        if step < enough and not is_right(float(step)):
            break
        fraction = float(step)
    return fraction
