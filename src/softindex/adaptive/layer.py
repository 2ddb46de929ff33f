"""The layer itself: weights, biases and coded copies, and the logits they give for one query."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from softindex.adaptive.bounds import ALL, Bounds
from softindex.adaptive.rows import Rows
from softindex.adaptive.screen import PreparedQuery, Scores, Screen
from softindex.kernels import LANES
from softindex.records import Doubles, Floats, Integers

__all__ = ["Layer", "Logits"]

TINY = 1e-33
"""Most that products too small for float32 may lose."""


@dataclass(frozen=True, slots=True)
class Layer:
    """n classes: everything that a guarantee is computed from."""

    rows: Rows
    bias: Floats
    """(n,) added to the dot products, before the temperature divides them."""
    log_bias: Floats
    """(n,) added to the logits, after that."""
    screen: Screen
    seed: int
    bias_errors: Doubles | None = field(init=False)
    """(n,) rounding error of the bias in float64; None where every bias is zero, which most layers have."""
    log_bias_errors: Doubles | None = field(init=False)
    """(n,) the same for the log bias."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bias_errors", _rounding_errors(self.bias))
        object.__setattr__(self, "log_bias_errors", _rounding_errors(self.log_bias))

    def scan(self, query: PreparedQuery, threads: int) -> Scores:
        """Dot products of all rows in float32, with radii for what that loses."""
        radii = self.rows.scan_error() * query.magnitudes + TINY
        return Scores(self.rows.scan(query.given, threads), radii)


def _rounding_errors(values: Floats) -> Doubles | None:
    return 2.0**-50 * np.abs(values.astype(np.float64)) if values.any() else None


class Logits:
    """Logits (row . vector + bias) / temperature + log_bias of one query, on its way through all strategies.

    candidates: the rows that may be returned, increasing; None for all.
    """

    __slots__ = ("_candidates", "_errors", "_layer", "_threads", "inverse", "query")

    def __init__(
        self, layer: Layer, query: PreparedQuery, inverse: float, candidates: Integers | None, threads: int
    ) -> None:
        self._layer, self.query, self.inverse = layer, query, inverse
        self._candidates, self._threads = candidates, threads
        self._errors: Doubles | None = None

    def __len__(self) -> int:
        return self._layer.rows.n

    @property
    def dim(self) -> int:
        """Multiplications that scoring one row exactly takes."""
        return self._layer.rows.d

    def candidates(self) -> Integers:
        """The rows that may be returned, increasing."""
        return np.arange(len(self)) if self._candidates is None else self._candidates

    def rows(self, positions: Integers) -> Integers:
        """The rows at these positions among the candidates."""
        return positions if self._candidates is None else self._candidates[positions]

    def of(self, dots: Doubles, rows: Integers | slice = slice(None)) -> Doubles:
        """Logits of rows with these dot products."""
        layer = self._layer
        biased = dots if layer.bias_errors is None else dots + layer.bias[rows]
        logits = self.inverse * biased
        return np.asarray(logits if layer.log_bias_errors is None else logits + layer.log_bias[rows])

    def score(self, rows: Integers) -> Doubles:
        """Logits of these rows, with float64 products."""
        return self.of(self._layer.rows.products(rows, self.query.vector, self._threads), rows)

    def errors(self) -> Doubles:
        """(n,) how far `score` may be off: by a product of d terms, both biases and the temperature, in float64."""
        if self._errors is None:
            # The kernel has LANES running sums; each product, addition and scaling rounds once.
            roundings = -(-self.dim // LANES) + 16
            layer, errors = self._layer, roundings * 2.0**-52 * self.inverse * self.query.magnitudes
            if layer.bias_errors is not None:
                errors += self.inverse * layer.bias_errors
            if layer.log_bias_errors is not None:
                errors += layer.log_bias_errors
            self._errors = errors
        return self._errors

    def values(self, scores: Scores) -> Doubles:
        """Logits of the candidates from the dot products of all rows."""
        return self._among(self.of(scores.values))

    def bounds(self, values: Doubles, radii: Doubles, share: int, *, factor: float = 1.0) -> Bounds:
        """Bounds of the candidates' logits, from these values.

        Args:
            values: As from `values`.
            radii: (n,) of the dot products of all rows.
            share: As for `Bounds`.
            factor: Fraction of the radii that counts.
        """
        errors = self.errors()

        def score(positions: Integers) -> tuple[Doubles, Doubles]:
            rows = self.rows(positions)
            return self.score(rows), errors[rows]

        return Bounds(values, self._among(self.inverse * (factor * radii) + errors), score, share)

    def values_of(self, scores: Scores, rows: Integers, factor: float) -> tuple[Doubles, Doubles]:
        """Logits of these rows and their radii, from the dot products of these rows alone."""
        return self.of(scores.values, rows), self.inverse * (factor * scores.radii) + self.errors()[rows]

    def precise_bounds(self) -> Bounds:
        """Bounds that are the logits themselves: every candidate is scored."""
        rows = self.candidates()
        values, errors = self.score(rows), self.errors()[rows]
        bounds = Bounds(values, np.zeros(len(rows)), lambda here: (values[here], errors[here]), ALL)
        bounds.score(np.arange(len(rows)))
        return bounds

    def _among(self, values: Doubles) -> Doubles:
        return values if self._candidates is None else values[self._candidates]
