"""Items as 8-bit residuals about the mean of their cluster, and how much of them the eight bits lose."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.quantise import largest_by_cluster, quantise, round_up_lengths, row_norms
from softindex.records import Codes, Doubles, Floats, Integers, Report
from softindex.workers import workers

__all__ = ["encode"]

BLOCK_VALUES = 1 << 18
"""Values encoded at a time: two megabytes in float64, near enough to a core to be gone over ten times."""
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

    means (k, d) float32: the stored means, about which the residuals are taken.  What is said of the clusters holds for
    these rounded means and the rounded scales.
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

    with workers(threads) as pool:
        for done, _ in enumerate(pool.map(one, range(0, n, step)), 1):
            if report is not None and (done % 64 == 0 or done * step >= n):
                report("encoding", min(done * step, n), n)
    return Codes(codes, scales, largest_by_cluster(errors, offsets), largest_by_cluster(lengths, offsets))


def _encode_block(residuals: Doubles) -> tuple[Doubles, Floats, Floats, Floats]:
    """Codes, scales, lost lengths and lengths of residuals (m, d), which are overwritten."""
    # The residuals are rounded themselves, by so much at most, which no later step can see.
    rounded = 2.0**-52 * row_norms(residuals)
    codes, scales, decoded = quantise(residuals, LARGEST)
    residuals -= decoded
    return codes, scales, round_up_lengths(row_norms(residuals) + rounded), round_up_lengths(row_norms(decoded))
