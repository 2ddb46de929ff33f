"""Coordinates in which float32 suffices for squared distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import blocks, rows_per_block
from softindex.records import Floats, Integers

__all__ = ["Frame", "fit_frame", "fit_frame_to"]

BLOCK_VALUES = 1 << 20
"""Values copied at a time."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Coordinates in which squared distances neither overflow float32 nor lose precision to a common offset.

    x becomes x * scale - centre.  The scale is a power of two and loses no accuracy.
    """

    scale: np.float32
    centre: Floats

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """Rows (m, d) float32 or float16 in these coordinates, as a new (m, d) float32 array."""
        framed = np.array(rows, dtype=np.float32, order="C", subok=False)
        # An item far longer than all sampled ones can overflow here; it then goes to an arbitrary cluster.
        with np.errstate(all="ignore"):
            framed *= self.scale
            framed -= self.centre
        return framed


def fit_frame(rows: NDArray[Any]) -> tuple[Frame, Floats]:
    """A frame fitted to the rows (m, d), and the rows in it as a new (m, d) float32 array."""
    return _fit(np.array(rows, dtype=np.float32, order="C", subok=False))


def fit_frame_to(vectors: NDArray[Any], chosen: Integers) -> tuple[Frame, Floats]:
    """The same for some rows (m,) of vectors, copied only once: they may be as large as all vectors together."""
    sample = np.empty((len(chosen), vectors.shape[1]), np.float32)
    for part in blocks(len(chosen), rows_per_block(BLOCK_VALUES, vectors.shape[1])):
        sample[part] = vectors[chosen[part]]
    return _fit(sample)


def _fit(sample: Floats) -> tuple[Frame, Floats]:
    peak = max(float(sample.max()), -float(sample.min()))
    scale = np.float32(2.0 ** -np.clip(np.frexp(peak)[1], -126, 126))
    sample *= scale
    centre = sample.mean(axis=0, dtype=np.float64).astype(np.float32)
    sample -= centre
    return Frame(scale, centre), sample
