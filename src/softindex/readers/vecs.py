"""Read .fvecs and .bvecs, the formats of the classic nearest-neighbour benchmarks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from softindex.errors import InputError
from softindex.readers.tables import BLOCK_VALUES, Loaded, Request

WORD = 4
"""Bytes of the dimension before each row."""

ByteRows = np.memmap[tuple[int, int], np.dtype[np.uint8]]


def read_fvecs(request: Request) -> Loaded:
    """Map rows of (int32 d, d float32), little-endian.  Returns vectors (n, d) float32, a strided memmap."""
    rows = _map_rows(request.path, ".fvecs", value_bytes=4)
    return Loaded(rows.view("<f4")[:, 1:])


def read_bvecs(request: Request) -> Loaded:
    """Read rows of (int32 d, d uint8), little-endian.  Returns vectors (n, d) float32 in memory, values 0 to 255."""
    rows = _map_rows(request.path, ".bvecs", value_bytes=1)
    count, row_bytes = rows.shape
    vectors = np.empty((count, row_bytes - WORD), np.float32)
    block_rows = max(1, BLOCK_VALUES // row_bytes)
    for start in range(0, count, block_rows):
        vectors[start : start + block_rows] = rows[start : start + block_rows, WORD:]
    return Loaded(vectors)


def _map_rows(path: str, suffix: str, *, value_bytes: int) -> ByteRows:
    """Map the file as bytes (n, row bytes), one row per vector with its dimension in front, and check them all."""
    size = os.path.getsize(path)
    if size < WORD + value_bytes:
        raise InputError(f"{path} has {size} bytes; expected at least one row of {_a(suffix)} file.")
    with open(path, "rb") as file:
        dimensions = int.from_bytes(file.read(WORD), "little", signed=True)
    if dimensions < 1:
        raise InputError(f"{path} starts with dimension {dimensions}; expected 1 or more in {_a(suffix)} file.")
    row_bytes = WORD + value_bytes * dimensions
    if size % row_bytes:
        raise InputError(
            f"{path} has {size} bytes, which is no whole number of rows of {dimensions} dimensions "
            f"({row_bytes} bytes each); the file is cut off or not {suffix}: fetch it again."
        )
    rows: ByteRows = np.memmap(path, dtype=np.uint8, mode="r", shape=(size // row_bytes, row_bytes))
    _check_dimensions(path, suffix, rows, dimensions)
    return rows


def _check_dimensions(path: str, suffix: str, rows: ByteRows, expected: int) -> None:
    """Refuse a file whose rows disagree about their dimension: everything after such a row is misread."""
    block_rows = max(1, BLOCK_VALUES // rows.shape[1])
    for start in range(0, len(rows), block_rows):
        # Copied, as the rows of a .bvecs file need not begin at a multiple of four bytes.
        heads: Any = np.ascontiguousarray(rows[start : start + block_rows, :WORD]).view("<i4")[:, 0]
        wrong = np.flatnonzero(heads != expected)
        if len(wrong):
            raise InputError(
                f"row {start + int(wrong[0])} of {path} states {int(heads[wrong[0]])} dimensions but row 0 has "
                f"{expected}; every row of {_a(suffix)} file must have the same: fetch or write the file again."
            )


def _a(suffix: str) -> str:
    return f"an {suffix}" if suffix == ".fvecs" else f"a {suffix}"
