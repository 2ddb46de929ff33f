"""ScreenedGate: the layers of a gate in sixteen bits, and by how much scores from them may be off."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.mol.score_errors import SINGLE, STEEPNESS
from softindex.mol.spec import Gate
from softindex.records import Doubles, Floats, Integers

__all__ = ["ScreenedGate", "silu_of_integers"]

HALF = 32767
"""Largest integer in sixteen bits."""
SUM = 2**31 - 2**25
"""Sums of products stay below this, which leaves activations room for the errors of the table."""
PIECES = 32
"""Linear pieces of the activation."""
CURVED = 8.5
"""Further from zero the activation is x or 0, up to the error of a piece."""
LARGEST_SLACK = 0.1
"""With a larger share of the range of the logits, most items would have to be scored again."""
LEAST, MOST = 1e-15, 1e15
"""Sizes of logits whose scales and squares are numbers in float32."""


class ScreenedGate(NamedTuple):
    """A gate whose weights, logits and activations are integers times a scale.

    A logit l is the integer nearest to l * logit_scale.  The hidden layer adds products of integers in 32 bits and
    keeps the upper sixteen; a table turns these into activations of the same scale.  The second layer adds products
    again.  Scales are the largest ones with which no sum overflows, for logits up to the size that the gate was made
    for.
    """

    first: NDArray[np.int16]
    """(h, P)"""
    first_bias: Integers
    """(h,) including the half that makes dropping the lower sixteen bits round to the nearest."""
    second: NDArray[np.int16]
    """(P, h)"""
    bases: NDArray[np.int16]
    """(PIECES,) of silu(x) - x / 2 at the start of each piece, in units of the activations."""
    slopes: NDArray[np.int16]
    """(PIECES,) in units of 2^-15."""
    steps: Integers
    """(2,) factor and width: piece (|x| * factor) >> 16 starts at that number times the width."""
    scales: Floats
    """(3,) integers per unit of a logit; units per integer of the second layer; and what the length of the logits adds
    to the slack."""
    largest: float
    """Size of a logit up to which all of this holds."""
    slack: float
    """A score may be off by `slack + scales[2] * (length of the logits)` times the range of the logits."""

    @classmethod
    def of(cls, gate: Gate, largest: float, dimensions: int) -> ScreenedGate:
        """The gate for logits of at most this size, which are dot products of so many dimensions."""
        first, bias, second = (value.astype(np.float64) for value in (gate.first, gate.first_bias, gate.second))
        # A logit as it is computed may exceed the largest one by the rounding of a sum of products, and of its scale.
        reach = largest * (1 + 2 * (dimensions + 8) * SINGLE + 1e-6)
        logit_scale = float(np.float32(HALF / reach))
        first_scale = _largest_scale(first, np.abs(first).sum(axis=1) * HALF + np.abs(bias) * logit_scale)
        hidden_scale = first_scale * logit_scale / 2**16
        table = _table(hidden_scale)
        table_error = _table_error(table, hidden_scale)
        sizes = (np.abs(first).sum(axis=1) * reach + np.abs(bias) + table_error) * hidden_scale
        second_scale = _largest_scale(second, np.abs(second) @ np.minimum(sizes + first.shape[1] + 2, HALF))
        rounded, rounded_second = np.rint(first * first_scale), np.rint(second * second_scale)
        output_scale = float(np.float32(1 / (second_scale * hidden_scale)))
        integers = (rounded / first_scale, rounded_second * output_scale * hidden_scale)
        # Each logit is off by half a unit, by its own rounding errors and by those of the product with the scale.
        logit_error = 0.5 / logit_scale + (dimensions + 8) * SINGLE * reach
        slack, per_length = _slack(gate, integers, logit_error, 1 / hidden_scale, table_error)
        return cls(
            rounded.astype(np.int16),
            np.rint(bias * first_scale * logit_scale).astype(np.int64) + 2**15,
            rounded_second.astype(np.int16),
            *table,
            np.array([logit_scale, output_scale, per_length], np.float32),
            largest,
            slack,
        )

    def useful(self, length: float) -> bool:
        """Whether bounds leave out enough items, where logits have this length."""
        return bool(self.slack + self.scales[2] * length <= LARGEST_SLACK)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that the compiled mixture reads, by name."""
        return {f"screen.{name}": getattr(self, name) for name in self._fields if name not in ("largest", "slack")}


