"""Items as 8-bit residuals about the mean of their cluster, with bounds on the loss."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.outward import round_up
from softindex.records import Codes, Doubles, Floats, Integers, Report

__all__ = ["encode"]

BLOCK_VALUES = 1 << 18
"""Values encoded at a time: two megabytes in float64, which stays in a core's cache for the ten passes over it."""
LARGEST = 127


def encode(
    vectors: NDArray[Any],
    offsets: Integers,
    means: Floats,
    *,
    threads: int,
    report: Report | None = None,
) -> Codes:
    """Encode every item.  vectors (n, d) float32 in cluster order; cluster c is rows offsets[c] .. offsets[c + 1].

    means (k, d) float32: the stored means, about which the residuals are taken.  The bounds hold for these rounded
    means and the rounded scales.
    """
    n, d = vectors.shape
    codes, scales = np.empty((n, d), np.int8), np.empty(n, np.float32)
    errors, lengths = np.empty(n, np.float32), np.empty(n, np.float32)
    step = max(1, BLOCK_VALUES // d)

    def one(start: int) -> None:
        block = slice(start, min(start + step, n))
        clusters = np.searchsorted(offsets, np.arange(block.start, block.stop), side="right") - 1
        # The difference of two float32 numbers, in float64: it rounds only where one hardly matters to the other.
        residuals = vectors[block].astype(np.float64)
        residuals -= means[clusters]
        codes[block], scales[block], errors[block], lengths[block] = _encode_block(residuals)

    with ThreadPoolExecutor(max_workers=threads) as pool:
        for done, _ in enumerate(pool.map(one, range(0, n, step)), 1):
            if report is not None and (done % 64 == 0 or done * step >= n):
                report("encoding", min(done * step, n), n)
    return Codes(codes, scales, _largest(errors, offsets), _largest(lengths, offsets))


def _encode_block(residuals: Doubles) -> tuple[Doubles, Floats, Floats, Floats]:
    """Codes, scales, lost lengths and lengths of residuals (m, d), which are overwritten."""
    # The rounding error of the residuals themselves, which no later step can see.
    rounded = 2.0**-52 * _norms(residuals)
    peaks = np.maximum(residuals.max(axis=1), -residuals.min(axis=1))
    scales = (peaks / LARGEST).astype(np.float32)
    low = scales.astype(np.float64) * LARGEST < peaks
    scales[low] = np.nextafter(scales[low], np.float32(np.inf))
    wide = scales.astype(np.float64)[:, None]
    codes = residuals / np.where(wide > 0.0, wide, 1.0)
    np.rint(codes, out=codes)
    # Exact: 24 bits of the scale times seven of the code.
    decoded = codes * wide
    residuals -= decoded
    return codes, scales, _up(_norms(residuals) + rounded), _up(_norms(decoded))


def _norms(rows: Doubles) -> Doubles:
    return np.asarray(np.sqrt(np.einsum("nd,nd->n", rows, rows)))


def _up(values: Doubles) -> Floats:
    """Rounded up, except for zero, which is exact."""
    return np.where(values > 0.0, round_up(values), np.float32(0.0))


def _largest(values: Floats, offsets: Integers) -> Floats:
    """The largest of values (n,) in each cluster: (k,), zero where a cluster is empty."""
    result = np.zeros(len(offsets) - 1, np.float32)
    filled = np.flatnonzero(np.diff(offsets) > 0)
    if len(filled):
        result[filled] = np.maximum.reduceat(values, offsets[filled])
    return result
