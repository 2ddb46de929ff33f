"""Read NumPy's files: .npy stays on disk as a memmap; one array of an .npz is loaded."""

from __future__ import annotations

import math
import os
import zipfile
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from softindex.arguments import check_matrix_shape
from softindex.errors import InputError
from softindex.readers.tables import EXPANSION, Entry, Loaded, Request, choose


class Header(NamedTuple):
    """Shape and dtype of one member of an .npz file, read before its data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def entry(self) -> Entry:
        """Describe the member for an error message; an object array is a pickle and never a float matrix."""
        matrix = len(self.shape) == 2
        return Entry(
            f"{self.shape} {self.dtype}", matrix and self.dtype.kind == "f", matrix and self.dtype.kind in "iu"
        )


def read_npy(request: Request) -> Loaded:
    """Map an .npy file; its vectors keep their shape and dtype and are read from disk when used."""
    return Loaded(npy_format.open_memmap(request.path, mode="r"))


def read_npz(request: Request) -> Loaded:
    """Load one matrix of an .npz file into memory, and the array named "ids" when wanted."""
    with zipfile.ZipFile(request.path) as archive:
        members = {
            info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")
        }
        headers = {name: _read_header(archive, info) for name, info in members.items()}
        entries = {name: header.entry() for name, header in headers.items()}
        name = choose(request.path, entries, request.name)
        check_matrix_shape(headers[name].shape, f"the vectors {name!r} in {request.path}")
        vectors = _read_member(archive, members[name], headers[name])
        ids = None
        if request.want_ids and name != "ids" and "ids" in members:
            ids = _read_member(archive, members["ids"], headers["ids"])
    return Loaded(vectors, ids)


def _read_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Header:
    with archive.open(info) as member:
        version = npy_format.read_magic(member)
        # Version 3 only adds characters in field names, which a plain array does not have.
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, _, dtype = read(member)
    return Header(shape, dtype)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: Header) -> NDArray[Any]:
    if header.dtype.hasobject:
        raise InputError(
            f"{info.filename} in {archive.filename} is a pickled object array, which could run code when "
            "loaded; save it with a plain dtype such as int64 or 'U'."
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"{info.filename} in {archive.filename} is compressed in a way that NumPy does not write; save it with "
            "numpy.savez or numpy.savez_compressed."
        )
    # The directory of the archive may state any size; a compressed byte becomes at most so many.
    held = min(info.compress_size, os.path.getsize(str(archive.filename))) * EXPANSION
    if info.file_size > held:
        raise InputError(
            f"{info.filename} in {archive.filename} states {info.file_size} bytes, more than the file can hold; "
            "write the file again."
        )
    # Checked first, because NumPy allocates what the header claims before it reads any data.
    if math.prod(header.shape) * header.dtype.itemsize > info.file_size:
        raise InputError(f"{info.filename} in {archive.filename} is cut off; write the file again.")
    with archive.open(info) as member:
        array: NDArray[Any] = npy_format.read_array(member, allow_pickle=False)
    return array
