"""Write a directory beside its target and swap the two, so that a kill at any step leaves the old or the new."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
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

from softindex.errors import NotAnIndexError, SaveError, StorageError
from softindex.records import Stored
from softindex.store.format import BLOB_SUFFIX, MANIFEST_NAME, SUMS_SUFFIX, Manifest, blob_chunks, encode, is_ours
from softindex.store.guards import BlockSums
from softindex.store.reading import (
    ATTEMPTS,
    CHUNK,
    OPEN_DIRECTORY,
    described,
    is_at,
    manifest_data,
    siblings,
    steadily,
    uncounted,
)

# The kind in the raw text of a manifest, which may be damaged or of a newer version.
_KIND = re.compile(rb'^  "kind": "([!-~]+)"', re.MULTILINE)
SYNCED_CHUNKS = 8
_CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def _sibling(target: str, state: str) -> str:
    """A new name beside target; names sort by creation time."""
    parent, name = os.path.split(target)
    return os.path.join(parent, f".{name}.{state}-{time.time_ns():016x}{secrets.token_hex(8)}")


def check_target(target: str, kind: str) -> None:
    """Refuse to replace what softindex did not save, and what it saved of another kind."""
    parent = os.path.dirname(target)
    try:
        os.stat(os.path.join(parent, ""))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SaveError(f"{target} cannot be saved because {parent} is not a directory; create it first.") from error
    try:
        steadily(target, lambda directory: _refuse_strangers(directory, target, kind))
    except SaveError:
        raise
    except StorageError as error:
        if not isinstance(error, NotAnIndexError) or os.path.lexists(target):
            raise SaveError(
                f"{target} is not replaced because it does not read as a saved index; "
                "choose another path or move it away."
            ) from error


def _refuse_strangers(directory: int, target: str, kind: str) -> None:
    entries = os.listdir(directory)
    if not entries:
        return
    data = manifest_data(directory, target)
    if not is_ours(data):
        raise NotAnIndexError(f"softindex did not write the manifest.json in {target}.")
    found = _KIND.search(data)
    if found is not None and found[1].decode() != kind:
        raise SaveError(
            f"{target} holds {described(found[1].decode())}, so {described(kind)} does not replace it; "
            "choose another path or remove it."
        )
    # Names are read from the raw text, so that a damaged save, or one of a newer version, can be replaced too.
    named = {name.decode() + BLOB_SUFFIX for name in re.findall(rb'"name": "([!-~]+)"', data)}
    strangers = set(entries) - named - {MANIFEST_NAME}
    if strangers:
        raise SaveError(
            f"{target} holds {min(strangers)!r}, which softindex did not save, so it is not replaced; "
            "choose another path or move it away."
        )


def _is_own(name: str) -> bool:
    return name == MANIFEST_NAME or name.endswith(BLOB_SUFFIX)


@contextmanager
def temporary_beside(target: str) -> Iterator[tuple[str, int]]:
    """A locked directory beside target and its descriptor; whatever has its name at the end is removed."""
    temporary, directory = _make_temporary(target)
    try:
        # Keep the permissions of the directory that is replaced.
        with suppress(OSError):
            os.fchmod(directory, stat.S_IMODE(os.stat(target).st_mode) | stat.S_IRWXU)
        yield temporary, directory
    finally:
        os.close(directory)
        _discard(temporary)


def _make_temporary(target: str) -> tuple[str, int]:
    """Retries under another name if another save removes it as a leftover before it is locked."""
    for _ in range(ATTEMPTS):
        temporary = _sibling(target, "saving")
        os.mkdir(temporary)
        try:
            directory = os.open(temporary, OPEN_DIRECTORY)
        except FileNotFoundError:
            continue
        if _lock(directory) is not False and is_at(temporary, directory):
            return temporary, directory
        os.close(directory)
    raise OSError(errno.EBUSY, "temporary directories beside it vanish while they are made")


def _lock(directory: int) -> bool | None:
    """Whether the lock of a running save was free; None where the file system has no locks."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def write(directory: int, manifest: Manifest, stored: Stored, count: Callable[[int], None]) -> None:
    """Write all files, each synced before the next; the manifest comes last, so its presence means all are there."""
    blobs, made, sums = [], dict(stored.arrays), manifest.sums
    for blob in manifest.blobs:
        # The checksums of blocks come after the blobs that they are of.
        chunks: Iterable[memoryview] = blob_chunks(made[blob.name], blob, chunk=CHUNK)
        if blob.name in sums.values():
            summed = BlockSums(blob.bytes)
            chunks, made[blob.name + SUMS_SUFFIX] = summed.add_all(chunks), summed.sums
        blobs.append(replace(blob, checksum=_write_file(directory, blob.file_name, chunks, count)))
    written = encode(replace(manifest, blobs=tuple(blobs)))
    _write_file(directory, MANIFEST_NAME, [memoryview(written)], uncounted)
    _sync(directory)


