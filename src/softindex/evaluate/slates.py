"""What an audit measures of decisions: slates, exclusions, and what an error does to importance weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.arguments import check_count
from softindex.errors import InputError
from softindex.evaluate.distances import median_interval
from softindex.evaluate.methods import AuditMethod
from softindex.evaluate.numbers import short
from softindex.evaluate.timing import take_turns
from softindex.index import Index
from softindex.records import Doubles, Floats

__all__ = ["EXCLUDED", "Decided", "check_slate", "time_decisions", "weight_error"]

EXCLUDED = 1000
"""Ids that are excluded where that is timed; a tenth of the items if there are fewer than ten thousand."""
TIMED = 30


@dataclass(frozen=True, slots=True)
class Decided:
    """Slates and exclusions of one method at one temperature: medians of single queries on one thread."""

    slate: int
    """Items in a slate."""
    slate_microseconds: float
    excluded: int
    """Ids excluded in the next number."""
    excluding_microseconds: float
    slate_excluding_microseconds: float
    weight_error: float | None
    """Mean relative error of an importance weight if the softmax were taken as the propensity instead of `log_prob`:
    twice the stated total variation.  With `log_prob` itself there is none.  None where no error is stated."""
    slate_weight_error: float | None
    """Upper bound on the same for a slate whose every step has the error stated for slates."""

    def cells(self) -> dict[str, str]:
        """As text for a table, by column."""
        errors = (self.weight_error, self.slate_weight_error)
        weight, slate = ("-" if error is None else short(error) for error in errors)
        return {
            f"slate of {self.slate}, us": f"{self.slate_microseconds:,.0f}",
            f"{self.excluded:,} excluded, us": f"{self.excluding_microseconds:,.0f}",
            "both, us": f"{self.slate_excluding_microseconds:,.0f}",
            "weight error": weight,
            f"weight error, slate of {self.slate}": slate,
        }


def check_slate(slate: Any, items: int) -> int | None:
    """Return the number of items in a slate, or None."""
    if slate is None:
        return None
    count = check_count(slate, "slate")
    if 2 * count > items:
        raise InputError(f"slate is {count}, and the index holds {items} items; ask for at most half of them.")
    return count


def weight_error(total_variation: float | None, steps: int = 1) -> float | None:
    """Mean relative error of a weight for laws at this distance, over draws from the law; its bound for several steps.

    The mean of |softmax / law - 1| over draws from the law is the sum of |softmax - law|, twice the total variation.
    Laws of slates whose steps are within e are within 1 - (1 - e)^steps.
    """
    return None if total_variation is None else 2 * (1 - (1 - min(total_variation, 1.0)) ** steps)


def time_decisions(
    index: Index,
    queries: Floats,
    methods: Sequence[AuditMethod],
    temperature: float,
    slate: int,
    stated: Sequence[float | None],
    report: Callable[[int, int], None] | None,
) -> list[Decided]:
    """Time slates and exclusions of methods, in turns; stated: the error that each reports."""
    gone = index.ids[:: max(10, len(index) // EXCLUDED)][:EXCLUDED]
    kinds: dict[str, dict[str, Any]] = {
        "slate": {"n": slate, "replace": False},
        "excluding": {"n": 1, "exclude": gone},
        "both": {"n": slate, "replace": False, "exclude": gone},
    }
    functions = {}
    for method in methods:
        for name, options in kinds.items():
            asked = {**method.options, **options, "temperature": temperature, "seed": 0, "threads": 1}
            functions[method, name] = lambda query, asked=asked: index.sample(query, **asked)
    take_turns(functions, list(queries[:1]))
    seconds = take_turns(functions, list(queries[:TIMED]), report=report)
    found = []
    for method, error in zip(methods, stated, strict=True):
        one, excluding, both = (_median(seconds[method, name]) for name in kinds)
        steps = None if error is None else _slate_error(index, queries, method, temperature, slate)
        found.append(Decided(slate, one, len(gone), excluding, both, weight_error(error), weight_error(steps, slate)))
    return found


def _slate_error(index: Index, queries: Floats, method: AuditMethod, temperature: float, slate: int) -> float | None:
    """The mean error that a method states for slates; None where it states none."""
    draws = index.sample(queries, slate, replace=False, temperature=temperature, seed=0, **method.options)
    error = float(np.mean(draws.error))
    return None if np.isnan(error) else error


def _median(seconds: Doubles) -> float:
    return float(median_interval(np.asarray(seconds))[0] * 1e6)
