"""Items in four bits per number, sixteen side by side: a scan of them proves which few can be among the best."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import blocks, rows_per_block
from softindex.outward import round_up
from softindex.records import Floats, Integers, Report, Sketch
from softindex.workers import workers

__all__ = ["draw_sketch"]

BLOCK_VALUES = 1 << 18
"""Values coded at a time: one megabyte in float32, near enough to a core to be gone over ten times."""
ITEMS = 16
"""Items in a block."""
HALF = 7.5
"""A code u in 0 .. 15 stands for u - 7.5 steps."""
WORKING_BYTES = 32 << 20
"""Memory that the blocks of all threads may take; more where the vectors themselves take much more."""
SMALLEST = np.float32(2.0**-100)
"""Scale of residuals that are too small for exact arithmetic in float32."""


def draw_sketch(
    vectors: Floats, offsets: Integers, means: Floats, *, threads: int, report: Report | None = None
) -> Sketch:
    """Code every item.  vectors (n, d) float32 in cluster order; cluster c is rows offsets[c] .. offsets[c + 1].

    means (k, d) float32: the stored means, about which the residuals are taken.
    """
    n, d = vectors.shape
    groups, count = -(-d // 8), -(-n // ITEMS)
    values = np.zeros((count, groups, 4 * ITEMS), np.uint8)
    scales = np.zeros((count, ITEMS), np.float32)
    errors, lengths = np.zeros(len(means), np.float32), np.zeros(len(means), np.float32)
    per_item = np.zeros((2, count * ITEMS), np.float32)
    step = rows_per_block(BLOCK_VALUES, d, least=ITEMS) // ITEMS * ITEMS

    def one(rows: slice) -> None:
        clusters = np.searchsorted(offsets, np.arange(rows.start, rows.stop), side="right") - 1
        residuals = means[clusters]
        np.subtract(vectors[rows], residuals, out=residuals)
        codes, steps, per_item[0, rows], per_item[1, rows] = _code(residuals)
        first, last = rows.start // ITEMS, -(-rows.stop // ITEMS)
        scales.reshape(-1)[rows] = steps
        values[first:last] = _pack(codes, groups)

    # Sixteen wide items are a large block: fewer threads then hold one at the same time.
    room = max(WORKING_BYTES, vectors.nbytes // 8)
    with workers(max(1, min(threads, room // (3 * 4 * step * d)))) as pool:
        for done, _ in enumerate(pool.map(one, blocks(n, step)), 1):
            if report is not None and (done % 64 == 0 or done * step >= n):
                report("sketching", min(done * step, n), n)
    filled = np.flatnonzero(np.diff(offsets) > 0)
    errors[filled] = np.maximum.reduceat(per_item[0, :n], offsets[filled])
    lengths[filled] = np.maximum.reduceat(per_item[1, :n], offsets[filled])
    return Sketch(values, scales, errors, lengths)


def _code(residuals: Floats) -> tuple[NDArray[np.uint8], Floats, Floats, Floats]:
    """Codes (m, d), scales (m,), and in steps of the scale: distances from what the codes stand for, and lengths.

    The residuals are overwritten: sixteen wide items take more memory than a block of others.
    """
    d = residuals.shape[1]
    peaks = np.maximum(residuals.max(axis=1), -residuals.min(axis=1))
    scales = np.where(peaks > 0, np.maximum(peaks / np.float32(HALF), SMALLEST), np.float32(0.0))
    steps = np.divide(residuals, np.where(scales > 0, scales, np.float32(1.0))[:, None], out=residuals)
    coded = np.floor(steps)
    coded += 8
    np.clip(coded, 0, 15, out=coded)
    codes = coded.astype(np.uint8)
    coded -= np.float32(HALF)
    steps -= coded
    # Numbers of at most 7.5 steps that were rounded three times: the residual, the quotient and this difference.
    lost = (d**0.5) * HALF * 2.0**-22
    sums = 1 + (d + 16) * 2.0**-23
    errors = np.where(scales > 0, round_up(np.sqrt(np.einsum("nd,nd->n", steps, steps)) * sums + lost), 0)
    lengths = round_up(np.sqrt(np.einsum("nd,nd->n", coded, coded)) * sums)
    return codes, scales, errors.astype(np.float32), lengths


def _pack(codes: NDArray[np.uint8], groups: int) -> NDArray[np.uint8]:
    """Blocks (m / 16, groups, 64); see `Sketch`."""
    m, d = codes.shape
    count = -(-m // ITEMS)
    padded = np.zeros((count * ITEMS, groups * 8), np.uint8)
    padded[:m, :d] = codes
    halves = padded.reshape(count, ITEMS, groups, 2, 4)
    both = halves[:, :, :, 0] | (halves[:, :, :, 1] << 4)
    return np.ascontiguousarray(both.transpose(0, 2, 1, 3)).reshape(count, groups, 4 * ITEMS)
