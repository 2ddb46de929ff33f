"""Split-conformal calibration: what the caller's own queries say about the stated error and about log Z."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np

from softindex.arguments import check_confidence
from softindex.errors import InputError, MethodError, show
from softindex.fields import damaged, flatten
from softindex.laws import ADAPTIVE, LAWS, METHODS
from softindex.quantiles import conformal_rank, fewest_queries
from softindex.records import Doubles, Draws, Json

__all__ = ["CONFIDENCE", "PREFIX", "SCALE", "Calibration", "Setting", "check_calibrating", "refine"]

CONFIDENCE = 0.9
"""Of a calibration that asks for no other."""
PREFIX = "calibration_"
"""Stored arrays of a calibration begin with this."""
SCALE = 0.03
"""What a stated error of 0 counts as when it is scaled.  A query that states 1e-4 where the truth is 0.5 would multiply
the error of every other query by 5,000; with this it adds about 0.5 to small ones.  Close to the best single value on
all families of `benchmarks/families.py`."""
MOST_KNOWN = 256
"""Quantiles that are kept."""
STEP = 1.4
"""Calibrated temperatures are at most this factor apart."""


Plan = tuple[str, int, float]
"""Method, probes and tolerance of a call, as the engine takes them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What was calibrated: another method, number of probes, tolerance or version has another law."""

    method: str
    probes: int
    """ADAPTIVE (-1) where they depend on the query."""
    tolerance: float
    """Of adaptive probes; 0 where there are none."""
    softindex: str
    """Version whose laws were measured."""

    @classmethod
    def of(cls, method: str, probes: int, tolerance: float) -> Setting:
        """The setting of a call to this version, with probes and tolerance as the engine takes them."""
        return cls(method, probes, tolerance if probes == ADAPTIVE else 0.0, _VERSION)

    def covers(self, plan: Plan) -> bool:
        """Whether a call to this version has this setting."""
        method, probes, tolerance = plan
        same = method == self.method and probes == self.probes and self.softindex == _VERSION
        return same and (probes != ADAPTIVE or tolerance == self.tolerance)


_VERSION = version("softindex")


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """How far the estimates were from the truth for m queries at g temperatures, as multiples of stated error + SCALE.

    For a new query that is exchangeable with these, the score is among the smallest k of all m + 1 with probability
    k / (m + 1), whatever the distribution of queries.
    """

    temperatures: Doubles
    """(g,) increasing."""
    errors: Doubles
    """(g, m) (total variation - stated error) / (stated error + SCALE); a method that states none states 0."""
    log_partitions: Doubles
    """(g, m) |log Z - its estimate| / (stated error + SCALE); 0 for methods without an estimate."""
    setting: Setting
    confidence: float
    """`draws.error` is at least the total variation with this probability over queries."""
    _known: dict[tuple[str, float, float], float | None] = field(default_factory=dict, init=False, repr=False)

    @property
    def queries(self) -> int:
        """Number of queries that were calibrated with."""
        return len(self.errors[0])

    def apply(self, draws: Draws, plan: Plan, temperature: float | Doubles) -> None:
        """Make the stated error of these draws the calibrated one, if it was calibrated for all of them."""
        factor = self._factors("errors", plan, temperature, self.confidence)
        if factor is None:
            return
        draws.confidence, stated = self.confidence, draws.error
        if isinstance(stated, float) and isinstance(factor, float):
            # NumPy takes longer for one number than all the rest of this.
            one = 0.0 if math.isnan(stated) else stated
            draws.error = min(max(one + factor * (one + SCALE), 0.0), 1.0)
        else:
            known = np.nan_to_num(stated)
            draws.error = np.clip(known + factor * (known + SCALE), 0.0, 1.0)

    def log_partition_factor(
        self, plan: Plan, temperature: float | Doubles, confidence: float
    ) -> float | Doubles | None:
        """Half the width of the interval of log Z as a multiple of stated error + SCALE.

        None where it was not calibrated for this, or with too few queries for the confidence.
        """
        if LAWS[self.setting.method].kind == "tree":
            return None
        return self._factors("log_partitions", plan, temperature, confidence)

    def parameters(self) -> Json:
        """What is stored beside the arrays."""
        setting = self.setting
        return {
            "confidence": self.confidence,
            "method": setting.method,
            "probes": setting.probes,
            "tolerance": setting.tolerance,
            "softindex": setting.softindex,
        }

    def arrays(self) -> dict[str, Any]:
        """The stored arrays."""
        return flatten(self, PREFIX)

    def _factors(
        self, name: str, plan: Plan, temperature: float | Doubles, confidence: float
    ) -> float | Doubles | None:
        """The factor of one temperature, or (b,) those of each; None where one of them was not calibrated for."""
        if isinstance(temperature, float):
            return self._factor(name, plan, temperature, confidence)
        each = [self._factor(name, plan, one, confidence) for one in temperature.tolist()]
        return None if None in each else np.array(each, np.float64)

    def _factor(self, name: str, plan: Plan, temperature: float, confidence: float) -> float | None:
        """The conformal quantile of these scores; kept, as every single query asks for it."""
        if not self.setting.covers(plan):
            return None
        key = name, temperature, confidence
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._quantile(getattr(self, name), temperature, confidence)
        return self._known[key]

    def _quantile(self, scores: Doubles, temperature: float, confidence: float) -> float | None:
        """None outside the calibrated temperatures, or with too few queries."""
        rank = conformal_rank(self.queries, confidence)
        last = len(self.temperatures) - 1
        above = int(np.searchsorted(self.temperatures, temperature))
        if rank > self.queries or above > last or (above == 0 and temperature < self.temperatures[0]):
            return None
        chosen = scores[above]
        if temperature != self.temperatures[above]:
            # Between two temperatures the larger score of both, which is valid at both at once.  And never less than
            # 0: where another rule takes over between them, a stated error must not be lowered by what holds elsewhere.
            chosen = np.maximum(np.maximum(chosen, scores[above - 1]), 0.0)
        return float(np.partition(chosen, rank - 1)[rank - 1])

    @classmethod
    def from_stored(cls, parameters: Any, arrays: dict[str, Any]) -> Calibration:
        """The calibration that was saved; CorruptIndexError where its parts do not fit."""
        temperatures = arrays["temperatures"]
        if not (len(temperatures) and temperatures[0] > 0 and np.all(np.diff(temperatures) > 0)):
            raise damaged("its calibrated temperatures do not increase")
        if arrays["errors"].shape[1] == 0:
            raise damaged("its calibration has no queries")
        errors = arrays["errors"]
        if errors.min() < -1 or errors.max() > 1 / SCALE:
            raise damaged("its calibration holds errors that no total variation has")
        expected: dict[str, Any] = {
            "confidence": float,
            "method": str,
            "probes": int,
            "tolerance": (int, float),
            "softindex": str,
        }
        fits = isinstance(parameters, dict) and parameters.keys() == expected.keys()
        if not (fits and all(isinstance(parameters[name], kind) for name, kind in expected.items())):
            raise damaged(f"its calibration is described by {show(parameters)}")
        rest = dict(parameters)
        confidence = rest.pop("confidence")
        if not 0 < confidence < 1 or rest["method"] not in METHODS:
            raise damaged(f"its calibration is described by {show(parameters)}")
        return cls(setting=Setting(**rest), confidence=confidence, **arrays)


def refine(temperatures: Sequence[float]) -> list[float]:
    """The temperatures, increasing, with as many between them as it takes to keep neighbours within a factor STEP."""
    wanted = sorted(set(temperatures))
    result = wanted[:1]
    for low, high in itertools.pairwise(wanted):
        steps = max(1, math.ceil(math.log(high / low) / math.log(STEP) - 1e-9))
        result += [low * (high / low) ** (step / steps) for step in range(1, steps)] + [high]
    return result


def check_calibrating(method: str, confidence: Any, queries: int) -> float:
    """Return the confidence; refuse what has nothing to calibrate, and too few queries."""
    level = check_confidence(confidence)
    if method not in LAWS or LAWS[method].kind in ("exhaustive", "certified"):
        raise MethodError(
            f"{method} has no error to calibrate; calibrate a method that estimates the mass of clusters, such as "
            "sd-2ls."
        )
    wanted = fewest_queries(1, level)
    if queries < wanted:
        raise InputError(
            f"there {'is 1 query' if queries == 1 else f'are {queries} queries'} to calibrate with, but a confidence "
            f"of {level:g} takes at least {wanted}; pass more queries or a lower confidence."
        )
    return level
