"""Saved directories on disk: replaced as a whole, read as a whole, so no reader ever meets a half of one."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import io
import math
import mmap as memory_map
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from softindex.errors import CorruptIndexError, InputError, NotAnIndexError, SaveError, StorageError
from softindex.records import Stored
from softindex.store.format import (
    BLOB_SUFFIX,
    DTYPES,
    EAGER_BYTES,
    MANIFEST_BYTES,
    MANIFEST_NAME,
    Blob,
    BlobCheck,
    Manifest,
    Verification,
    blob_chunks,
    decode,
    draft,
    encode,
    is_ours,
)

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in total."""
Result = TypeVar("Result")

_CHUNK = 8 * 2**20
# How often a race lost against another save is run again; each loss needs a whole save in a few microseconds.
_ATTEMPTS = 50
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Not to follow links keeps reads inside the directory; not to block keeps a named pipe from hanging them.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def save(path: PathLike, stored: Stored, *, progress: Progress | None = None) -> None:
    """Write `stored` to the directory `path`, in place of what was saved there before, all or nothing.

    Killed at any step, `path` loads as the old or as the new.  What softindex did not save (a file, a
    directory that holds anything else) is never replaced; an empty directory is.  Arrays are written in
    pieces of 8 MiB whatever their layout: they may exceed memory, and may be mapped from `path` itself.
    Raises InputError for what cannot be stored, SaveError for everything the disk refuses.
    """
    target = _resolve(path)
    manifest = draft(stored)
    try:
        _check_target(target)
        _remove_leftovers(target)
        try:
            with _temporary(target) as (temporary, directory):
                _write(directory, manifest, stored, _counter(progress, manifest.bytes))
                _commit(temporary, target)
        finally:
            _remove_leftovers(target)
    except OSError as error:
        raise _save_error(error, target, manifest.bytes) from error


def load(path: PathLike, *, mmap: bool = True, verify: bool = False, kind: str | None = None) -> Stored:
    """Read what was saved at `path`; its arrays are read-only and aligned to 64 bytes.

    mmap=True maps the blobs: it takes milliseconds whatever their size.  The manifest, every file's size and
    the checksum of every blob up to EAGER_BYTES are checked; those of larger blobs too with verify=True.
    mmap=False reads all into memory and checks all.  `kind`, when given, must be the kind that was saved.
    Files the manifest does not name are ignored.
    """
    place = _resolve(path)
    fetch = _map if mmap else _read
    arrays: dict[str, NDArray[Any]] = {}
    with _opened(place, kind) as (manifest, descriptors):
        for blob, descriptor in zip(manifest.blobs, descriptors, strict=True):
            if mmap and (verify or blob.bytes <= EAGER_BYTES):
                _check(descriptor, blob, place, _uncounted)
            buffer = fetch(descriptor, blob, place)
            elements = np.frombuffer(buffer, DTYPES[blob.dtype], count=math.prod(blob.shape))
            arrays[blob.name] = elements.reshape(blob.shape)
    return Stored(manifest.kind, manifest.parameters, arrays)


def verify(path: PathLike, *, progress: Progress | None = None) -> Verification:
    """Read every byte saved at `path`; raises CorruptIndexError that names the first damaged blob."""
    place = _resolve(path)
    checks = []
    with _opened(place, None) as (manifest, descriptors):
        count = _counter(progress, manifest.bytes)
        for blob, descriptor in zip(manifest.blobs, descriptors, strict=True):
            _check(descriptor, blob, place, count)
            checks.append(BlobCheck(blob.name, blob.dtype, blob.shape, blob.bytes, ok=True))
    return Verification(manifest.kind, manifest.version, manifest.parameters, tuple(checks))


def read_manifest(path: PathLike) -> Manifest:
    """The checked manifest of what is saved at `path`; no blob is opened."""
    place = _resolve(path)
    return _steadily(place, lambda directory: _manifest(directory, place))


def _resolve(path: PathLike) -> str:
    """The absolute path with links followed: to replace a link would leave what it leads to behind."""
    try:
        resolved = os.path.realpath(os.fsdecode(path))
        os.fsencode(resolved)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path!r} is not a path; give a string or a pathlib.Path.") from error
    return resolved