def _write_file(directory: int, name: str, chunks: Iterable[memoryview], count: Callable[[int], None]) -> str:
    """Write and fsync a new file; returns its SHA-256."""
    digest = hashlib.sha256()
    descriptor = os.open(name, _CREATE_FILE, 0o666, dir_fd=directory)
    try:
        for number, chunk in enumerate(chunks):
            # A signal waits for the end of fsync: sync a little at a time.
            if number % SYNCED_CHUNKS == SYNCED_CHUNKS - 1:
                os.fsync(descriptor)
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
        # Some file systems cannot sync directories; nothing more can be done there.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def commit(temporary: str, target: str) -> None:
    """Move the directory into place and sync it; on failure, put the old one back."""
    parent = os.open(os.path.dirname(target), OPEN_DIRECTORY)
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
    for _ in range(ATTEMPTS):
        try:
            # Succeeds where the target is missing or an empty directory.
            os.rename(new, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return None
        try:
            return new if exchange(new, target) else _set_aside(new, target)
        except OSError as error:
            # Another save was between its two renames: try again.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
    raise OSError(errno.EBUSY, "other saves to the same path keep getting in between")


def _set_aside(new: str, target: str) -> str:
    """Two renames, where one is not possible.  If interrupted between them, `load` finds the old under this name."""
    aside = _sibling(target, "replaced")
    os.rename(target, aside)
    try:
        os.rename(new, target)
    except BaseException:
        with suppress(OSError):
            os.rename(aside, target)
        raise
    return aside


def exchange(first: str, second: str) -> bool:
    """Swap two directories atomically; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None or sys.platform != "linux":
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0:
        return True
    code = ctypes.get_errno()
    # Some sandboxes answer EPERM to a call they do not know; if it is genuine, the renames fail too.
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), second)


def remove_leftovers(target: str) -> None:
    """Remove what killed saves left beside target: directories that no running save writes, and old ones set aside."""
    with suppress(OSError):
        # Listed before checking target: what was set aside before the present save is older than it.
        aside = siblings(target, "replaced")
        if os.path.isfile(os.path.join(target, MANIFEST_NAME)):
            for leftover in aside:
                _discard(leftover)
        for leftover in siblings(target, "saving"):
            with suppress(OSError):
                directory = os.open(leftover, OPEN_DIRECTORY)
                try:
                    if _lock(directory):
                        _discard(leftover)
                finally:
                    os.close(directory)


def _discard(path: str) -> None:
    """Remove a saved directory as far as possible, the manifest first, so that a remainder cannot look intact."""
    with suppress(OSError):
        for name in sorted(filter(_is_own, os.listdir(path)), key=MANIFEST_NAME.__ne__):
            with suppress(OSError):
                os.unlink(os.path.join(path, name))
        os.rmdir(path)


def save_error(error: OSError, target: str, needed: int) -> SaveError:
    """The error for a failed write, as a sentence."""
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
