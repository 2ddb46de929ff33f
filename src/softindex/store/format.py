"""The manifest of a saved directory: its only encoding, and the check that rejects all other bytes."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from softindex.errors import CorruptIndexError, FormatVersionError, InputError, NotAnIndexError
from softindex.records import FORMAT_VERSION, Json, Stored

FORMAT: Final = "softindex"
MANIFEST_NAME: Final = "manifest.json"
BLOB_SUFFIX: Final = ".bin"
ALIGNMENT: Final = 64
"""A blob is padded to a multiple of this, by at least this: the widest vector load is 64 bytes."""
EAGER_BYTES: Final = 16 * 2**20
"""Every load verifies the SHA-256 of blobs up to this size; larger ones are verified in blocks, when first read."""
BLOCK_BYTES: Final = 2**17
"""Bytes of a block of a large blob that has a checksum of its own."""
SUMS_SUFFIX: Final = ".sums"
"""The checksums of the blocks of a large blob are a blob of their own, named like it."""
MANIFEST_BYTES: Final = 2**20
"""A longer manifest is neither written nor read: parsed JSON takes many times its size in memory."""

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    name: np.dtype(name).newbyteorder("<") for name in ("bool", *_INTEGERS, "float16", "float32", "float64")
}
"""The element types a blob may hold, all little-endian; none of them can carry code."""

_NAME = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*")
_NAME_LENGTH = 100
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
# NumPy 1 allows 32 axes, NumPy 2 allows 64; each must be able to read what the other writes.
_AXES = 32
_NESTING = 32
_PENDING = "0" * 64


@dataclass(frozen=True, slots=True)
class Blob:
    """One array on disk: `<name>.bin`, raw, little-endian, C order, followed by zero padding."""

    name: str
    dtype: str
    """A key of DTYPES."""
    shape: tuple[int, ...]
    """() is a single number; any axis may be 0."""
    bytes: int
    """The size of the file, padding included."""
    checksum: str
    """SHA-256 of the entire file, padding included, in hexadecimal."""

    @property
    def file_name(self) -> str:
        """The name of the blob's file inside the saved directory."""
        return self.name + BLOB_SUFFIX


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything in a saved directory except the elements of its arrays."""

    kind: str
    parameters: Json
    blobs: tuple[Blob, ...]
    version: int = FORMAT_VERSION
    block_bytes: int | None = None
    """Size of the blocks whose checksums are stored; None in older saves and where no blob is large."""

    @property
    def sums(self) -> dict[str, str]:
        """Large blobs by the blob that holds the checksums of their blocks."""
        return {} if self.block_bytes is None else {_sums(blob): blob.name for blob in self.blobs if _is_large(blob)}

    @property
    def bytes(self) -> int:
        """The size of all blobs together, padding included."""
        return sum(blob.bytes for blob in self.blobs)


@dataclass(frozen=True, slots=True)
class BlobCheck:
    """One blob that was read from end to end."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    ok: bool
    """Whether the checksum is the stated one."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The contents of a saved directory after every byte was checked."""

    kind: str
    version: int
    parameters: Json
    blobs: tuple[BlobCheck, ...]


def _is_large(blob: Blob) -> bool:
    return blob.bytes > EAGER_BYTES and not blob.name.endswith(SUMS_SUFFIX)


def _sums(blob: Blob) -> str:
    return blob.name + SUMS_SUFFIX


