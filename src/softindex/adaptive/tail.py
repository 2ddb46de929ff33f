"""What an index proves or has calibrated about a layer whose rows are its items: log Z, and the best rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex import calls
from softindex.adaptive.layer import TINY, Layer, Logits
from softindex.adaptive.solver import SHORT
from softindex.errors import MethodError
from softindex.ids import RowIds
from softindex.index import Index
from softindex.kernels import NativeRestriction, Request
from softindex.laws import ADAPTIVE, CERTIFIED
from softindex.recall import plan_search
from softindex.records import Doubles, Floats, Integers
from softindex.temperatures import temperature_of

__all__ = ["Best", "Tail", "Ways", "without"]

PROOF_PART, SHORT_PROOF_PART = 4, 2
"""Bounds of log Z are given up where more than one row in so many would have to be scored: long rows, which can be
screened, and short ones, which would all be scored.  Of short rows four in eight bits count as one; of long ones, whose
screens read eight bits too, they count as four.
"""
SEARCH_PART = 64
"""So is a search for the best: rows are scored one by one, and where many have to be, the screens are faster."""
FREE = 256
"""Rows that a search may always score."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Queries of one call, as the index takes them."""

    vectors: Floats
    """(b, d)"""
    temperature: float | Doubles
    excluded: list[Integers]
    """Rows that queries may not have: one list for all, or one for each."""
    threads: int

    def take(self, rows: Integers) -> Ways:
        """Some of the queries."""
        each = self.temperature if isinstance(self.temperature, float) else self.temperature[rows]
        excluded = self.excluded if len(self.excluded) == 1 else [self.excluded[row] for row in rows]
        return Ways(self.vectors[rows], each, excluded, self.threads)


@dataclass(frozen=True, slots=True)
class Best:
    """The best rows of one query, as scores in float32 have them."""

    rows: Integers
    floor: float
    """No other row has a larger score."""
    proven: bool
    scored: int


