"""Read .fvecs, the format of the classic nearest-neighbour benchmarks, without loading it."""

from __future__ import annotations

import os

import numpy as np

from softindex.errors import InputError
from softindex.readers.contents import BLOCK_VALUES, Loaded, Request

WORD = 4
"""Bytes of the dimension before each row, and of each value."""


def read_fvecs(request: Request) -> Loaded:
    """Map rows of (int32 d, d float32), little-endian.  Returns vectors (n, d) float32, a strided memmap."""
    path = request.path
    size = os.path.getsize(path)
    if size < 2 * WORD:
        raise InputError(f"{path} has {size} bytes; expected at least one row of an .fvecs file.")
    with open(path, "rb") as file:
        dimensions = int.from_bytes(file.read(WORD), "little", signed=True)
    if dimensions < 1:
        raise InputError(f"{path} starts with dimension {dimensions}; expected 1 or more in an .fvecs file.")
    row_bytes = WORD * (1 + dimensions)
    if size % row_bytes:
        raise InputError(
            f"{path} has {size} bytes, which is no whole number of rows of {dimensions} dimensions "
            f"({row_bytes} bytes each); the file is cut off or not .fvecs: fetch it again."
        )
    words = np.memmap(path, dtype="<i4", mode="r", shape=(size // row_bytes, 1 + dimensions))
    _check_dimensions(path, words, dimensions)
    return Loaded(words.view("<f4")[:, 1:])


def _check_dimensions(path: str, words: np.memmap[tuple[int, int], np.dtype[np.int32]], expected: int) -> None:
    """Refuse a file whose rows disagree about their dimension: everything after such a row is misread."""
    block_rows = max(1, BLOCK_VALUES // words.shape[1])
    for start in range(0, len(words), block_rows):
        wrong = np.flatnonzero(words[start : start + block_rows, 0] != expected)
        if len(wrong):
            row = start + int(wrong[0])
            raise InputError(
                f"row {row} of {path} states {int(words[row, 0])} dimensions but row 0 has {expected}; "
                "every row of an .fvecs file must have the same: fetch or write the file again."
            )