def _block_count(blob: Blob, block_bytes: int) -> int:
    return -(-blob.bytes // block_bytes)


def padded_bytes(data_bytes: int) -> int:
    """The size of a file with data_bytes of data: a multiple of ALIGNMENT, with at least ALIGNMENT of padding."""
    return -(-data_bytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT


def draft(stored: Stored) -> Manifest:
    """The manifest of `stored`, with zeros as checksums; InputError where it cannot be saved."""
    try:
        _check_name(stored.kind)
        parameters = _plain(stored.parameters, "parameters", _NESTING)
        if not isinstance(parameters, dict):
            raise ValueError("parameters must be a mapping")
        blobs = tuple(_describe(name, array) for name, array in stored.arrays.items())
        large = [blob for blob in blobs if _is_large(blob)]
        blobs += tuple(_describe(_sums(blob), np.empty(_block_count(blob, BLOCK_BYTES), np.uint64)) for blob in large)
        _check_distinct(blobs)
        manifest = Manifest(stored.kind, parameters, blobs, stored.version, BLOCK_BYTES if large else None)
        size = len(encode(manifest))
    except ValueError as error:
        raise InputError(f"this cannot be saved: {error}.") from error
    if size > MANIFEST_BYTES:
        raise InputError(
            f"the parameters and array names take {size} bytes as JSON, but a manifest has at most "
            f"{MANIFEST_BYTES}; store long lists as arrays."
        )
    return manifest


def encode(manifest: Manifest) -> bytes:
    """The bytes of manifest.json: ASCII JSON, indented, keys sorted.  A manifest has exactly one encoding."""
    return b"".join(_pieces(manifest))


def decode(data: bytes, *, place: str) -> Manifest:
    """The manifest whose encoding is exactly `data`; `place` names the directory in errors.

    Raises:
        NotAnIndexError: When another program wrote it.
        FormatVersionError: When a newer softindex wrote it.
        CorruptIndexError: When any byte differs from what `encode` gives.
    """
    document = _parse(data, place)
    stated = document.pop("checksum", None)
    try:
        sound = stated == _checksum(document)
    except (ValueError, RecursionError):
        sound = False
    _check_version(document, place, sound=sound)
    if not sound:
        raise _damaged(place, "its checksum does not match its content")
    try:
        manifest = _manifest(document)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(place, f"it states something impossible ({error})") from error
    if not _is_encoding(data, manifest):
        raise _damaged(place, "it is not written the way softindex writes it")
    return manifest


def blob_chunks(array: NDArray[Any], blob: Blob, *, chunk: int) -> Iterator[memoryview]:
    """The bytes of the blob's file, at most `chunk` at a time; the next chunk overwrites the last.

    Where the array is not contiguous and little-endian, only one chunk of it is copied at a time.
    """
    dtype = DTYPES[blob.dtype]
    options: dict[str, Any] = {
        "flags": ["external_loop", "buffered", "zerosize_ok"],
        "op_flags": [["readonly", "contig"]],
        "op_dtypes": [dtype],
        "order": "C",
        "casting": "equiv",
        "buffersize": chunk // dtype.itemsize,
    }
    pieces: Any = np.nditer(array, **options)
    for piece in pieces:
        yield memoryview(piece.view(np.uint8))
    yield memoryview(bytes(blob.bytes - array.nbytes))


def is_ours(data: bytes) -> bool:
    """Whether softindex wrote this manifest, in any version, even if it was damaged since."""
    return f'"format": "{FORMAT}"'.encode() in data


def _document(manifest: Manifest) -> dict[str, Any]:
    blobs = [
        {
            "name": blob.name,
            "dtype": blob.dtype,
            "shape": list(blob.shape),
            "bytes": blob.bytes,
            "checksum": blob.checksum,
        }
        for blob in manifest.blobs
    ]
    blocks = {} if manifest.block_bytes is None else {"block_bytes": manifest.block_bytes}
    return {
        "format": FORMAT,
        "version": manifest.version,
        "kind": manifest.kind,
        "parameters": manifest.parameters,
        "blobs": blobs,
        **blocks,
    }


def _checksum(document: Mapping[str, Any]) -> str:
    """SHA-256 of the document in compact canonical JSON, without its own checksum."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _pieces(manifest: Manifest) -> Iterator[bytes]:
    document = _document(manifest)
    document["checksum"] = _checksum(document)
    for piece in json.JSONEncoder(indent=2, sort_keys=True, allow_nan=False).iterencode(document):
        yield piece.encode("ascii")
    yield b"\n"


def _is_encoding(data: bytes, manifest: Manifest) -> bool:
    """Compare in pieces: with hostile nesting the full text would be far longer than `data`."""
    position = 0
    try:
        for piece in _pieces(manifest):
            if not data.startswith(piece, position):
                return False
            position += len(piece)
    except (ValueError, RecursionError):
        return False
    return position == len(data)


def _damaged(place: str, reason: str) -> CorruptIndexError:
    return CorruptIndexError(
        f"the manifest of {place} is damaged: {reason}; restore the directory from a copy or build it again."
    )


def _parse(data: bytes, place: str) -> dict[str, Any]:
    if len(data) > MANIFEST_BYTES:
        raise _damaged(place, f"it is longer than {MANIFEST_BYTES} bytes, the most that softindex writes")
    try:
        document = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise _damaged(place, "it is not JSON") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise NotAnIndexError(
            f'{place} holds a manifest.json that softindex did not write ("format": "softindex" is missing); '
            "pass the path of a saved index."
        )
    return document


def _check_version(document: Mapping[str, Any], place: str, *, sound: bool) -> None:
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise _damaged(place, "its version is not a positive integer")
    if version > FORMAT_VERSION:
        # A later format may compute its checksum differently, so a mismatch proves nothing: mention both.
        doubt = "" if sound else " (its checksum does not match either: it may be damaged instead)"
        raise FormatVersionError(
            f"{place} was saved in format version {version} but this softindex reads versions up to "
            f"{FORMAT_VERSION}{doubt}; upgrade softindex to load it."
        )


def _manifest(document: Mapping[str, Any]) -> Manifest:
    kind, parameters, entries = document["kind"], document["parameters"], document["blobs"]
    _check_name(kind)
    if not isinstance(parameters, dict) or not isinstance(entries, list):
        raise TypeError("parameters must be an object and blobs a list")
    blobs = tuple(_blob(entry) for entry in entries)
    _check_distinct(blobs)
    manifest = Manifest(kind, parameters, blobs, document["version"], document.get("block_bytes"))
    _check_blocks(manifest)
    return manifest


def _check_blocks(manifest: Manifest) -> None:
    """Every large blob has the checksums of its blocks, where there are any."""
    size = manifest.block_bytes
    if size is None:
        return
    if type(size) is not int or size < ALIGNMENT or size % ALIGNMENT:
        raise ValueError("block_bytes is not a multiple of 64")
    found = {blob.name: (blob.dtype, blob.shape) for blob in manifest.blobs}
    large = [blob for blob in manifest.blobs if _is_large(blob)]
    for blob in large:
        if found.get(_sums(blob)) != ("uint64", (_block_count(blob, size),)):
            raise ValueError(f"{blob.name} has no checksums of its blocks")
    if not large:
        raise ValueError("it has block_bytes, but no array is large")


def _blob(entry: Mapping[str, Any]) -> Blob:
    """One entry of the manifest, fully checked, so that later stages can rely on it."""
    name, dtype, shape, checksum = entry["name"], entry["dtype"], entry["shape"], entry["checksum"]
    _check_name(name)
    if dtype not in DTYPES:
        raise ValueError(f"{name} has the unknown dtype {str(dtype)[:_NAME_LENGTH]}")
    if not isinstance(shape, list):
        raise TypeError(f"the shape of {name} is not a list")
    if not isinstance(checksum, str) or not _CHECKSUM.fullmatch(checksum):
        raise ValueError(f"the checksum of {name} is not 64 hexadecimal digits")
    size = padded_bytes(_data_bytes(name, dtype, shape))
    if type(entry["bytes"]) is not int or entry["bytes"] != size:
        raise ValueError(f"{name} needs {size} bytes for its shape and dtype but another size is stated")
    return Blob(name, dtype, tuple(shape), size, checksum)


def _describe(name: str, array: Any) -> Blob:
    _check_name(name)
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} is a {type(array).__name__}, not a NumPy array")
    dtype = array.dtype.name
    if dtype not in DTYPES:
        raise ValueError(f"{name} has dtype {dtype}; convert it to one of {', '.join(DTYPES)}")
    return Blob(name, dtype, array.shape, padded_bytes(_data_bytes(name, dtype, array.shape)), _PENDING)


def _data_bytes(name: str, dtype: str, shape: list[int] | tuple[int, ...]) -> int:
    if len(shape) > _AXES:
        raise ValueError(f"{name} has {len(shape)} axes; at most {_AXES} can be stored")
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"the shape of {name} does not consist of integers of at least 0")
    # An axis of 0 must not hide an overflow, because NumPy multiplies the other axes too.
    if math.prod(length or 1 for length in shape) * DTYPES[dtype].itemsize >= 2**62:
        raise ValueError(f"the shape of {name} is too large for an array")
    return math.prod(shape) * DTYPES[dtype].itemsize


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or len(name) > _NAME_LENGTH or not _NAME.fullmatch(name):
        raise ValueError(
            f"{str(name)[:_NAME_LENGTH]!r} is not a name of up to {_NAME_LENGTH} letters, digits and "
            "underscores, with single dots or dashes between them"
        )


def _check_distinct(blobs: tuple[Blob, ...]) -> None:
    """Some file systems treat `A.bin` and `a.bin` as the same file."""
    if len({blob.name.lower() for blob in blobs}) != len(blobs):
        raise ValueError("two arrays have names that differ in case only")


def _plain(value: Any, where: str, nesting: int) -> Any:
    """A copy of the value in the types that JSON returns; ValueError where the round trip would change it."""
    if nesting == 0:
        raise ValueError(f"{where} is nested more than {_NESTING} levels deep")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON does not have")
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{place}]", nesting - 1) for place, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r}, which is not a string")
        return {key: _plain(item, f"{where}[{key!r}]", nesting - 1) for key, item in value.items()}
    raise ValueError(f"{where} is a {type(value).__name__}; use numbers, strings, lists and mappings")
