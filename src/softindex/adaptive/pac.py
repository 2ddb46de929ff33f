"""The guarantee "pac": one native call estimates logits from a few columns, or scores all rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from softindex.adaptive.calls import Call
from softindex.adaptive.columns import transpose
from softindex.adaptive.goals import Goal
from softindex.adaptive.layer import Layer
from softindex.adaptive.queries import MAX_SQUARED_NORM, is_plain
from softindex.arguments import check_confidence, check_count, check_fraction, check_threads
from softindex.errors import CorruptIndexError
from softindex.kernels import NativePac, PacAnswers, PacExclusions, PacGoal
from softindex.quantiles import error_probability, normal_quantile
from softindex.records import Doubles, Estimate, Integers, TopK
from softindex.temperatures import check_each_temperature

__all__ = ["Asked", "Estimated", "Pac", "quantiles"]

FIRST_COLUMNS, GROWTH = 48, 1.5
"""As in native/adaptive: columns of the first look, and how many times as many the next one has at least."""
REFUSED, DAMAGED, SCANNED = 0, 1, 2
"""What became of a query: see native/adaptive/pac.h."""
INT64, BOOL = np.dtype(np.int64), np.dtype(np.bool_)
# Bound to names because looking them up for every query takes longer than some of the arithmetic.
_empty = np.empty

Asked = tuple[Any, Any, Any, Any]
"""k, epsilon, confidence and temperature of all queries of a call, as the caller passed them."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """The answers to b queries, one row each."""

    rows: Integers
    """(b, k) the best classes."""
    scores: Doubles
    """(b, k) their logits times the temperature."""
    log_prob: Doubles
    """(b, k)"""
    log_z: Doubles
    """(b, 3) value, lower and upper bound."""
    costs: Integers
    """(b, 4) what became of the query, rows scored, multiplications, bytes read."""

    def labels(self) -> list[str]:
        """The guarantee of each answer: "exact" where every row was scored."""
        return [_label(outcome) for outcome in self.costs[:, 0].tolist()]

    def refused(self) -> bool:
        """Whether a query was none."""
        return not self.costs[:, 0].all()


def _label(outcome: int) -> str:
    if outcome == DAMAGED:
        raise CorruptIndexError("weights are not numbers: the layer is damaged; restore a copy or build it again.")
    return "exact" if outcome == SCANNED else "pac"


@lru_cache(maxsize=64)
def quantiles(n: int, d: int, k: int, delta: float) -> tuple[float, float, float]:
    """Normal quantiles for one row in one look, for the logit of one of the k best, and for log Z.

    All of it holds with probability 1 - delta: half of delta goes to the elimination, a quarter each to the logits of
    the k best and to log Z.
    """
    looks = max(1, math.ceil(math.log(max(d / FIRST_COLUMNS, 2), GROWTH))) + 1
    shares = (delta / (2 * n * looks), delta / (4 * k), delta / 4)
    first, second, third = (normal_quantile(share) for share in shares)
    return first, second, third


class Pac:
    """Answers queries of one layer."""

    __slots__ = ("_dim", "_goals", "_native")

    def __init__(self, layer: Layer) -> None:
        rows, arrays = layer.rows, transpose(layer.rows).arrays()
        for name, errors in (("bias", layer.bias_errors), ("log_bias", layer.log_bias_errors)):
            if errors is not None:
                arrays[name] = np.ascontiguousarray(getattr(layer, name))
        used = max(1, int(np.count_nonzero(arrays["scales"])))
        self._native = NativePac(np.require(rows.array, requirements=["C", "ALIGNED"]), arrays, used)

        # Most calls ask for the same: to check it takes longer than to look at a few columns.  Types tell 1 from True.
        @lru_cache(maxsize=64, typed=True)
        def goal(k: Any, epsilon: Any, confidence: Any, temperature: Any) -> PacGoal:
            count, divisor = check_count(k, "k", rows.n), float(check_each_temperature(temperature, 1))
            wanted, level = check_fraction(epsilon, "epsilon", 0.3), check_confidence(confidence)
            each = quantiles(rows.n, rows.d, count, error_probability(level))
            return PacGoal(count, wanted, each, 1.0 / divisor, layer.seed)

        self._dim, self._goals = rows.d, goal

    def goal(self, asked: Asked) -> PacGoal:
        """What is asked of all queries of a call, for native code; InputError where it cannot be."""
        try:
            return self._goals(*asked)
        except TypeError:
            # An array of one temperature has no hash.
            return self._goals.__wrapped__(*asked)

    def answer_one(self, query: Any, asked: Asked, threads: Any) -> TopK | None:
        """The answer to one query (d,), which may change while it is read; None where it is not a valid one."""
        if not is_plain(query, self._dim):
            return None
        goal, workers = self.goal(asked), check_threads(threads)
        k = goal.k
        rows, scores, log_prob, proven = _empty(k, INT64), _empty(k), _empty(k), _empty(k, BOOL)
        outcome, scored, multiplied, read, value, low, high = self._native.answer_one(
            query, MAX_SQUARED_NORM, goal, workers, rows, scores, log_prob, proven
        )
        if outcome == REFUSED:
            return None
        return TopK(
            rows, scores, proven, 0.0 if outcome == SCANNED else math.nan, scored, log_prob,
            Estimate(value, low, high), _label(outcome), None, multiplied, read,
        )  # fmt: skip

    def answer(self, call: Call, goal: Goal, confidence: float) -> Estimated:
        """The k best of each query, and log Z."""
        b, k = len(call.vectors), goal.k
        found = Estimated(
            np.empty((b, k), np.int64), np.empty((b, k)), np.empty((b, k)), np.empty((b, 3)), np.empty((b, 4), np.int64)
        )
        if not isinstance(call.temperature, float):
            for rows, part in call.by_temperature(call.temperature):
                answered = self.answer(part, goal, confidence)
                for each in fields(found):
                    getattr(found, each.name)[rows] = getattr(answered, each.name)
            return found
        wanted = self.goal((k, goal.epsilon, confidence, call.temperature))
        excluded = call.exclusion.joined()
        exclusions = None if excluded is None else PacExclusions(*excluded)
        answers = PacAnswers(found.rows, found.scores, found.log_prob, found.log_z, found.costs)
        if call.sparse is None:
            self._native.answer(call.vectors, call.limit, wanted, exclusions, call.threads, answers)
        else:
            given = call.sparse
            self._native.answer_sparse(
                given.offsets, given.columns, given.values, wanted, exclusions, call.threads, answers
            )
        return found
