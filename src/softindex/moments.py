"""What is kept of each cell: size, mean, radius, norms and dispersion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.errors import InputError
from softindex.records import Dispersion, Doubles, Floats, Moments

__all__ = ["choose_dispersion", "measure"]

AUTO_RANK = 8
EXACT_SIZE = 256
"""Eigenvalue problems up to this size are solved whole; larger ones by subspace iteration."""
BLOCK_VALUES = 1 << 23
"""Values of a cell held in float64 at a time: 64 MB, so that one cell of millions of items costs no memory."""

Report = Callable[[str, int, int], None]
Form = str | int


def choose_dispersion(asked: Any, d: int) -> Form:
    """Decide what dispersion to keep: "none", "full", or a rank in 1 .. d."""
    if isinstance(asked, str) and asked in ("none", "full"):
        return asked
    if isinstance(asked, str) and asked == "auto":
        # A full form of few dimensions is no larger than one of rank eight, and exact.
        return "full" if (d + 1) / 2 <= AUTO_RANK else AUTO_RANK
    if isinstance(asked, (int, np.integer)) and not isinstance(asked, bool) and asked >= 1:
        return min(int(asked), d)
    raise InputError(f'dispersion is {asked!r}; expected "none", "full", "auto" or a rank of at least 1.')


@dataclass(frozen=True, slots=True)
class _Results:
    """The arrays being filled, one entry per cell."""

    means: Floats
    log_sizes: Doubles
    radii: Floats
    norm_min: Floats
    norm_max: Floats
    bias_max: Floats | None
    forms: Floats | None
    spread: Floats
    excess: Floats


def measure(
    vectors: NDArray[Any],
    offsets: NDArray[np.int64],
    *,
    log_bias: Floats | None,
    dispersion: Form,
    threads: int,
    report: Report | None = None,
) -> Moments:
    """Measure every cell.  vectors (n, d) float32 in cell order; cell c is rows offsets[c] .. offsets[c + 1].

    With log_bias (n,), in the same order, every moment is weighted by exp(bias).  Sums are float64.  Radii, norms and
    the dispersion's excess are rounded outward: they hold for the true members and the stored, rounded means.
    """
    k, d = len(offsets) - 1, vectors.shape[1]
    results = _empty_results(k, d, log_bias is not None, dispersion)
    _measure_single_items(results, vectors, offsets, log_bias)
    cells = np.flatnonzero(np.diff(offsets) > 1)

    def one(cell: int) -> None:
        _measure_cell(
            results, cell, _Members(vectors, int(offsets[cell]), int(offsets[cell + 1]), log_bias), dispersion
        )

    with ThreadPoolExecutor(max_workers=threads) as pool:
        for done, _ in enumerate(pool.map(one, cells.tolist()), 1):
            if report is not None and (done % 64 == 0 or done == len(cells)):
                report("measuring", done, len(cells))
    return _as_moments(results, dispersion)


def _empty_results(k: int, d: int, biased: bool, dispersion: Form) -> _Results:
    forms = None
    if dispersion == "full":
        forms = np.zeros((k, d * (d + 1) // 2), np.float32)
    elif dispersion != "none":
        forms = np.zeros((k, int(dispersion), d), np.float32)
    zeros = [np.zeros(k, np.float32) for _ in range(5)]
    return _Results(
        means=np.zeros((k, d), np.float32),
        log_sizes=np.full(k, -np.inf),
        radii=zeros[0],
        norm_min=zeros[1],
        norm_max=zeros[2],
        bias_max=np.zeros(k, np.float32) if biased else None,
        forms=forms,
        spread=zeros[3],
        excess=zeros[4],
    )


def _as_moments(results: _Results, dispersion: Form) -> Moments:
    if dispersion == "none":
        kept = Dispersion("none")
    elif dispersion == "full":
        kept = Dispersion("full", 0, results.forms, None, results.excess)
    else:
        kept = Dispersion("rank", int(dispersion), results.forms, results.spread, results.excess)
    return Moments(
        results.means,
        results.log_sizes,
        results.radii,
        results.norm_min,
        results.norm_max,
        results.bias_max,
        kept,
    )


def _up(value: Any) -> Any:
    """Round up to float32, with room for the rounding of the float64 computation itself."""
    wide = np.asarray(value, np.float64) * (1 + 1e-12) + 1e-300
    return np.nextafter(wide.astype(np.float32), np.float32(np.inf))


def _down(value: Any) -> Any:
    wide = np.asarray(value, np.float64) * (1 - 1e-12)
    return np.maximum(np.nextafter(wide.astype(np.float32), np.float32(-np.inf)), np.float32(0))


def _measure_single_items(
    results: _Results, vectors: NDArray[Any], offsets: NDArray[np.int64], log_bias: Floats | None
) -> None:
    """Cells of one item, all at once: there may be millions of them."""
    cells = np.flatnonzero(np.diff(offsets) == 1)
    step = max(1, BLOCK_VALUES // vectors.shape[1])
    for start in range(0, len(cells), step):
        part = cells[start : start + step]
        items = vectors[offsets[part]]
        norms = np.sqrt(np.einsum("nd,nd->n", items, items, dtype=np.float64))
        results.means[part] = items
        results.norm_min[part], results.norm_max[part] = _down(norms), _up(norms)
        results.log_sizes[part] = 0.0
        if log_bias is not None and results.bias_max is not None:
            results.bias_max[part] = results.log_sizes[part] = log_bias[offsets[part]]


@dataclass(frozen=True, slots=True)
class _Members:
    """The items of one cell, read in blocks."""

    vectors: NDArray[Any]
    begin: int
    end: int
    log_bias: Floats | None

    def weights(self) -> tuple[Doubles, float]:
        """Weights (n,) that sum to one, and the log of their sum before."""
        if self.log_bias is None:
            count = self.end - self.begin
            return np.full(count, 1.0 / count), float(np.log(count))
        bias = self.log_bias[self.begin : self.end].astype(np.float64)
        # Subtract the maximum first: exp overflows above 709.
        peak = bias.max()
        weights = np.exp(bias - peak)
        total = weights.sum()
        return weights / total, float(peak + np.log(total))

    def blocks(self) -> Iterator[tuple[slice, Doubles]]:
        """Slices of the cell and their items in float64."""
        step = max(1, BLOCK_VALUES // self.vectors.shape[1])
        for start in range(0, self.end - self.begin, step):
            stop = min(start + step, self.end - self.begin)
            rows = slice(self.begin + start, self.begin + stop)
            yield slice(start, stop), self.vectors[rows].astype(np.float64)


def _measure_cell(results: _Results, cell: int, members: _Members, dispersion: Form) -> None:
    weights, log_size = members.weights()
    mean = np.zeros(members.vectors.shape[1])
    for part, items in members.blocks():
        mean += weights[part] @ items
    stored = mean.astype(np.float32)
    results.means[cell], results.log_sizes[cell] = stored, log_size
    if members.log_bias is not None and results.bias_max is not None:
        results.bias_max[cell] = members.log_bias[members.begin : members.end].max()
    squared_radius, squared_norms, centred = 0.0, [np.inf, 0.0], []
    for part, items in members.blocks():
        norms = np.einsum("nd,nd->n", items, items)
        squared_norms = [min(squared_norms[0], norms.min()), max(squared_norms[1], norms.max())]
        away = items - stored.astype(np.float64)
        squared_radius = max(squared_radius, np.einsum("nd,nd->n", away, away).max())
        if dispersion != "none":
            items -= mean
            items *= np.sqrt(weights[part])[:, None]
            centred.append(items if len(items) == len(weights) else items.T @ items)
    results.radii[cell] = _up(squared_radius**0.5)
    results.norm_min[cell], results.norm_max[cell] = (
        _down(squared_norms[0] ** 0.5),
        _up(squared_norms[1] ** 0.5),
    )
    if dispersion == "none":
        return
    whole = len(centred) == 1
    _keep_dispersion(results, cell, centred[0] if whole else sum(centred[1:], centred[0]), whole, dispersion)


# values (r,), directions (r, d), missed, residual such that for every q
# q'Sq <= sum_j values_j (e_j.q)^2 + missed (|q|^2 - sum_j (e_j.q)^2) + residual |q|^2.
_LowRank = tuple[Doubles, Doubles, float, float]


def _keep_dispersion(results: _Results, cell: int, data: Doubles, whole: bool, dispersion: Form) -> None:
    """data: the centred, weighted items (n, d) whose Gram matrix is the covariance, or (not whole) that matrix."""
    assert results.forms is not None
    if dispersion == "full":
        covariance = data.T @ data if whole else data
        upper = np.triu_indices(len(covariance))
        doubled = np.where(upper[0] == upper[1], 1.0, 2.0) * covariance[upper]
        results.forms[cell] = doubled
        # Off by the rounding of each packed number, and |q_i q_j| summed over all pairs is at most d |q|^2 / 2.
        lost = np.abs(doubled - results.forms[cell].astype(np.float64)).max()
        results.excess[cell] = _up(lost * len(covariance) + 1e-12 * np.trace(covariance))
        return
    trace = float(np.einsum("nd,nd->", data, data)) if whole else float(np.trace(data))
    if trace == 0.0:
        return
    if whole and len(data) < data.shape[1]:
        low_rank = _few_items(data, int(dispersion))
    else:
        low_rank = _many_items(data.T @ data if whole else data, int(dispersion))
    values, directions, missed, residual = low_rank
    d, rank = data.shape[1], len(values)
    spread = max(0.0, (trace - values.sum()) / (d - rank)) if d > rank else 0.0
    results.spread[cell] = spread
    results.forms[cell, :rank] = np.sqrt(np.maximum(values - spread, 0.0))[:, None] * directions
    # What the subspace missed, less what is spread anyway; and the rounding of the stored numbers to float32.
    results.excess[cell] = _up(max(missed - spread, 0.0) + residual + 2.0**-20 * trace)


def _many_items(covariance: Doubles, rank: int) -> _LowRank:
    """The leading eigenpairs of a covariance (d, d)."""
    if len(covariance) <= EXACT_SIZE:
        values, vectors = np.linalg.eigh(covariance)
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
        missed = float(values[rank]) if rank < len(values) else 0.0
        return values[:rank], vectors[:, :rank].T, missed, 0.0
    values, basis, image = _subspace(covariance, rank)
    # With Q the basis and E = SQ - Q values: S = Q values Q' + E Q' + Q E' + M, where M lives outside the basis, and
    # the two mixed terms together are at most |E| |q|^2.
    error = image - basis * values
    return values, basis.T, _outside_norm(covariance, values, basis, error), float(np.linalg.norm(error))


def _few_items(items: Doubles, rank: int) -> _LowRank:
    """The same from fewer items (n, d) than dimensions, through their Gram matrix (n, n).

    With Q a basis of Ritz vectors of G = Y Y', S = Y'Y = Y'QQ'Y + R, R = Y'(I - QQ')Y, without a remainder.  The norm
    of R is that of (I - QQ')G(I - QQ'), and R takes a direction Y'Q_j / |Y'Q_j| to Y'E_j / |Y'Q_j|, E = GQ - Q values.
    """
    gram = items @ items.T
    if len(gram) <= EXACT_SIZE:
        values, vectors = np.linalg.eigh(gram)
        values, basis = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
        missed = float(values[rank]) if rank < len(values) else 0.0
        values, basis = values[:rank], basis[:, :rank]
        error = np.zeros_like(basis)
    else:
        values, basis, image = _subspace(gram, rank)
        error = image - basis * values
        missed = _outside_norm(gram, values, basis, error)
    # A direction of almost no variance cannot be scaled to length one: it goes to what is missed.
    held = values > 1e-9 * values[0]
    missed = max(missed, float(np.max(values[~held], initial=0.0)))
    values, lengths = values[held], np.sqrt(values[held])
    residual = 2.0 * float(np.linalg.norm((error[:, held].T @ items) / lengths[:, None]))
    return values, (basis[:, held].T @ items) / lengths[:, None], missed, residual


def _subspace(matrix: Doubles, rank: int) -> tuple[Doubles, Doubles, Doubles]:
    """Leading Ritz values (r,), vectors (m, r) and matrix @ vectors of a symmetric matrix (m, m)."""
    rng = np.random.default_rng(0)
    basis = rng.standard_normal((len(matrix), min(len(matrix), rank + 8)))
    for _ in range(8):
        basis = np.linalg.qr(matrix @ basis)[0]
    image = matrix @ basis
    values, rotation = np.linalg.eigh(basis.T @ image)
    rotation = rotation[:, ::-1][:, :rank]
    return np.maximum(values[::-1][:rank], 0.0), basis @ rotation, image @ rotation


def _outside_norm(matrix: Doubles, values: Doubles, basis: Doubles, residual: Doubles) -> float:
    """An upper bound of the norm of the matrix outside the basis: (trace M^8)^(1/8), from two products.

    A power iteration would bound it from below only.
    """
    mixed = residual @ basis.T
    outside = matrix - (basis * values) @ basis.T - mixed - mixed.T
    fourth = np.linalg.matrix_power(outside, 4)
    return float(np.linalg.norm(fourth) ** 0.25) * (1 + 1e-9)
