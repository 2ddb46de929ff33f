"""Map tensors of .safetensors files, with a parser small enough to trust on any input."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_matrix_shape
from softindex.blocks import blocks, rows_per_block
from softindex.errors import InputError
from softindex.readers.tables import BLOCK_VALUES, Entry, Loaded, Request, choose

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The limit of the format itself; without it a damaged length could exhaust memory."""
MAX_AXES = 32
FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}
INTEGERS = {
    "I8": "i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
}
DTYPES = FLOATS | INTEGERS


class Tensor(NamedTuple):
    """The place of one tensor: `begin` and `size` in bytes, both inside the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


def read_safetensors(request: Request) -> Loaded:
    """Map one matrix, float32 or float16 (BF16 becomes float32 in memory), and on request the integers "ids"."""
    path = request.path
    with open(path, "rb") as file:
        tensors = _read_header(path, file)
    entries = {
        name: Entry(
            f"{tensor.shape} {tensor.dtype}",
            len(tensor.shape) == 2 and tensor.dtype in FLOATS,
            len(tensor.shape) == 2 and tensor.dtype in INTEGERS,
        )
        for name, tensor in tensors.items()
    }
    name = choose(path, entries, request.name)
    tensor = tensors[name]
    check_matrix_shape(tensor.shape, f"the vectors {name!r} in {path}")
    if tensor.dtype not in DTYPES:
        raise InputError(f"{name!r} in {path} is {tensor.dtype}; expected F32, F16 or BF16.")
    words = _map(path, name, tensor)
    vectors = _widen(words) if tensor.dtype == "BF16" else words
    ids = None
    if request.want_ids and name != "ids" and "ids" in tensors:
        if tensors["ids"].dtype not in INTEGERS:
            raise InputError(f"'ids' in {path} are {tensors['ids'].dtype}; expected integers such as I64.")
        ids = _map(path, "ids", tensors["ids"])
    return Loaded(vectors, ids)


def _read_header(path: str, file: BinaryIO) -> dict[str, Tensor]:
    """Parse the length and the JSON at the start of the file; every tensor returned lies inside the file."""
    file_bytes = os.fstat(file.fileno()).st_size
    header_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
    data_begin = LENGTH_BYTES + header_bytes
    if data_begin > file_bytes or header_bytes > MAX_HEADER_BYTES:
        raise InputError(
            f"{path} has {file_bytes} bytes but states a header of {header_bytes}; "
            "it is cut off or not .safetensors: download it again."
        )
    try:
        header = json.loads(file.read(header_bytes).decode("utf-8"))
    # Brackets nested a thousand deep exhaust the parser's recursion.
    except (ValueError, RecursionError) as error:
        raise InputError(f"the header of {path} is not JSON ({error}); download the file again.") from error
    if not isinstance(header, dict):
        raise InputError(f"the header of {path} is not a JSON object; download the file again.")
    header.pop("__metadata__", None)
    return {name: _parse_tensor(path, name, entry, data_begin, file_bytes) for name, entry in header.items()}


def _parse_tensor(path: str, name: str, entry: Any, data_begin: int, file_bytes: int) -> Tensor:
    fields: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    well_formed = (
        isinstance(dtype, str)
        and isinstance(shape, list)
        and len(shape) <= MAX_AXES
        and isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(number) is int and 0 <= number < 1 << 63 for number in shape + offsets)
    )
    if not well_formed:
        raise InputError(
            f"the header of {path} does not give dtype, shape and data_offsets of {name!r}; download the file again."
        )
    begin, end = offsets
    if begin > end or data_begin + end > file_bytes:
        raise InputError(f"{name!r} in {path} lies outside the file, which is cut off; download it again.")
    if dtype in DTYPES and math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize != end - begin:
        raise InputError(
            f"{name!r} in {path} is {tuple(shape)} {dtype} but has {end - begin} bytes; download the file again."
        )
    return Tensor(dtype, tuple(shape), data_begin + begin, end - begin)


def _map(path: str, name: str, tensor: Tensor) -> NDArray[Any]:
    if tensor.size == 0:
        raise InputError(f"{name!r} in {path} is empty; expected one entry per item.")
    dtype = np.dtype(DTYPES[tensor.dtype])
    mapped: NDArray[Any] = np.memmap(path, dtype=dtype, mode="r", offset=tensor.begin, shape=tensor.shape)
    # Most writers pad the header to align tensors, but the format does not require it, and the kernels do.
    return mapped if mapped.flags.aligned else np.array(mapped)


def _widen(words: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Convert bfloat16 bits (n, d) to float32, of which they are the upper half."""
    vectors = np.empty(words.shape, np.float32)
    bits = vectors.view(np.uint32)
    for part in blocks(len(words), rows_per_block(BLOCK_VALUES, words.shape[1])):
        np.left_shift(words[part], 16, out=bits[part], dtype=np.uint32)
    return vectors
