"""Copies of the rows in four and in eight bits, whose scores come with a proven error radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.adaptive.rows import Rows
from softindex.kernels import padded, screen, screen_nibbles
from softindex.lazy import lazy
from softindex.outward import round_up
from softindex.quantise import quantise, row_norms
from softindex.records import Doubles, Floats, Integers

__all__ = ["Level", "PreparedQuery", "Scores", "Screen", "encode", "screen_shape"]

CHUNK = 64
"""Coordinates that the four-bit kernel processes at a time."""
MOST_NIBBLES = CHUNK << 14
"""Longer rows have no four-bit copy: their sums would overflow 32 bits."""
WIDEST = 4.0
"""Radius of a logit beyond which a level is not tried: one class would have to be ahead of all others by twice that."""
CLIPS = (1.0, 0.8, 0.65, 0.5)
"""Fractions of a row's largest number that its largest code may stand for: four bits lose less if peaks are cut off."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Dot products of all rows with one query; the true ones are within the radii."""

    values: Doubles
    radii: Doubles


@dataclass(frozen=True, slots=True)
class Level:
    """One copy of the rows: row i, divided by the column scales, is within errors[i] of scales[i] * its code."""

    bits: int
    codes: NDArray[Any]
    """8 bits: (n, d) int8.  4 bits: (n, 32 c) uint8, code + 8 in each half; see native/adaptive."""
    scales: Floats
    """(n,) size of one integer step of the row."""
    errors: Floats
    """(n,) rounded up."""

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row's code."""
        return int(self.codes.shape[1])

    def integers(self, rows: slice, d: int) -> NDArray[Any]:
        """The codes (m, d) of these rows as integers."""
        if self.bits == 8:
            return self.codes[rows]
        packed = self.codes[rows].reshape(-1, self.codes.shape[1] * 2 // CHUNK, 1, CHUNK // 2)
        halves = np.concatenate([packed & 15, packed >> 4], axis=2).astype(np.int8) - 8
        return np.asarray(halves.reshape(len(packed), -1)[:, :d])

    def score(self, queries: Sequence[PreparedQuery], threads: int) -> list[Scores]:
        """Scores of all rows for several queries."""
        dots = self._dots(queries, threads)
        return [self._scores(dots[place], query, slice(None)) for place, query in enumerate(queries)]

    def score_rows(self, query: PreparedQuery, rows: Integers, threads: int) -> Scores:
        """Scores of these rows for one query: the same numbers as `score` has for them."""
        return self._scores(self._dots([query], threads, np.ascontiguousarray(rows))[0], query, rows)

    def _dots(self, queries: Sequence[PreparedQuery], threads: int, rows: Integers | None = None) -> NDArray[np.int64]:
        """Dot products (b, m) of the codes with the queries in integers: exact.  rows: which; None for all."""
        integers = np.stack([query.rounded(self).integers for query in queries])
        dots = np.empty((len(queries), len(self.codes) if rows is None else len(rows)), np.int64)
        if self.bits == 8:
            screen(self.codes, integers, dots, threads, rows)
        else:
            screen_nibbles(self.codes, integers, dots, threads, rows)
            dots -= 8 * integers.sum(axis=1, dtype=np.int64)[:, None]
        return dots

    def _scores(self, dots: NDArray[np.int64], query: PreparedQuery, rows: Integers | slice) -> Scores:
        values = np.asarray(dots * (query.rounded(self).unit * self.scales[rows].astype(np.float64)))
        # The value is rounded three times, and the radius about a dozen times.
        radii = (self.radii(query, rows) + 2.0**-50 * np.abs(values)) * (1.0 + 2.0**-45)
        return Scores(values, radii)

    def radii(self, query: PreparedQuery, rows: Integers | slice = slice(None)) -> Doubles:
        """The radii that `score` would give for one query, except for the last digits.

        Write a for the scaled row, c for scale * code, q for the scaled query and p for its integers times unit.
        a.q = p.c + (q - p).c + (a - c).q, and so |a.q - p.c| <= |q - p| |c| + |a - c| |q|; |c| <= |a| + |a - c|.
        """
        errors = self.errors[rows].astype(np.float64)
        return np.asarray(query.norm * errors + query.rounded(self).lost * (query.lengths[rows] + errors))


class Rounded(NamedTuple):
    """A query as a level multiplies it."""

    integers: NDArray[Any]
    """(d, padded to the width of the kernel) int16 for 8 bits, int8 for 4."""
    unit: float
    """Size of one integer step."""
    lost: float
    """Upper bound on the norm of what is lost."""


class PreparedQuery:
    """A query, and what the levels and the bounds of rounding errors need of it: each computed once, when needed."""

    def __init__(self, given: NDArray[Any], columns: Floats | None, lengths: Floats) -> None:
        """given (d,): float32 or float64; columns: their scales, None where all are 1; lengths (n,): of scaled rows."""
        self.given, self.lengths, self._columns = given, lengths, columns
        self._rounded: dict[int, Rounded] = {}

    @lazy
    def vector(self) -> Doubles:
        """(d,) in float64."""
        return np.asarray(self.given, np.float64)

    @lazy
    def scaled(self) -> Doubles:
        """(d,) multiplied by the column scales."""
        return self.vector if self._columns is None else np.asarray(self.vector * self._columns)

    @lazy
    def norm(self) -> float:
        """Norm of the scaled query, rounded up."""
        return _norm(self.scaled)

    @lazy
    def magnitudes(self) -> Doubles:
        """(n,) upper bounds on the sum over j of |row_j query_j| (Cauchy-Schwarz)."""
        return np.asarray(self.lengths.astype(np.float64) * (self.norm * (1 + 2.0**-50)))

    def rounded(self, level: Level) -> Rounded:
        """The query in integers for a level."""
        if level.bits not in self._rounded:
            self._rounded[level.bits] = self._round(level)
        return self._rounded[level.bits]

    def _round(self, level: Level) -> Rounded:
        query, largest, width = self.scaled, 16383, padded(len(self.scaled))
        if level.bits == 4:
            largest, width = 127, 2 * level.codes.shape[1]
        unit = float(max(query.max(), -query.min())) / largest or 1.0
        # In place: a query of many coordinates does not stay in the cache, and new memory costs more than arithmetic.
        work = query / unit
        np.rint(work, out=work)
        integers = np.zeros(width, np.int16 if level.bits == 8 else np.int8)
        integers[: len(query)] = work
        np.multiply(work, unit, out=work)
        np.subtract(query, work, out=work)
        return Rounded(integers, unit, _norm(work) + self.norm * 2.0**-50)


@dataclass(frozen=True, slots=True)
class Screen:
    """The copies of the rows, coarse before fine; all share the column scales."""

    columns: Floats
    """(d,) powers of two: heavy columns would otherwise use up the precision of a row."""
    lengths: Floats
    """(n,) norms of the rows divided by the column scales, rounded up."""
    levels: tuple[Level, ...]
    even: bool = field(init=False)
    """Whether every column has the scale 1, as those of most layers have."""
    typical_errors: tuple[float, ...] = field(init=False)
    """Median of the errors at each level."""

    def __post_init__(self) -> None:
        # In float64: half of the sum of two float32 can overflow on the way, in a file that states huge errors.
        medians = tuple(float(np.median(level.errors.astype(np.float64))) for level in self.levels)
        object.__setattr__(self, "typical_errors", medians)
        object.__setattr__(self, "even", bool((self.columns == 1.0).all()))

    def prepare(self, vector: NDArray[Any]) -> PreparedQuery:
        """A query (d,) for all levels."""
        return PreparedQuery(vector, None if self.even else self.columns, self.lengths)

    def start(self, query: PreparedQuery, inverse: float, factors: Sequence[float]) -> int:
        """Number of the coarsest level that may settle a query, by the radius that a typical row has there.

        It depends on nothing but the query and its temperature: other queries must not change an answer.
        """
        last = len(self.levels) - 1
        radii = (inverse * factors[number] * query.norm * self.typical_errors[number] for number in range(last))
        return next((number for number, radius in enumerate(radii) if radius <= WIDEST), last)

    def score(self, level: Level, queries: Doubles, threads: int) -> list[Scores]:
        """Scores of one level for queries (b, d)."""
        return level.score([self.prepare(query) for query in queries], threads)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to save."""
        arrays: dict[str, NDArray[Any]] = {"columns": self.columns, "lengths": self.lengths}
        for level in self.levels:
            for name in ("codes", "scales", "errors"):
                arrays[f"{name}_{level.bits}"] = getattr(level, name)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Screen:
        """The screen that `arrays` was saved from; shapes and types are checked before."""
        kept = [bits for bits in (4, 8) if f"codes_{bits}" in arrays]
        levels = (Level(bits, *(arrays[f"{name}_{bits}"] for name in ("codes", "scales", "errors"))) for bits in kept)
        return cls(arrays["columns"], arrays["lengths"], tuple(levels))


def screen_shape(d: int) -> tuple[int, int]:
    """Number of levels that rows of d numbers have, and bytes of such a row in four bits."""
    return 2 if d <= MOST_NIBBLES else 1, -(-d // CHUNK) * CHUNK // 2


def _norm(vector: Doubles) -> float:
    """The norm of a vector, rounded up."""
    return float(np.sqrt(vector @ vector)) * (1.0 + (len(vector) + 4) * 2.0**-52)


def encode(rows: Rows) -> Screen:
    """Make the copies of the rows."""
    n, d = rows.n, rows.d
    columns, lengths = _column_scales(rows), np.empty(n, np.float32)
    levels = [Level(8, np.empty((n, d), np.int8), np.empty(n, np.float32), np.empty(n, np.float32))]
    count, width = screen_shape(d)
    if count > 1:
        codes = np.empty((n, width), np.uint8)
        levels.insert(0, Level(4, codes, np.empty(n, np.float32), np.empty(n, np.float32)))
    for begin, block in rows.blocks():
        wide, here = block.astype(np.float64) / columns, slice(begin, begin + len(block))
        lengths[here] = round_up(row_norms(wide))
        for level in levels:
            integers, level.scales[here], level.errors[here] = _best_codes(wide, level.bits)
            level.codes[here] = integers if level.bits == 8 else _pack(integers)
    return Screen(columns, lengths, tuple(levels))


def _best_codes(wide: Doubles, bits: int) -> tuple[Doubles, Floats, Floats]:
    """Codes (m, d), scales and errors (rounded up) of the rows; four-bit rows take the clip that loses least."""
    largest = 2 ** (bits - 1) - 1
    best = np.full(len(wide), np.inf)
    codes, scales = np.zeros_like(wide), np.zeros(len(wide), np.float32)
    for clip in CLIPS if bits == 4 else CLIPS[:1]:
        tried, steps, decoded = quantise(wide, largest, clip=clip)
        errors = row_norms(wide - decoded)
        better = errors < best
        best[better], scales[better], codes[better] = errors[better], steps[better], tried[better]
    return codes, scales, np.asarray(round_up(best))


def _pack(codes: Doubles) -> NDArray[np.uint8]:
    """Two codes of -7 .. 7 in a byte: coordinate j of 64 in the low half, j + 32 in the high one."""
    m, d = codes.shape
    shifted = np.full((m, -(-d // CHUNK) * CHUNK), 8, np.uint8)
    shifted[:, :d] = codes + 8
    halves = shifted.reshape(m, -1, 2, CHUNK // 2)
    return np.asarray(halves[:, :, 0] | (halves[:, :, 1] << 4), np.uint8).reshape(m, -1)


def _column_scales(rows: Rows) -> Floats:
    """(d,) the nearest power of two to the root mean square of each column, relative to that of all columns."""
    squares: Any = np.zeros(rows.d)
    for _, block in rows.blocks():
        squares += np.einsum("nd,nd->d", block, block, dtype=np.float64)
    middle = squares.mean()
    if not middle > 0:
        return np.ones(rows.d, np.float32)
    powers = np.rint(np.log2(np.maximum(squares, middle * 2.0**-40) / middle) / 2)
    return np.asarray(np.exp2(powers), np.float32)
