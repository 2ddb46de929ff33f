"""Read .fvecs and .bvecs files, the formats of the classic nearest-neighbour benchmarks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from softindex.blocks import blocks, rows_per_block
from softindex.errors import InputError
from softindex.readers.tables import BLOCK_VALUES, Loaded, Request

WORD = 4
"""Bytes of the dimension that precedes each row."""

ByteRows = np.memmap[tuple[int, int], np.dtype[np.uint8]]


def read_fvecs(request: Request) -> Loaded:
    """Map rows of (int32 d, d float32), little-endian, as vectors (n, d) float32: a strided memmap."""
    rows = _map_rows(request.path, ".fvecs", value_bytes=4)
    return Loaded(rows.view("<f4")[:, 1:])


def read_bvecs(request: Request) -> Loaded:
    """Read rows of (int32 d, d uint8), little-endian, as vectors (n, d) float32 in memory, with values 0 to 255."""
    rows = _map_rows(request.path, ".bvecs", value_bytes=1)
    count, row_bytes = rows.shape
    vectors = np.empty((count, row_bytes - WORD), np.float32)
    for part in blocks(count, rows_per_block(BLOCK_VALUES, row_bytes)):
        vectors[part] = rows[part, WORD:]
    return Loaded(vectors)


def _map_rows(path: str, suffix: str, *, value_bytes: int) -> ByteRows:
    """Map the file as bytes (n, row bytes), one row per vector with its dimension in front, and check every row."""
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
            f"{path} has {size} bytes, which is not a multiple of a row of {dimensions} dimensions "
            f"({row_bytes} bytes); the file is cut off or not {suffix}: download it again."
        )
    rows: ByteRows = np.memmap(path, dtype=np.uint8, mode="r", shape=(size // row_bytes, row_bytes))
    _check_dimensions(path, suffix, rows, dimensions)
    return rows


def _check_dimensions(path: str, suffix: str, rows: ByteRows, expected: int) -> None:
    """Refuse a file whose rows have different dimensions: everything after such a row would be misread."""
    for part in blocks(len(rows), rows_per_block(BLOCK_VALUES, rows.shape[1])):
        # Copied, because rows of a .bvecs file need not start at a multiple of four bytes.
        heads: Any = np.ascontiguousarray(rows[part, :WORD]).view("<i4")[:, 0]
        wrong = np.flatnonzero(heads != expected)
        if len(wrong):
            raise InputError(
                f"row {part.start + int(wrong[0])} of {path} states {int(heads[wrong[0]])} dimensions but row 0 has "
                f"{expected}; every row of {_a(suffix)} file must have the same: download or write the file again."
            )


def _a(suffix: str) -> str:
    return f"an {suffix}" if suffix == ".fvecs" else f"a {suffix}"