class Tail:
    """An index, and the layer of its items in the order in which it stores them."""

    __slots__ = ("_bias", "_log_bias", "_longest", "_most", "_numbers", "_places", "index", "layer")

    def __init__(self, index: Index, layer: Layer) -> None:
        self.index, self.layer = index, layer
        self._places = index._contents.positions()
        """(n,) positions of the rows in the index: those of subsets and snapshots have gaps."""
        numbers = np.arange(int(self._places[-1]) + 1)
        self._numbers = RowIds(numbers, numbers)
        coded = 4 if "code_values" in index._contents.arrays else 1
        self._most = layer.rows.n // (SHORT_PROOF_PART if layer.rows.d < SHORT else coded * PROOF_PART)
        self._longest = math.sqrt(
            max(float(np.square(part, dtype=np.float64).sum(axis=1).max()) for _, part in layer.rows.blocks())
        )
        self._bias, self._log_bias = (float(np.abs(each).max()) for each in (layer.bias, layer.log_bias))

    def rows(self, positions: Integers) -> Integers:
        """The rows at these positions of the index."""
        return np.searchsorted(self._places, positions)

    def prove(self, ways: Ways, width: float) -> tuple[Doubles, Doubles, Integers]:
        """Proven bounds (b,) of log Z and rows scored; farther apart than the width where that would take too many."""
        b, scored = len(ways.vectors), np.empty(len(ways.vectors), np.int64)
        law, _, _ = self.index._law(CERTIFIED, None, None)
        request = Request(self._vectors(ways), law, ways.temperature, 0, 0.0, None, 0, ways.threads)
        request.bound(width, 1.0)
        request.limit(self._most)
        found = calls.estimate_log_partition(self.index._engine, request, (b, 1, False), bounded=True, scored=scored)
        return np.asarray(found.low), np.asarray(found.high), scored

    def check_calibrated(self, temperature: float | Doubles, confidence: float) -> float | Doubles:
        """How wide calibrated intervals of log Z are, in units of the stated error; MethodError where none are."""
        calibration = self.index.calibration
        if calibration is None:
            raise MethodError("the index is not calibrated; pass what index.calibrate(queries, ...) returns.")
        setting = calibration.setting
        factor = calibration.log_partition_factor(
            (setting.method, setting.probes, setting.tolerance), temperature, confidence
        )
        if factor is None:
            raise MethodError(
                f"the index is not calibrated for this temperature and a confidence of {confidence:g}; calibrate it "
                "with this temperature, and with enough queries."
            )
        return factor

    def calibrated(self, ways: Ways, factor: float | Doubles) -> tuple[Doubles, Doubles, Integers]:
        """Calibrated bounds (b,) of log Z and rows scored; factor: as from `check_calibrated`."""
        calibration, b, scored = self.index.calibration, len(ways.vectors), np.empty(len(ways.vectors), np.int64)
        assert calibration is not None
        setting = calibration.setting
        adaptive = setting.probes == ADAPTIVE
        law, probes, tolerance = self.index._law(
            setting.method, None if adaptive else setting.probes, setting.tolerance if adaptive else None
        )
        request = Request(self._vectors(ways), law, ways.temperature, probes, tolerance, None, 0, ways.threads)
        found = calls.calibrated_log_partition(self.index._engine, request, (b, 1, False), factor, scored)
        return np.asarray(found.low), np.asarray(found.high), scored

    def best(self, ways: Ways, k: int) -> list[Best]:
        """The k best rows of each query, as far as the index proves them."""
        queries = self._vectors(ways)
        # Rows that rounding may have put on the wrong side are looked at, too.  A long query has a wide margin, which
        # must not be that of the others in its batch; rounded up to powers of two, most queries share theirs.
        slacks = [self._slack(vector, temperature_of(ways.temperature, row)) for row, vector in enumerate(queries)]
        margins = np.exp2(np.ceil(np.log2(4 * np.array(slacks))))
        found: dict[int, Best] = {}
        for margin in np.unique(margins):
            rows = np.flatnonzero(margins == margin)
            found.update(zip(rows.tolist(), self._best(ways.take(rows), k, float(margin)), strict=True))
        return [found[row] for row in range(len(queries))]

    def _best(self, ways: Ways, k: int, margin: float) -> list[Best]:
        b, n = len(ways.vectors), self.layer.rows.n
        law, probes, missed = plan_search(None, None, self.index.parameters)
        native = None
        if any(map(len, ways.excluded)):
            offsets = np.cumsum([0, *map(len, ways.excluded)])
            native = NativeRestriction(offsets, self._places[np.concatenate(ways.excluded)])
        request = Request(self._vectors(ways), law, ways.temperature, probes, missed, native, 0, ways.threads)
        request.limit(max(n // SEARCH_PART, FREE, 4 * k), margin)
        found = calls.find_best(self.index._engine, self._numbers, request, (b, k, False), stated=False)
        rows, floors = self.rows(np.asarray(found.ids, np.int64)), found.scores[:, -1] + np.asarray(found.gap)
        proven, scored = np.all(found.proven, axis=1), np.asarray(found.items_scored)
        each = zip(rows, floors.tolist(), proven.tolist(), scored.tolist(), strict=True)
        return [Best(*one) for one in each]

    def settle(self, best: Best, logits: Logits, k: int) -> tuple[Integers, Doubles] | None:
        """The k best rows in float64 with their logits, equal ones in order; None where rounding leaves a doubt."""
        if not best.proven:
            return None
        scores = logits.score(best.rows)
        order = np.lexsort((best.rows, -scores))[:k]
        last = float(scores[order[-1]])
        slack = self._slack(logits.query.vector, 1.0 / logits.inverse)
        reach = logits.inverse * (best.floor + slack) + 2.0**-49 * abs(last)
        return (best.rows[order], scores[order]) if last > reach else None

    def read(self, *, searched: bool) -> tuple[int, int]:
        """Multiplications and bytes for one query beside the rows scored, at most: means, forms, and the sketch."""
        arrays = self.index._contents.arrays
        kept = [arrays[name] for name in ("means", "forms") if name in arrays]
        multiplied, size = sum(each.size for each in kept), sum(each.nbytes for each in kept)
        if searched and "sketch_values" in arrays:
            # Two numbers in a byte.
            multiplied, size = multiplied + 2 * arrays["sketch_values"].size, size + arrays["sketch_values"].nbytes
        return multiplied, size

    def _vectors(self, ways: Ways) -> Floats:
        return self.index._queries(ways.vectors)[0]

    def _slack(self, vector: NDArray[Any], temperature: float) -> float:
        """How far a score in float32 may be from the true one, of any row."""
        norm = math.sqrt(float(np.square(vector, dtype=np.float64).sum()))
        sizes = self._longest * norm + self._bias
        # One rounding for each product and each sum at most, and a few for the bias, the log bias and the result.
        priors = temperature * self._log_bias
        return 1.001 * ((self.layer.rows.d + 16) * 2.0**-24 * sizes + 2.0**-22 * (sizes + priors) + TINY)


def without(low: float, high: float, excluded: Doubles, errors: Doubles) -> tuple[float, float]:
    """Bounds of log Z without the rows of these logits, which are off by the errors at most."""
    if not len(excluded):
        return low, high
    # Rounding moves a share by a few units for each unit of the exponents; that matters where little is left.  The
    # exponential of larger exponents is zero, or more than all of Z.
    size = min(max(abs(low), abs(high), float(np.abs(excluded).max())), 1e6)
    rounding = 2.0**-51 * (len(excluded) + 2 * size + 4)
    most = np.exp(excluded + errors - low).sum() * (1 + rounding)
    least = np.exp(excluded - errors - high).sum() * (1 - rounding)
    # Where they may be all of Z, nothing is known from below.
    lower = low + math.log1p(-float(most)) if most < 1 else -math.inf
    return lower, high + math.log1p(-min(float(least), 1 - 2.0**-50))
