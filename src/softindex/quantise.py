"""Rows rounded to small integers times a scale, and how far that is from the rows."""

from __future__ import annotations

import numpy as np

from softindex.outward import round_up
from softindex.records import Doubles, Floats, Integers

__all__ = ["largest_by_cluster", "quantise", "round_up_lengths", "row_norms"]


def quantise(rows: Doubles, largest: int, *, clip: float = 1.0) -> tuple[Doubles, Floats, Doubles]:
    """Codes (m, d) within -largest .. largest, their float32 scales (m,), and scale * code (m, d), which is exact.

    The largest code stands for at least `clip` times the largest number of the row; with 1.0 no number is cut off.
    A row of zeros has the scale 0.
    """
    peaks = np.maximum(rows.max(axis=1), -rows.min(axis=1)) * clip
    scales = (peaks / largest).astype(np.float32)
    low = scales.astype(np.float64) * largest < peaks
    scales[low] = np.nextafter(scales[low], np.float32(np.inf))
    wide = scales.astype(np.float64)[:, None]
    codes = rows / np.where(wide > 0.0, wide, 1.0)
    np.rint(codes, out=codes)
    if clip < 1.0:
        np.clip(codes, -largest, largest, out=codes)
    # Exact: 24 bits of the scale times seven of the code.
    return codes, scales, codes * wide


def row_norms(rows: Doubles) -> Doubles:
    """Norms (m,) of rows (m, d), not below the true ones: float64 rounds each sum by less than is added here."""
    return np.asarray(np.sqrt(np.einsum("nd,nd->n", rows, rows)) * (1.0 + (rows.shape[1] + 4) * 2.0**-52))


def round_up_lengths(values: Doubles) -> Floats:
    """Rounded up to float32, but for zero: nothing was rounded there."""
    return np.where(values > 0.0, round_up(values), np.float32(0.0))


def largest_by_cluster(values: Floats, offsets: Integers) -> Floats:
    """The largest of values (n,) in each cluster: (k,), zero where a cluster is empty."""
    result = np.zeros(len(offsets) - 1, np.float32)
    filled = np.flatnonzero(np.diff(offsets) > 0)
    if len(filled):
        result[filled] = np.maximum.reduceat(values, offsets[filled])
    return result