def _uncounted(size: int) -> None:
    """For reads and writes nobody watches."""


def _counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    return count


# --- reading ---------------------------------------------------------------------------------------------


@contextmanager
def _reading(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{place} could not be read: {error.strerror or error}; check its permissions, the disk and the memory."
        ) from error


@contextmanager
def _opened(place: str, kind: str | None) -> Iterator[tuple[Manifest, list[int]]]:
    """The manifest and an open descriptor of each blob, all of one and the same save."""
    manifest, descriptors = _steadily(place, lambda directory: _open_all(directory, place, kind))
    try:
        with _reading(place):
            yield manifest, descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _steadily(place: str, read: Callable[[int], Result]) -> Result:
    """read(descriptor of the directory), run again when a save has replaced the directory meanwhile."""
    for remaining in reversed(range(_ATTEMPTS)):
        directory = _open_directory(place)
        try:
            with _reading(place):
                return read(directory)
        except StorageError:
            # Compared while the descriptor is open, so the inode number cannot have been given away.
            if not remaining or _is_at(place, directory):
                raise
        finally:
            os.close(directory)
    raise AssertionError("the last attempt returns or raises")


def _is_at(place: str, directory: int) -> bool:
    try:
        return os.path.samestat(os.stat(place), os.fstat(directory))
    except OSError:
        return False


def _open_directory(place: str) -> int:
    """A descriptor of the directory, or of the one set aside if a save was cut between its two renames."""
    with _reading(place):
        # Three looks: a save that ends between looking at the path and beside it leaves nothing at either.
        for _ in range(3):
            try:
                return os.open(place, _OPEN_DIRECTORY)
            except NotADirectoryError as error:
                raise NotAnIndexError(
                    f"{place} is a file but an index is saved as a directory; give the path of a saved index."
                ) from error
            except FileNotFoundError:
                for aside in sorted(_siblings(place, "replaced"), reverse=True):
                    with suppress(FileNotFoundError):
                        os.stat(os.path.join(aside, MANIFEST_NAME))
                        return os.open(aside, _OPEN_DIRECTORY)
    raise NotAnIndexError(f"{place} does not exist; give the path of a saved index.")


def _open_file(directory: int, name: str, place: str) -> int:
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


