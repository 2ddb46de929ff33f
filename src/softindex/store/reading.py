"""Read a saved directory through one open descriptor, so that a concurrent save cannot mix old and new."""

from __future__ import annotations

import errno
import hashlib
import io
import mmap as memory_map
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from softindex.errors import CorruptIndexError, NotAnIndexError, StorageError
from softindex.store.format import MANIFEST_BYTES, MANIFEST_NAME, Blob, Manifest, decode

Result = TypeVar("Result")

CHUNK = 4 * 2**20
# Retries after losing a race against another save; each loss needs a complete save within a few microseconds.
ATTEMPTS = 50
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Links are not followed, so that reads stay inside the directory; O_NONBLOCK, so that a named pipe cannot hang them.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def uncounted(size: int) -> None:
    """A counter for reads and writes without progress."""


@contextmanager
def _reading(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{place} could not be read: {error.strerror or error}; check its permissions, the disk and the memory."
        ) from error


@contextmanager
def opened(place: str, kind: str | None) -> Iterator[tuple[Manifest, list[int]]]:
    """The manifest and an open descriptor of each blob, all from the same save."""
    manifest, descriptors = steadily(place, lambda directory: _open_all(directory, place, kind))
    try:
        with _reading(place):
            yield manifest, descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def steadily(place: str, read: Callable[[int], Result]) -> Result:
    """Call read(descriptor of the directory), again if a save has replaced the directory meanwhile."""
    for remaining in reversed(range(ATTEMPTS)):
        directory = open_directory(place)
        try:
            with _reading(place):
                return read(directory)
        except StorageError:
            # Compared while the descriptor is open, so that the inode number cannot have been reused.
            if not remaining or is_at(place, directory):
                raise
        finally:
            os.close(directory)
    raise AssertionError("the last attempt returns or raises")


def is_at(place: str, directory: int) -> bool:
    """Whether the open directory is still the one at this place."""
    try:
        return os.path.samestat(os.stat(place), os.fstat(directory))
    except OSError:
        return False


def open_directory(place: str) -> int:
    """A descriptor of the directory, or of the one set aside if a save was interrupted between its two renames."""
    with _reading(place):
        # Three attempts: a save that ends between the two checks below leaves nothing at either place.
        for _ in range(3):
            try:
                return os.open(place, OPEN_DIRECTORY)
            except NotADirectoryError as error:
                raise NotAnIndexError(
                    f"{place} is a file, but an index is saved as a directory; pass the path of a saved index."
                ) from error
            except FileNotFoundError:
                for aside in sorted(siblings(place, "replaced"), reverse=True):
                    with suppress(FileNotFoundError):
                        os.stat(os.path.join(aside, MANIFEST_NAME))
                        return os.open(aside, OPEN_DIRECTORY)
    raise NotAnIndexError(f"{place} does not exist; pass the path of a saved index.")


def open_file(directory: int, name: str, place: str) -> int:
    """A descriptor of a regular file of the directory."""
    try:
        descriptor = os.open(name, _OPEN_FILE, dir_fd=directory)
    except FileNotFoundError as error:
        raise CorruptIndexError(
            f"{name} is missing from {place}; restore it from a copy or build the index again."
        ) from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CorruptIndexError(
            f"{name} in {place} is a symbolic link, which is not followed; put the file itself there."
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptIndexError(f"{name} in {place} is not a regular file; restore it from a copy.")
    return descriptor


def manifest_data(directory: int, place: str) -> bytes:
    """The bytes of the manifest, not checked yet."""
    try:
        descriptor = open_file(directory, MANIFEST_NAME, place)
    except CorruptIndexError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise NotAnIndexError(
            f"{place} has no {MANIFEST_NAME}, so it is not a saved index; pass the path of a saved index."
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        # One byte more than allowed is enough for decode to notice that it is too long.
        return file.read(min(os.fstat(descriptor).st_size, MANIFEST_BYTES) + 1)


def manifest_of(directory: int, place: str) -> Manifest:
    """The checked manifest of an open directory."""
    return decode(manifest_data(directory, place), place=place)


KINDS = {
    "index": "an index",
    "mixture-index": "a learned-similarity index",
    "adaptive-softmax": "an adaptive softmax",
}
"""What a saved directory holds, in words, by kind."""


def described(kind: str) -> str:
    """What a saved directory of this kind holds, in words."""
    return KINDS.get(kind, f"a save of kind {kind!r}")


def _open_all(directory: int, place: str, kind: str | None) -> tuple[Manifest, list[int]]:
    manifest = manifest_of(directory, place)
    if kind is not None and manifest.kind != kind:
        raise NotAnIndexError(
            f"{place} holds {described(manifest.kind)}, not {described(kind)}; open it with softindex.load."
        )
    descriptors: list[int] = []
    try:
        for blob in manifest.blobs:
            descriptors.append(open_file(directory, blob.file_name, place))
            size = os.fstat(descriptors[-1]).st_size
            if size != blob.bytes:
                raise _damaged(place, blob, f"it has {size} bytes but the manifest states {blob.bytes}")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return manifest, descriptors


def _damaged(place: str, blob: Blob, reason: str) -> CorruptIndexError:
    return CorruptIndexError(
        f"{blob.file_name} in {place} is damaged: {reason}; restore it from a copy or build the index again."
    )


def check_blob(descriptor: int, blob: Blob, place: str, count: Callable[[int], None]) -> None:
    """Verify a blob through a small buffer: an unreadable sector raises an error here, but kills through a mapping."""
    with memoryview(bytearray(min(CHUNK, blob.bytes))) as buffer:
        _compare(descriptor, blob, place, buffer, count)


def read_blob(descriptor: int, blob: Blob, place: str) -> memoryview:
    """The file read into memory, page-aligned and read-only."""
    memory = memory_map.mmap(-1, blob.bytes, flags=memory_map.MAP_PRIVATE | memory_map.MAP_ANONYMOUS)
    # Faulting in a gigabyte in pages of 4 KiB takes longer than reading it.
    with suppress(AttributeError, OSError):
        memory.madvise(memory_map.MADV_HUGEPAGE)
    with memoryview(memory) as buffer:
        _compare(descriptor, blob, place, buffer, uncounted)
    return memoryview(memory).toreadonly()


def map_blob(descriptor: int, blob: Blob, place: str) -> memoryview:
    """The blob mapped read-only; pages are read when first used."""
    return memoryview(memory_map.mmap(descriptor, blob.bytes, access=memory_map.ACCESS_READ))


def _compare(descriptor: int, blob: Blob, place: str, buffer: memoryview, count: Callable[[int], None]) -> None:
    """Read the file into the buffer, reusing it when it is full, and compare the checksum."""
    digest = hashlib.sha256()
    done = 0
    with io.FileIO(descriptor, closefd=False) as file:
        while done < blob.bytes:
            start = done % len(buffer)
            piece = buffer[start : start + min(CHUNK, blob.bytes - done)]
            size = file.readinto(piece)
            if not size:
                break
            digest.update(piece[:size])
            done += size
            count(size)
    if digest.hexdigest() != blob.checksum:
        raise _damaged(place, blob, "its checksum is not the one in the manifest")


def siblings(target: str, state: str) -> list[str]:
    """Directories that saves to target created beside it: `saving` (being written) or `replaced` (set aside)."""
    parent, name = os.path.split(target)
    pattern = re.compile(rf"\.{re.escape(name)}\.{state}-[0-9a-f]{{32}}")
    with suppress(FileNotFoundError, NotADirectoryError):
        return [os.path.join(parent, entry) for entry in os.listdir(parent) if pattern.fullmatch(entry)]
    return []
