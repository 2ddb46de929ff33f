"""The rows of a weight matrix, in whatever type they are stored, as float32 blocks and float64 products."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_matrix_shape, check_vectors
from softindex.blas import blas_threads
from softindex.errors import CorruptIndexError, InputError
from softindex.kernels import double_dots, widen
from softindex.readers import read_file
from softindex.records import Doubles, Floats, Integers
from softindex.vectors import read

__all__ = ["Rows"]

BLOCK_VALUES = 1 << 22
SCANNED_VALUES = 1 << 16
"""Numbers converted at a time for a product: they are still in the cache when it reads them."""
MAX_VALUE = 1e12
"""Largest bfloat16 weight: bfloat16 has the range of float32, and dot products must not overflow it."""


class Rows:
    """Weights (n, d): float32 as they are, memory-mapped or not; float16 and bfloat16 are converted block by block.

    Rows that are not contiguous are copied once: reading columns would make every product many times slower.
    """

    __slots__ = ("array", "brain")

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.brain = array.dtype == np.uint16

    @classmethod
    def checked(cls, weights: Any) -> Rows:
        """Check what a caller passed: an array, a memmap, a tensor or a path; uint16 means bfloat16."""
        given = weights
        if isinstance(weights, (str, bytes, os.PathLike)) and os.fsdecode(weights).lower().endswith(".npy"):
            given = read_file(os.fsdecode(weights), want_ids=False).vectors
        if not (isinstance(given, np.ndarray) and given.dtype == np.uint16):
            found = read(weights, name="weights").vectors
            check_vectors(found, name="weights")
            return cls(found if found.flags.c_contiguous else np.ascontiguousarray(found))
        check_matrix_shape(given.shape, "weights")
        made = cls(given if given.flags.c_contiguous else np.ascontiguousarray(given))
        for begin, block in made.blocks():
            bad = ~np.isfinite(block).all(axis=1) | (np.abs(block).max(axis=1) > MAX_VALUE)
            if bad.any():
                row = begin + int(bad.argmax())
                raise InputError(
                    f"row {row} of the weights holds NaN, infinity or a number above 1e12; fix or rescale it."
                )
        return made

    @property
    def n(self) -> int:
        """Rows, one per class."""
        return len(self.array)

    @property
    def d(self) -> int:
        """Numbers in a row."""
        return int(self.array.shape[1])

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row."""
        return self.d * self.array.dtype.itemsize

    def widen(self, part: NDArray[Any]) -> Floats:
        """Rows as float32; exact, as every float16 and bfloat16 number is a float32 number."""
        if part.dtype == np.float32:
            return np.ascontiguousarray(part)
        return self._widen_into(part, np.empty(part.shape, np.float32))

    def _widen_into(self, part: NDArray[Any], wide: Floats) -> Floats:
        # NumPy converts float16 one number at a time, which takes ten times as long.
        widen(np.ascontiguousarray(part).view(np.uint16), self.brain, wide)
        return wide

    def blocks(self, values: int = BLOCK_VALUES) -> Iterator[tuple[int, Floats]]:
        """The rows as float32 in blocks of about this many values, each with the number of its first row."""
        step = max(1, values // self.d)
        for begin in range(0, self.n, step):
            yield begin, self.widen(self.array[begin : begin + step])

    def products(self, rows: Integers, query: Doubles, threads: int = 1) -> Doubles:
        """Dot products of the named rows with the query (d,), in float64; equal rows give equal products."""
        result, step = np.empty(len(rows)), max(1, BLOCK_VALUES // self.d)

        def fill(begin: int) -> None:
            here = np.ascontiguousarray(rows[begin : begin + step])
            if self.is_plain:
                double_dots(self.array, here, query, result[begin : begin + step])
            else:
                part = self.widen(self.array[here])
                double_dots(part, np.arange(len(part)), query, result[begin : begin + step])

        starts = range(0, len(rows), step)
        if threads > 1 and len(starts) > 1:
            # Each product is computed by one thread: the number of threads does not change any.
            with suppress(RuntimeError), ThreadPoolExecutor(max_workers=min(threads, len(starts))) as pool:
                list(pool.map(fill, starts))
                return _numbers(result)
            # The system refused to start a thread.
        for begin in starts:
            fill(begin)
        return _numbers(result)

    def scan(self, query: NDArray[Any], threads: int) -> Doubles:
        """Dot products (n,) of all rows with the query (d,), in float32, at the speed of BLAS."""
        narrow = np.asarray(query, np.float32)
        with blas_threads(threads):
            if self.is_plain:
                with np.errstate(all="ignore"):
                    return _numbers((self.array @ narrow).astype(np.float64))
            step = max(1, SCANNED_VALUES // self.d)
            result, buffer = np.empty(self.n), np.empty((step, self.d), np.float32)
            for begin in range(0, self.n, step):
                part = self.array[begin : begin + step]
                with np.errstate(all="ignore"):
                    result[begin : begin + step] = self._widen_into(part, buffer[: len(part)]) @ narrow
            return _numbers(result)

    @property
    def is_plain(self) -> bool:
        """Whether the kernels can read the array as it is."""
        return bool(self.array.dtype == np.float32 and self.array.flags.c_contiguous and self.array.flags.aligned)

    def scan_error(self) -> float:
        """Largest error of a product of `scan`, relative to the sum of |row_j query_j|, added in any order."""
        return (self.d + 4) * 2.0**-24


def _numbers(products: Doubles) -> Doubles:
    """The products, which are numbers unless a mapped file is damaged: no search for the best of NaN would end."""
    if not np.isfinite(products).all():
        raise CorruptIndexError("weights are not numbers: the layer is damaged; restore a copy or build it again.")
    return products