def _manifest_data(directory: int, place: str) -> bytes:
    try:
        descriptor = _open_file(directory, MANIFEST_NAME, place)
    except CorruptIndexError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise NotAnIndexError(
            f"{place} holds no {MANIFEST_NAME}, so nothing was saved there; give the path of a saved index."
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        # One byte more than allowed is enough for decode to see that it is too long.
        return file.read(min(os.fstat(descriptor).st_size, MANIFEST_BYTES) + 1)


def _manifest(directory: int, place: str) -> Manifest:
    return decode(_manifest_data(directory, place), place=place)


def _open_all(directory: int, place: str, kind: str | None) -> tuple[Manifest, list[int]]:
    manifest = _manifest(directory, place)
    if kind is not None and manifest.kind != kind:
        raise NotAnIndexError(
            f"{place} holds a saved {manifest.kind!r} but {kind!r} was asked for; load it with what saved it."
        )
    descriptors: list[int] = []
    try:
        for blob in manifest.blobs:
            descriptors.append(_open_file(directory, blob.file_name, place))
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


def _check(descriptor: int, blob: Blob, place: str, count: Callable[[int], None]) -> None:
    """Read through a small buffer: an unreadable sector raises an error here but kills through a mapping."""
    with memoryview(bytearray(min(_CHUNK, blob.bytes))) as buffer:
        _compare(descriptor, blob, place, buffer, count)


def _read(descriptor: int, blob: Blob, place: str) -> memoryview:
    """The file in memory of its own, on a page boundary and read-only."""
    memory = memory_map.mmap(-1, blob.bytes, flags=memory_map.MAP_PRIVATE | memory_map.MAP_ANONYMOUS)
    # To fault in a gigabyte by pages of 4 KiB takes longer than to read it.
    with suppress(AttributeError, OSError):
        memory.madvise(memory_map.MADV_HUGEPAGE)
    with memoryview(memory) as buffer:
        _compare(descriptor, blob, place, buffer, _uncounted)
    return memoryview(memory).toreadonly()


def _map(descriptor: int, blob: Blob, place: str) -> memoryview:
    return memoryview(memory_map.mmap(descriptor, blob.bytes, access=memory_map.ACCESS_READ))


def _compare(descriptor: int, blob: Blob, place: str, buffer: memoryview, count: Callable[[int], None]) -> None:
    """Read the file into buffer, again from its start when it is full, and compare the checksum."""
    digest = hashlib.sha256()
    done = 0
    with io.FileIO(descriptor, closefd=False) as file:
        while done < blob.bytes:
            start = done % len(buffer)
            piece = buffer[start : start + min(_CHUNK, blob.bytes - done)]
            size = file.readinto(piece)
            if not size:
                break
            digest.update(piece[:size])
            done += size
            count(size)
    if digest.hexdigest() != blob.checksum:
        raise _damaged(place, blob, "its checksum is not the one the manifest states")


# --- writing ---------------------------------------------------------------------------------------------


def _siblings(target: str, state: str) -> list[str]:
    """What saves to target have put beside it: `saving` (being written) or `replaced` (set aside)."""
    parent, name = os.path.split(target)
    pattern = re.compile(rf"\.{re.escape(name)}\.{state}-[0-9a-f]{{32}}")
    with suppress(FileNotFoundError, NotADirectoryError):
        return [os.path.join(parent, entry) for entry in os.listdir(parent) if pattern.fullmatch(entry)]
    return []


def _sibling(target: str, state: str) -> str:
    """A new name beside target; names sort by the time they were made."""
    parent, name = os.path.split(target)
    return os.path.join(parent, f".{name}.{state}-{time.time_ns():016x}{secrets.token_hex(8)}")


def _check_target(target: str) -> None:
    parent = os.path.dirname(target)
    try:
        os.stat(os.path.join(parent, ""))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SaveError(f"{target} cannot be saved because {parent} is not a directory; create it first.") from error
    try:
        _steadily(target, lambda directory: _refuse_strangers(directory, target))
    except SaveError:
        raise
    except StorageError as error:
        if not isinstance(error, NotAnIndexError) or os.path.lexists(target):
            raise SaveError(
                f"{target} is not replaced because it does not read as a saved index; "
                "choose another path or move it away."
            ) from error


def _refuse_strangers(directory: int, target: str) -> None:
    entries = os.listdir(directory)
    strangers = [name for name in entries if not _is_own(name)]
    if strangers:
        raise SaveError(
            f"{target} holds {min(strangers)!r}, which softindex did not save, so it is not replaced; "
            "choose another path or move it away."
        )
    if entries and not is_ours(_manifest_data(directory, target)):
        raise NotAnIndexError(f"the manifest.json in {target} is not one of softindex.")


def _is_own(name: str) -> bool:
    return name == MANIFEST_NAME or name.endswith(BLOB_SUFFIX)


@contextmanager
def _temporary(target: str) -> Iterator[tuple[str, int]]:
    """A locked directory beside target and its descriptor; whatever bears its name in the end is removed."""
    temporary, directory = _make_temporary(target)
    try:
        # A directory closed to others stays closed to them when it is replaced.
        with suppress(OSError):
            os.fchmod(directory, stat.S_IMODE(os.stat(target).st_mode) | stat.S_IRWXU)
        yield temporary, directory
    finally:
        os.close(directory)
        _discard(temporary)


def _make_temporary(target: str) -> tuple[str, int]:
    """Made again under another name if a save elsewhere takes it for a leftover before it is locked."""
    for _ in range(_ATTEMPTS):
        temporary = _sibling(target, "saving")
        os.mkdir(temporary)
        try:
            directory = os.open(temporary, _OPEN_DIRECTORY)
        except FileNotFoundError:
            continue
        if _lock(directory) is not False and _is_at(temporary, directory):
            return temporary, directory
        os.close(directory)
    raise OSError(errno.EBUSY, "temporary directories beside it vanish while they are made")


def _lock(directory: int) -> bool | None:
    """Whether the lock that says "my saver lives" was free; None where the file system has no locks."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _write(directory: int, manifest: Manifest, stored: Stored, count: Callable[[int], None]) -> None:
    """All files, each on the disk before the next; the manifest last, so that with it all is there."""
    blobs = []
    for blob in manifest.blobs:
        chunks = blob_chunks(stored.arrays[blob.name], blob, chunk=_CHUNK)
        blobs.append(replace(blob, checksum=_write_file(directory, blob.file_name, chunks, count)))
    written = encode(replace(manifest, blobs=tuple(blobs)))
    _write_file(directory, MANIFEST_NAME, [memoryview(written)], _uncounted)
    _sync(directory)


def _write_file(directory: int, name: str, chunks: Iterable[memoryview], count: Callable[[int], None]) -> str:
    """Write and fsync a new file; returns its SHA-256."""
    digest = hashlib.sha256()
    descriptor = os.open(name, _CREATE_FILE, 0o666, dir_fd=directory)
    try:
        for chunk in chunks:
            digest.update(chunk)
            done = 0
            while done < len(chunk):
                done += os.write(descriptor, chunk[done:])
            count(len(chunk))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def _sync(directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        # Some file systems do not sync directories and say so; there is nothing more to be done there.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _commit(temporary: str, target: str) -> None:
    """Put the directory into place and see it reach the disk; if it does not, put the old one back."""
    parent = os.open(os.path.dirname(target), _OPEN_DIRECTORY)
    try:
        old = _put(temporary, target)
        try:
            _sync(parent)
        except OSError:
            if old is None:
                os.rename(target, temporary)
            else:
                _put(old, target)
            raise
    finally:
        os.close(parent)
    if old is not None:
        _discard(old)


def _put(new: str, target: str) -> str | None:
    """Rename the directory `new` to target; returns the path of what was there, None for nothing."""
    for _ in range(_ATTEMPTS):
        try:
            # Succeeds where nothing or an empty directory is.
            os.rename(new, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return None
        try:
            return new if _exchange(new, target) else _set_aside(new, target)
        except OSError as error:
            # Another save was between its two renames: look again.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
    raise OSError(errno.EBUSY, "other saves to the same path keep getting in between")


def _set_aside(new: str, target: str) -> str:
    """Two renames for want of one.  Cut between them, `load` finds the old under the name returned."""
    aside = _sibling(target, "replaced")
    os.rename(target, aside)
    try:
        os.rename(new, target)
    except BaseException:
        with suppress(OSError):
            os.rename(aside, target)
        raise
    return aside


def _exchange(first: str, second: str) -> bool:
    """Swap two directories in one step; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None or sys.platform != "linux":
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0:
        return True
    code = ctypes.get_errno()
    # EPERM is what some sandboxes answer to a call they do not know; if it is meant, the renames fail too.
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), second)


