"""Keep the covariance of one cluster in few numbers, in memory that does not grow with the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import blocks, rows_per_block
from softindex.outward import round_up
from softindex.records import Doubles

__all__ = ["BLOCK_VALUES", "Centred", "Kept", "keep_full", "keep_leading", "matrix_bytes"]

EXACT_SIZE = 256
"""Eigenvalue problems up to this size are solved exactly; larger ones by subspace iteration."""
BLOCK_VALUES = 1 << 20
"""Values of a cluster in float64 at a time: 8 MB.  Every thread holds about three such blocks."""
MATRICES = 5
"""Square matrices of the smaller side of a cluster that are held at the same time."""


def matrix_bytes(n: Any, d: int) -> Any:
    """Memory of the square matrices that a cluster of n items in d dimensions needs; n is a number or an array."""
    return MATRICES * 8 * np.minimum(n, d) ** 2


@dataclass(frozen=True, slots=True)
class Centred:
    """The items of a cluster less their mean, times the roots of their weights: their Gram matrix is its covariance.

    items (n, d), mean (d,) and roots (n,); what is read is float64, a block at a time.
    """

    items: NDArray[Any]
    mean: Doubles
    roots: Doubles

    def by_rows(self) -> Iterator[Doubles]:
        """Blocks of rows (m, d)."""
        n, d = self.items.shape
        for part in blocks(n, rows_per_block(BLOCK_VALUES, d)):
            rows = self.items[part].astype(np.float64)
            rows -= self.mean
            rows *= self.roots[part, None]
            yield rows

    def by_columns(self) -> Iterator[tuple[slice, Doubles]]:
        """Slices of the columns, and those columns (n, m)."""
        n, d = self.items.shape
        for part in blocks(d, rows_per_block(BLOCK_VALUES, n)):
            columns = self.items[:, part].astype(np.float64)
            columns -= self.mean[part]
            columns *= self.roots[:, None]
            yield part, columns


class Kept(NamedTuple):
    """What is stored of one cluster; see `records.Dispersion`."""

    forms: NDArray[Any]
    scales: Doubles
    spread: np.float32
    excess: np.float32


def keep_full(centred: Centred, room: int) -> Kept:
    """The upper triangle of the covariance; strips of it are computed twice where it does not fit into `room` bytes."""
    d = centred.items.shape[1]
    # A strip, its product with one block, its mask and the numbers picked by it.
    step = min(d, rows_per_block(room // (MATRICES * 8), d))
    whole = [_packed(centred, slice(0, d))] if step == d else None

    def strips() -> Iterator[tuple[Doubles, float]]:
        yield from whole if whole is not None else (_packed(centred, part) for part in blocks(d, step))

    largest, trace = 0.0, 0.0
    for strip, part_of_trace in strips():
        largest, trace = max(largest, float(np.abs(strip).max())), trace + part_of_trace
    scale = np.float32(largest / np.iinfo(np.int16).max)
    forms, done, lost = np.empty(d * (d + 1) // 2, np.int16), 0, 0.0
    for strip, _ in strips():
        integers = _integers(strip, scale, np.iinfo(np.int16).max)
        forms[done : done + len(strip)] = integers
        done += len(strip)
        lost = max(lost, float(np.abs(strip - integers * float(scale)).max()))
    # Each packed number has a rounding error, and the sum of |q_i q_j|, i <= j, is at most d |q|^2.
    excess = round_up(lost * d + 1e-12 * trace)
    return Kept(forms, np.array([scale]), np.float32(0.0), excess)


def _packed(centred: Centred, part: slice) -> tuple[Doubles, float]:
    """Some rows of the upper triangle of the covariance, row by row, off-diagonal entries doubled; their trace."""
    first, count = part.start, part.stop - part.start
    strip = _sum(rows[:, part].T @ rows[:, first:] for rows in centred.by_rows())
    trace = float(np.trace(strip))
    strip *= 2.0
    strip[np.arange(count), np.arange(count)] /= 2.0
    return strip[np.triu(np.ones(strip.shape, bool))], trace


def _sum(terms: Iterator[Doubles]) -> Doubles:
    total = next(terms)
    for term in terms:
        total += term
    return total


def _trace(centred: Centred) -> float:
    return sum(float(np.einsum("nd,nd->", rows, rows)) for rows in centred.by_rows())


def _integers(values: Doubles, scale: np.float32, largest: int) -> Doubles:
    if scale == 0.0:
        return np.zeros_like(values)
    return np.clip(np.rint(values / float(scale)), -largest, largest)


def keep_leading(centred: Centred, rank: int, room: int) -> Kept:
    """The leading eigenvectors of the covariance, by square matrices of the smaller side where `room` bytes hold them.

    A cluster that is larger in both directions never has such a matrix: its excess is then a looser bound.
    """
    n, d = centred.items.shape
    if matrix_bytes(n, d) > room:
        return _keep_without_matrices(centred, rank, room)
    return _keep_few_items(centred, rank) if n < d else _keep_many_items(centred, rank)


class _Forms(NamedTuple):
    integers: NDArray[np.int8]
    scales: Doubles
    values: Doubles
    """(r, d) what the integers stand for."""
    spread: np.float32

    def kept(self, missed: float, slack: float) -> Kept:
        """`missed`: the largest eigenvalue of what the forms leave, or more; slack: for rounding."""
        excess = round_up(max(missed - float(self.spread), 0.0) + slack)
        return Kept(self.integers, self.scales, self.spread, excess)


def _round_forms(values: Doubles, directions: Doubles, trace: float, rank: int) -> _Forms:
    """Leading eigenvalues (r,) and directions (r, d), which are overwritten, as integers; further rows stay zero."""
    d, largest = directions.shape[1], np.iinfo(np.int8).max
    spread = np.float32(max(0.0, (trace - values.sum()) / (d - len(values))) if d > len(values) else 0.0)
    integers, scales = np.zeros((rank, d), np.int8), np.zeros(rank)
    for row, (value, direction) in enumerate(zip(values, directions, strict=True)):
        form = np.sqrt(max(value - float(spread), 0.0)) * direction
        scale = np.float32(np.abs(form).max(initial=0.0) / largest)
        rounded = _integers(form, scale, largest)
        integers[row], scales[row], directions[row] = rounded, scale, rounded * float(scale)
    return _Forms(integers, scales, directions, spread)


def _keep_many_items(centred: Centred, rank: int) -> Kept:
    covariance = _sum(rows.T @ rows for rows in centred.by_rows())
    trace = float(np.trace(covariance))
    forms = _round_forms(*_leading(covariance.__matmul__, len(covariance), rank, covariance), trace, rank)
    rest = forms.values.T @ forms.values
    np.subtract(covariance, rest, out=rest)
    return forms.kept(_largest_eigenvalue(rest), 1e-9 * trace)


def _keep_few_items(centred: Centred, rank: int) -> Kept:
    """The same for fewer items Y (n, d) than dimensions, by the smaller Gram matrix Y Y' in place of S = Y'Y."""
    gram = _sum(items @ items.T for _, items in centred.by_columns())
    trace = float(np.trace(gram))
    values, basis = _leading(gram.__matmul__, len(gram), rank, gram)
    # A direction with almost no variance cannot be scaled to length one, and does not matter.
    kept_rows = values > 1e-9 * values[0]
    values, basis = values[kept_rows], basis[kept_rows]
    directions = np.empty((len(values), centred.items.shape[1]))
    for part, items in centred.by_columns():
        directions[:, part] = (basis @ items) / np.sqrt(values)[:, None]
    del gram
    forms = _round_forms(values, directions, trace, rank)
    missed = _largest_eigenvalue(_difference(centred, forms.values))
    # Where the forms almost equal the items, this matrix is almost nilpotent, and a rounding error moves its
    # eigenvalues by the square root of that error: allow for 1e-6.
    return forms.kept(missed, 1e-6 * trace)


def _difference(centred: Centred, forms: Doubles) -> Doubles:
    """A small matrix with the nonzero eigenvalues of S - F'F, for forms F (r, d).

    S - F'F = Z' J Z, where Z stacks the items on the forms and J = diag(1, -1).  With Z Z' = U V U', its nonzero
    eigenvalues are those of the small symmetric matrix V^(1/2) U' J U V^(1/2).
    """

    def products() -> Iterator[Doubles]:
        for part, items in centred.by_columns():
            both = np.concatenate([items, forms[:, part]])
            yield both @ both.T

    weights, half = np.linalg.eigh(_sum(products()))
    half *= np.sqrt(np.maximum(weights, 0.0))
    signs = np.concatenate([np.ones(len(half) - len(forms)), -np.ones(len(forms))])
    return np.asarray(half.T @ (half * signs[:, None]))


def _keep_without_matrices(centred: Centred, rank: int, room: int) -> Kept:
    """The same from products with the items alone: no eigenvalue of S - F'F exceeds its Frobenius norm."""
    d = centred.items.shape[1]

    def multiply(basis: Doubles) -> Doubles:
        return _sum(rows.T @ (rows @ basis) for rows in centred.by_rows())

    trace = _trace(centred)
    forms = _round_forms(*_leading(multiply, d, rank), trace, rank)
    common = sum(float(np.sum((rows @ forms.values.T) ** 2)) for rows in centred.by_rows())
    own = float(np.sum((forms.values @ forms.values.T) ** 2))
    # The three terms cancel, so that the root of their rounding error counts: it is below 1e-7 of the trace.
    squared = max(_squared_norm(centred, room) - 2.0 * common + own, 0.0)
    return forms.kept(float(np.sqrt(squared)), 1e-6 * trace)


