"""Save, load and verify a directory; a reader sees the old save or the new one, never a mixture."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.errors import InputError, show
from softindex.kernels import Guard
from softindex.records import Stored
from softindex.signals import interrupts_put_off
from softindex.store.format import DTYPES, EAGER_BYTES, BlobCheck, Manifest, Verification, draft
from softindex.store.reading import check_blob, manifest_of, map_blob, opened, read_blob, steadily, uncounted
from softindex.store.replacing import check_target, commit, remove_leftovers, save_error, temporary_beside, write

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in total."""


def save(path: PathLike, stored: Stored, *, progress: Progress | None = None) -> None:
    """Write `stored` to the directory `path` atomically, replacing an earlier save.

    If the process is killed at any step, `path` loads as the old save or the new one.  A file, a directory that
    softindex did not save, or a save of another kind, is never replaced; an empty directory is.  Arrays are written in
    pieces of 8 MiB whatever their layout: they may exceed memory, and may be mapped from `path` itself.  Ctrl-C ends a
    save after the present piece, and what was written is removed.

    Raises:
        InputError: When something cannot be stored.
        SaveError: When the directory cannot be written.
    """
    target = _resolve(path)
    manifest = draft(stored)
    try:
        with interrupts_put_off() as let_happen:
            check_target(target, stored.kind)
            remove_leftovers(target)
            try:
                with temporary_beside(target) as (temporary, directory):
                    write(directory, manifest, stored, _counter(progress, manifest.bytes, let_happen))
                    commit(temporary, target)
            finally:
                remove_leftovers(target)
    except OSError as error:
        raise save_error(error, target, manifest.bytes) from error


def check_path(path: PathLike, kind: str) -> None:
    """Raise what saving this kind would raise for this path, before a long build; writes nothing."""
    target = _resolve(path)
    try:
        check_target(target, kind)
    except OSError as error:
        raise save_error(error, target, 0) from error


def load(path: PathLike, *, mmap: bool = True, verify: bool = False, kind: str | None = None) -> Stored:
    """Load what was saved at `path`; its arrays are read-only and aligned to 64 bytes.

    mmap=True maps the blobs, in milliseconds whatever their size.  It checks the manifest, the size of every file and
    the checksum of every blob up to EAGER_BYTES; with verify=True also those of larger blobs.  Otherwise these come
    with guards: whoever reads them must check them first.  (Saves of earlier versions have none.)  mmap=False reads
    everything into memory and checks everything.  `kind`, when given, must be the kind that was saved.  Files that the
    manifest does not name are ignored.
    """
    place = _resolve(path)
    fetch = map_blob if mmap else read_blob
    arrays: dict[str, NDArray[Any]] = {}
    files: dict[str, NDArray[np.uint8]] = {}
    with opened(place, kind) as (manifest, descriptors):
        for blob, descriptor in zip(manifest.blobs, descriptors, strict=True):
            if mmap and (verify or blob.bytes <= EAGER_BYTES or blob.name in manifest.sums):
                check_blob(descriptor, blob, place, uncounted)
            buffer = fetch(descriptor, blob, place)
            elements = np.frombuffer(buffer, DTYPES[blob.dtype], count=math.prod(blob.shape))
            arrays[blob.name], files[blob.name] = elements.reshape(blob.shape), np.frombuffer(buffer, np.uint8)
    sums = {name: arrays.pop(source) for source, name in manifest.sums.items()}
    verified = verify or not mmap
    size = manifest.block_bytes or 0
    guards = {} if verified else {name: Guard(files[name], of, size, name) for name, of in sums.items()}
    return Stored(manifest.kind, manifest.parameters, arrays, manifest.version, verified=verified, guards=guards)


def verify(path: PathLike, *, progress: Progress | None = None) -> Verification:
    """Read every byte saved at `path`; CorruptIndexError names the first damaged blob."""
    place = _resolve(path)
    checks = []
    with opened(place, None) as (manifest, descriptors):
        count = _counter(progress, manifest.bytes)
        for blob, descriptor in zip(manifest.blobs, descriptors, strict=True):
            check_blob(descriptor, blob, place, count)
            checks.append(BlobCheck(blob.name, blob.dtype, blob.shape, blob.bytes, ok=True))
    return Verification(manifest.kind, manifest.version, manifest.parameters, tuple(checks))


def read_manifest(path: PathLike) -> Manifest:
    """The checked manifest of what is saved at `path`; no blob is opened."""
    place = _resolve(path)
    return steadily(place, lambda directory: manifest_of(directory, place))


def _resolve(path: PathLike) -> str:
    """The absolute path with links resolved: replacing a link itself would leave its target behind."""
    try:
        resolved = os.path.realpath(os.fsdecode(path))
        os.fsencode(resolved)
    except (TypeError, ValueError) as error:
        raise InputError(f"{show(path)} is not a path; pass a string or a pathlib.Path.") from error
    return resolved


def _counter(
    progress: Progress | None, total: int, let_happen: Callable[[], None] | None = None
) -> Callable[[int], None]:
    """Reports progress after each piece, and lets a signal happen that waits for the end of one."""
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)
        if let_happen is not None:
            let_happen()

    return count