def _remove_leftovers(target: str) -> None:
    """Remove what killed saves left beside target: what no living save writes, what is no longer needed."""
    with suppress(OSError):
        # Listed before looking at target: what was set aside before a save stood there is older than it.
        aside = _siblings(target, "replaced")
        if os.path.isfile(os.path.join(target, MANIFEST_NAME)):
            for leftover in aside:
                _discard(leftover)
        for leftover in _siblings(target, "saving"):
            with suppress(OSError):
                directory = os.open(leftover, _OPEN_DIRECTORY)
                try:
                    if _lock(directory):
                        _discard(leftover)
                finally:
                    os.close(directory)


def _discard(path: str) -> None:
    """Remove a saved directory as far as possible, the manifest first: half of it must not look whole."""
    with suppress(OSError):
        for name in sorted(filter(_is_own, os.listdir(path)), key=MANIFEST_NAME.__ne__):
            with suppress(OSError):
                os.unlink(os.path.join(path, name))
        os.rmdir(path)


def _save_error(error: OSError, target: str, needed: int) -> SaveError:
    advice = "remove the cause and save again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            free = shutil.disk_usage(os.path.dirname(target)).free
            advice = f"{free} bytes are free there: make room or save elsewhere"
    elif error.errno == errno.EFBIG:
        advice = "raise the limit on the size of a file or save elsewhere"
    elif error.errno in (errno.EBUSY, errno.EXDEV):
        advice = "if it is a mount point, save to a directory inside it"
    return SaveError(
        f"saving {needed} bytes to {target} failed: {error.strerror or error}; {advice}. "
        "What was saved there before is untouched."
    )
