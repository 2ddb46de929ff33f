"""Vectors to measure on: the paper's two synthetic sets by name, and your own files by path."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_count, check_matrix_shape, check_seed
from softindex.blocks import blocks, rows_per_block
from softindex.errors import InputError, show
from softindex.records import Floats, Ids
from softindex.vectors import read

__all__ = ["NAMES", "Dataset", "fill_synth", "open_dataset", "synth_balanced", "synth_unbalanced"]

NOISE = 0.1
SPREAD = 0.8
"""Standard deviation of the logarithms of the group sizes."""
BLOCK_VALUES = 1 << 20
"""Values generated at a time: 4 MB of float32 stays near the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A set of item vectors, with ids and queries where it has them."""

    name: str
    vectors: Floats
    """(n, d) float32, possibly a memmap."""
    ids: Ids | None
    """(n,) int64 or str; None means row numbers."""
    queries: Floats | None
    """(m, d) float32 where the set has its own queries, as ann-benchmarks files do."""
    source: str
    """One line on its origin and licence."""


def synth_balanced(n: int = 1_000_000, *, d: int = 100, groups: int = 1024, seed: int = 0) -> Dataset:
    """The paper's synth-balanced set: groups of equal size around means on the unit sphere.

    Each vector is the mean of its group plus 0.1 times standard normal noise, not normalised, in random order.  Group
    sizes differ by at most one.

    Args:
        n: Number of items.
        d: Dimensions.
        groups: Number of groups.
        seed: The same seed gives the same vectors.

    Returns:
        A data set with vectors (n, d) float32.
    """
    return _synth("synth-balanced", n, d, groups, seed, balanced=True)


def synth_unbalanced(n: int = 1_000_000, *, d: int = 100, groups: int = 1024, seed: int = 0) -> Dataset:
    """The paper's synth-unbalanced set: as synth-balanced, but with groups of very different size.

    Sizes are multinomial with weights exp(0.8 Z), Z standard normal.

    Args:
        n: Number of items.
        d: Dimensions.
        groups: Number of groups.
        seed: The same seed gives the same vectors.

    Returns:
        A data set with vectors (n, d) float32.
    """
    return _synth("synth-unbalanced", n, d, groups, seed, balanced=False)


def _synth(name: str, n: int, d: int, groups: int, seed: int, *, balanced: bool) -> Dataset:
    shape = check_count(n, "n"), check_count(d, "d")
    try:
        vectors = np.empty(shape, np.float32)
    except (MemoryError, ValueError) as error:
        raise InputError(f"{n} vectors of {d} numbers do not fit into memory; pass a smaller n or d.") from error
    fill_synth(vectors, balanced=balanced, groups=groups, seed=seed)
    source = f"generated as by Bendada and Salha-Galvan (2026), {groups} groups, seed {seed}; no licence needed"
    return Dataset(name, vectors, None, None, source)


def fill_synth(out: NDArray[Any], *, balanced: bool, groups: int = 1024, seed: int = 0) -> None:
    """Write synth-balanced or synth-unbalanced into an array or memmap, block by block.

    Needs 4 bytes per item and a few MB beside `out`.

    Args:
        out: Float array (n, d) to fill.
        balanced: True for synth-balanced, False for synth-unbalanced.
        groups: Number of groups.
        seed: The same seed gives the same vectors in any array.
    """
    check_matrix_shape(out.shape, "the vectors to fill")
    if out.dtype.kind != "f":
        raise InputError(f"the vectors to fill are {out.dtype}; expected floats: pass an array of float32.")
    rows, dimensions = out.shape
    check_count(groups, "groups")
    rng = np.random.default_rng(check_seed(seed))
    means, group = _plan(rng, rows, dimensions, groups, balanced=balanced)
    for part in blocks(rows, rows_per_block(BLOCK_VALUES, dimensions)):
        members = group[part]
        block = rng.standard_normal((len(members), dimensions), dtype=np.float32)
        block *= NOISE
        block += means[members]
        out[part] = block


def _plan(
    rng: np.random.Generator, rows: int, dimensions: int, groups: int, *, balanced: bool
) -> tuple[Floats, NDArray[np.int32]]:
    """The means (groups, d), uniform on the unit sphere, and the group (n,) of every item, in random order.

    Keep the order of the random draws: published measurements depend on it.
    """
    means = rng.standard_normal((groups, dimensions), dtype=np.float32)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    weights = np.exp(SPREAD * rng.standard_normal(groups))
    sizes = rng.multinomial(rows, weights / weights.sum())
    numbers = np.arange(groups, dtype=np.int32)
    group = np.resize(numbers, rows) if balanced else np.repeat(numbers, sizes)
    rng.shuffle(group)
    return means, group


NAMES: dict[str, Callable[..., Dataset]] = {"synth-balanced": synth_balanced, "synth-unbalanced": synth_unbalanced}
"""The sets that have a name; they can have any number of items."""


def open_dataset(name_or_path: str | os.PathLike[str]) -> Dataset:
    """The data set with this name, or the vectors in a file.

    A name takes precedence over a file with the same name: write "./synth-balanced" for the file.

    Args:
        name_or_path: "synth-balanced", "synth-unbalanced", or any path that `softindex.build` reads, `path::name`
            included.  In an ann-benchmarks file "train" holds the items and "test" the queries.

    Returns:
        The data set.  float16 becomes float32; .npy, .safetensors and .fvecs files of float32 stay on disk.

    Raises:
        InputError: When there is no such name or the file cannot be read.
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise InputError(f"{show(name_or_path)} is neither a name nor a path; {_expected()}.")
    path = os.fsdecode(name_or_path)
    if path in NAMES:
        return NAMES[path]()
    if not os.path.exists(path) and not os.path.splitext(path)[1]:
        raise InputError(f"there is no data set named {show(path)}; {_expected()}.")
    source = read(path, want_queries=True)
    queries = None if source.queries is None else np.asarray(source.queries, np.float32)
    # asanyarray keeps a memmap a memmap.
    vectors = np.asanyarray(source.vectors, np.float32)
    return Dataset(
        os.path.basename(path), vectors, source.ids, queries, f"the file {path}; for its licence ask its owner"
    )


def _expected() -> str:
    return f"expected {', '.join(NAMES)}, or the path of a file of vectors such as items.npy"