def silu_of_integers(x: Integers, bases: NDArray[np.int16], slopes: NDArray[np.int16], steps: Integers) -> Integers:
    """x times its sigmoid as the kernel computes it: x / 2 plus a function of |x| in linear pieces."""
    size = np.abs(x)
    piece = np.minimum((size * steps[0]) >> 16, PIECES - 1)
    rise = (slopes[piece].astype(np.int64) * (size - piece * steps[1]) + 2**14) >> 15
    return np.asarray((x >> 1) + bases[piece] + rise)


def _largest_scale(weights: Doubles, sums: Doubles) -> float:
    """The largest scale with which the weights fit into sixteen bits and their sums into 32."""
    # Rounding adds up to half a unit to each weight, which SUM has room for in all but very wide layers.
    room = max(SUM - weights.shape[1] * (HALF + 1) / 2, 1.0)
    return float(min(room / max(sums.max(), 1e-30), HALF / max(np.abs(weights).max(), 1e-30), 2.0**40))


def _table(scale: float) -> tuple[NDArray[np.int16], NDArray[np.int16], Integers]:
    """Bases, slopes and steps of the activation for integers with this scale."""
    width = max(2, int(np.ceil(min(CURVED * scale, HALF) / PIECES)))
    edges = np.arange(PIECES + 1) * width
    values = _even_part(edges, scale)
    slopes = np.diff(values) / width
    # The curve lies below its chords: half of the distance in the middle is taken off everywhere.
    middle = _even_part(edges[:-1] + width / 2, scale) - (values[:-1] + slopes * width / 2)
    slopes[-1] = 0.5  # of the last piece, which goes on
    # Halving an integer drops a quarter on average.
    bases, integers = np.rint(values[:-1] + middle / 2 + 0.25), np.rint(slopes * 2**15)
    return bases.astype(np.int16), integers.astype(np.int16), np.array([2**16 // width, width])


def _even_part(x: NDArray[Any], scale: float) -> Doubles:
    """silu(x) - x / 2 of integers with a scale, in integers."""
    return np.asarray(x / 2 * np.tanh(x / (2 * scale)))


def _table_error(table: tuple[NDArray[np.int16], NDArray[np.int16], Integers], scale: float) -> float:
    """Largest error of the activation, for every integer of sixteen bits."""
    x = np.arange(-HALF - 1, HALF + 1)
    exact = x / 2 + _even_part(x, scale)
    return float(np.abs(silu_of_integers(x, *table) - exact).max() / scale)


def _slack(
    gate: Gate, integers: tuple[Doubles, Doubles], logit_error: float, unit: float, table_error: float
) -> tuple[float, float]:
    """a and b: with logits of length L, a score is off by at most a + b L times the range of the logits.

    integers: the weights that the integers stand for; unit: of the hidden layer.

    - Let W' and V' be the weights that the integers of the first and the second layer stand for.  An input of the
      hidden layer is off by at most |W'| logit_error + |W' - W|_2 L + unit / 2, and by the rounding of the bias, which
      has sixteen more bits.
    - An activation is off by at most 1.1 times that, plus the error of the table.  The exact activations have a length
      of at most |bias| + |W| L.
    - So an output is off by |V'| times the errors of the activations, plus |V' - V|_2 times their length.  The outer
      activation multiplies this by at most 1.1; call the result h.
    - Weights that are off by factors within exp(+-h) before they are normalised differ by at most tanh(h / 2) < h / 2
      in total variation, which moves a mean of the logits by at most that times their range.
    """
    first, second = gate.first.astype(np.float64), gate.second.astype(np.float64)
    near, near_second = integers
    constant = np.abs(near).sum(axis=1) * logit_error + unit * 0.5001
    per_length = np.linalg.norm(near - first, axis=1)
    missed = np.linalg.norm(near_second - second, axis=1)
    spread = np.linalg.norm(first, 2) * (1 + 1e-9)
    bias = np.linalg.norm(gate.first_bias.astype(np.float64))
    a = np.abs(near_second) @ (STEEPNESS * constant + table_error) + missed * bias
    b = np.abs(near_second) @ (STEEPNESS * per_length) + missed * spread
    # The kernel computes the length, and its product with the range, in float32.
    rounded = 1 + 1e-5 + first.shape[1] * SINGLE
    return float(a.max() * STEEPNESS / 2 * rounded), float(b.max() * STEEPNESS / 2 * rounded)
