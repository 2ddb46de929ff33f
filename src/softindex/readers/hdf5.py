"""Read HDF5 files, ann-benchmarks data sets in particular, in blocks into one array."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from softindex.arguments import check_matrix_shape
from softindex.blocks import blocks, rows_per_block
from softindex.errors import InputError
from softindex.notes import note_rounded
from softindex.readers.tables import (
    BLOCK_VALUES,
    EXPANSION,
    Entry,
    Loaded,
    Request,
    choose,
    need,
)


def read_hdf5(request: Request) -> Loaded:
    """Read one float dataset (n, d), and on request the dataset "ids" and the queries of an ann-benchmarks file.

    float16 stays float16; everything else becomes float32 (float64 is rounded).
    """
    h5py = need("h5py", request.path)
    with h5py.File(request.path, "r") as file:
        datasets: dict[str, Any] = {}

        def collect(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                datasets[name] = item

        file.visititems(collect)
        entries = {
            name: Entry(
                f"{item.shape} {item.dtype}",
                item.ndim == 2 and item.dtype.kind == "f",
                item.ndim == 2 and item.dtype.kind in "iu",
            )
            for name, item in datasets.items()
        }
        wanted = None if request.name is None else request.name.strip("/")
        name = choose(request.path, entries, wanted)
        what = f"the vectors {name!r} in {request.path}"
        vectors = _read_blocks(datasets[name], what, request.path)
        ids = None
        if request.want_ids and name != "ids" and "ids" in datasets:
            stored = datasets["ids"]
            _check_stored(stored, f"the ids in {request.path}", request.path)
            # h5py returns strings as bytes unless asstr decodes them.
            ids = stored[()] if h5py.check_string_dtype(stored.dtype) is None else stored.asstr()[()]
        queries = _read_queries(request, datasets, name) if request.want_queries else None
    return Loaded(vectors, ids, queries)


def _read_queries(request: Request, datasets: dict[str, Any], name: str) -> np.ndarray[Any, Any] | None:
    """The dataset "test" of an ann-benchmarks file, (m, d) floats; None where the file is not one."""
    test = datasets.get("test")
    if name != "train" or test is None or test.dtype.kind != "f" or (test.shape or ())[1:] != datasets[name].shape[1:]:
        return None
    return _read_blocks(test, f"the queries 'test' in {request.path}", request.path)


def _check_stored(dataset: Any, what: str, path: str) -> None:
    """Refuse a dataset that is not in this file, or larger than the file can hold: rows never written read as zeros."""
    if dataset.external or dataset.is_virtual:
        raise InputError(f"{what} are stored in other files, which are not read; copy them into one dataset.")
    size = math.prod(dataset.shape or ()) * dataset.dtype.itemsize
    # A damaged file may list one chunk many times: it holds no more than its own bytes.
    held = min(dataset.id.get_storage_size(), os.path.getsize(path))
    filtered = dataset.id.get_create_plist().get_nfilters() > 0
    if size > held * (EXPANSION if filtered else 1):
        raise InputError(
            f"{what} have shape {dataset.shape} but only {held} bytes of them were written; write the file again."
        )


def _read_blocks(dataset: Any, what: str, path: str) -> np.ndarray[Any, Any]:
    if dataset.dtype.kind not in "fiu":
        raise InputError(f"{what} are {dataset.dtype}; expected floats: store them as float32 or float16.")
    # A dataset without a dataspace has no shape at all.
    check_matrix_shape(dataset.shape or (), what)
    _check_stored(dataset, what, path)
    rows, dimensions = dataset.shape
    block_rows = rows_per_block(BLOCK_VALUES, dimensions)
    if dataset.chunks is not None:
        # A multiple of the chunk size: a chunk across two blocks would be decompressed twice.
        block_rows = -(-block_rows // dataset.chunks[0]) * dataset.chunks[0]
    half = dataset.dtype.kind == "f" and dataset.dtype.itemsize == 2
    vectors = np.empty(dataset.shape, np.float16 if half else np.float32)
    if not half and dataset.dtype.newbyteorder("=") != np.float32:
        note_rounded(what, dataset.dtype.name)
    for part in blocks(rows, block_rows):
        dataset.read_direct(vectors, part, part)
    return vectors
