"""Read a file of any supported format into an array, so that no other module knows about formats."""

from __future__ import annotations

import os
from collections.abc import Callable

from softindex.errors import InputError, SoftindexError
from softindex.readers.arrays import read_npy, read_npz
from softindex.readers.csv import read_csv
from softindex.readers.hdf5 import read_hdf5
from softindex.readers.parquet import read_parquet
from softindex.readers.safetensors import read_safetensors
from softindex.readers.tables import Loaded, Request
from softindex.readers.text import read_text
from softindex.readers.vecs import read_bvecs, read_fvecs

__all__ = ["Loaded", "read_file"]

NAMED: dict[str, Callable[[Request], Loaded]] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".parquet": read_parquet,
    ".hdf5": read_hdf5,
    ".h5": read_hdf5,
}
"""Formats with several arrays; `path::name` picks one."""

SINGLE: dict[str, Callable[[Request], Loaded]] = {
    ".npy": read_npy,
    ".fvecs": read_fvecs,
    ".bvecs": read_bvecs,
    ".csv": read_csv,
    ".txt": read_text,
    ".vec": read_text,
    ".txt.gz": read_text,
    ".vec.gz": read_text,
}
"""Formats with a single array."""


def read_file(source: str, *, want_ids: bool, want_queries: bool = False) -> Loaded:
    """Read the vectors at `path` or `path::name`, and the ids and queries stored beside them when wanted."""
    path, name = _split(source)
    readers = NAMED | SINGLE
    suffix = next((suffix for suffix in readers if path.lower().endswith(suffix)), None)
    if suffix is None:
        raise InputError(f"{path} has no format that softindex reads; expected one of {', '.join(readers)}.")
    if name is not None and suffix not in NAMED:
        raise InputError(f"a {suffix} file holds one array only; pass '{path}' without '::{name}'.")
    if not os.path.isfile(path):
        raise InputError(f"there is no file at {path}; check the path.")
    try:
        return readers[suffix](Request(path, name, want_ids, want_queries))
    # A note is an exception where the caller turned warnings into errors.
    except (SoftindexError, Warning):
        raise
    # The underlying libraries raise many types for a damaged file; the caller should need to catch only one.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{path} could not be read as {suffix} ({reason}); write the file again.") from error


def _split(source: str) -> tuple[str, str | None]:
    """Split `path::name`; if a file with this exact name exists, `::` is part of its name."""
    if "::" not in source or os.path.isfile(source):
        return source, None
    path, _, name = source.partition("::")
    if not name:
        raise InputError(f"{source} ends in '::' without a name; pass '{path}' or '{path}::name'.")
    return path, name