def _squared_norm(centred: Centred, room: int) -> float:
    """The sum of all squares of the covariance, by strips of the upper half of the smaller Gram matrix."""
    n, d = centred.items.shape
    total = 0.0
    for part in blocks(min(n, d), rows_per_block(room // 64, min(n, d))):
        begin, count = part.start, part.stop - part.start
        if n < d:
            strip = _sum(items[part] @ items[begin:].T for _, items in centred.by_columns())
        else:
            strip = _sum(rows[:, part].T @ rows[:, begin:] for rows in centred.by_rows())
        # Entries beside the square on the diagonal appear a second time, below it.
        total += float(np.sum(strip[:, :count] ** 2)) + 2.0 * float(
            np.einsum("ij,ij->", strip[:, count:], strip[:, count:])
        )
    return total


def _leading(
    multiply: Callable[[Doubles], Doubles], size: int, rank: int, matrix: Doubles | None = None
) -> tuple[Doubles, Doubles]:
    """Leading eigenvalues (r,), not negative, and eigenvectors (r, size) of a symmetric matrix, given by its products.

    A small matrix, where there is one, is solved exactly.  Others by block iteration: the vectors are then close to the
    eigenvectors, enough for an estimate.
    """
    if matrix is not None and size <= EXACT_SIZE:
        values, vectors = np.linalg.eigh(matrix)
    else:
        rng = np.random.default_rng(0)
        basis = rng.standard_normal((size, min(size, rank + 8)))
        for _ in range(6):
            basis = np.linalg.qr(multiply(basis))[0]
        values, rotation = np.linalg.eigh(basis.T @ multiply(basis))
        vectors = basis @ rotation
    return np.maximum(values[::-1][:rank], 0.0), vectors[:, ::-1][:, :rank].T


def _largest_eigenvalue(matrix: Doubles) -> float:
    """The largest eigenvalue of a symmetric matrix, which is overwritten; for a large one an upper bound.

    The bound is (trace M^8)^(1/8), from two products; a power iteration would only give a lower bound.
    """
    if len(matrix) <= EXACT_SIZE:
        return float(np.linalg.eigvalsh(matrix)[-1])
    # Scaled to entries of at most one: the eighth power of very small or large numbers leaves the range of float64.
    scale = max(float(matrix.max()), -float(matrix.min()))
    if scale == 0.0:
        return 0.0
    matrix /= scale
    squared = matrix @ matrix
    return scale * float(np.linalg.norm(np.matmul(squared, squared, out=matrix)) ** 0.25) * (1 + 1e-9)
