"""Checksums of the blocks of large blobs: made when they are written, compared when they are first read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from softindex.errors import CorruptIndexError
from softindex.kernels import Guard, block_sums
from softindex.store.format import BLOCK_BYTES

__all__ = ["BlockSums", "check"]


class BlockSums:
    """Sums the blocks of a file of so many bytes while its chunks pass by."""

    def __init__(self, size: int) -> None:
        self.sums: NDArray[np.uint64] = np.zeros(-(-size // BLOCK_BYTES), np.uint64)
        """One per block; complete once all chunks have passed."""

    def add_all(self, chunks: Iterable[memoryview]) -> Iterator[memoryview]:
        """The chunks, unchanged."""
        rest, done = np.empty(0, np.uint8), 0
        for chunk in chunks:
            part = np.frombuffer(chunk, np.uint8)
            if len(rest):
                # A block across two chunks; no more than that is copied.
                missing = BLOCK_BYTES - len(rest)
                rest, part = np.concatenate([rest, part[:missing]]), part[missing:]
                done = self._add(rest, done)
            if len(rest) in (0, BLOCK_BYTES):
                whole = len(part) // BLOCK_BYTES * BLOCK_BYTES
                done = self._add(part[:whole], done)
                # Copied: the next chunk overwrites this one.
                rest = part[whole:].copy()
            yield chunk
        block_sums(rest, BLOCK_BYTES, self.sums[done:])

    def _add(self, data: NDArray[np.uint8], done: int) -> int:
        """Sum the full blocks of the data, the first being number `done`; returns the number of the next."""
        count = len(data) // BLOCK_BYTES
        block_sums(data[: count * BLOCK_BYTES], BLOCK_BYTES, self.sums[done : done + count])
        return done + count


def check(guards: Mapping[str, Guard], names: Iterable[str] | None = None) -> None:
    """Compare these arrays (all when None) with their checksums, as far as that was not done before."""
    for name in guards if names is None else names:
        if name in guards:
            try:
                guards[name].check_all()
            except RuntimeError as error:
                raise CorruptIndexError(
                    f"the index is damaged ({error}); run softindex verify on it, restore a copy or build it again."
                ) from error
