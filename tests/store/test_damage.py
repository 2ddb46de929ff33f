"""Whatever happens to a saved directory on disk: it loads to the bit or a typed error names the damage."""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import tracemalloc
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import SMALL, assert_same, flip, forge

from softindex.errors import (
    CorruptIndexError,
    FormatVersionError,
    InputError,
    NotAnIndexError,
    SaveError,
    StorageError,
)
from softindex.records import FORMAT_VERSION, Stored
from softindex.store import EAGER_BYTES, load, read_manifest, save, verify
from softindex.store.format import MANIFEST_NAME, padded_bytes


def every_reader(path: Path) -> None:
    """Each way to read must refuse."""
    for read in (load, verify, lambda path: load(path, mmap=False), lambda path: load(path, verify=True)):
        with pytest.raises(StorageError):
            read(path)


def test_every_flipped_byte_is_noticed(saved: Path) -> None:
    pick = random.Random(1)
    for file in sorted(saved.iterdir()):
        for position in range(file.stat().st_size):
            bit = pick.randrange(8)
            flip(file, position, bit)
            with pytest.raises(StorageError):
                load(saved)
            if file.name != MANIFEST_NAME:
                with pytest.raises(CorruptIndexError, match=f"{file.name} .*checksum"):
                    verify(saved)
                with pytest.raises(CorruptIndexError, match=f"{file.name} .*checksum"):
                    load(saved, mmap=False)
            flip(file, position, bit)
    assert_same(load(saved), SMALL)


def test_every_truncation_is_noticed(saved: Path) -> None:
    for file in sorted(saved.iterdir()):
        content = file.read_bytes()
        for size in range(0, len(content), 1 if file.name == MANIFEST_NAME else 16):
            file.write_bytes(content[:size])
            with pytest.raises(StorageError):
                load(saved)
        for extra in (b"\0", bytes(64), b"\n", content):
            file.write_bytes(content + extra)
            every_reader(saved)
        file.write_bytes(content)
    assert_same(load(saved), SMALL)


def test_a_missing_blob_is_named(saved: Path) -> None:
    (saved / "sizes.bin").unlink()
    every_reader(saved)
    with pytest.raises(CorruptIndexError, match=r"sizes\.bin is missing"):
        load(saved)


def test_blobs_that_changed_places_are_noticed(saved: Path) -> None:
    (saved / "means.bin").rename(saved / "aside")
    (saved / "sizes.bin").rename(saved / "means.bin")
    (saved / "aside").rename(saved / "sizes.bin")
    every_reader(saved)


def test_damage_to_a_large_blob_is_caught_by_every_full_read(tmp_path: Path) -> None:
    large = np.zeros(EAGER_BYTES // 4 + 1000, np.float32)
    path = tmp_path / "index"
    save(path, Stored("index", {}, {"small": np.zeros(5), "large": large}))
    flip(path / "large.bin", 4 * 1234, 6)
    assert load(path).arrays["large"][1234] != 0, "a plain load does not read large blobs"
    for read in (verify, lambda path: load(path, verify=True), lambda path: load(path, mmap=False)):
        with pytest.raises(CorruptIndexError, match=r"large\.bin .*checksum"):
            read(path)


@pytest.mark.parametrize("name", [MANIFEST_NAME, "means.bin"])
@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_not_a_regular_file_is_refused_without_waiting(saved: Path, name: str, kind: str) -> None:
    content = (saved / name).read_bytes()
    (saved / name).unlink()
    if kind == "link":
        (saved.parent / "outside").write_bytes(content)
        (saved / name).symlink_to(saved.parent / "outside")
    elif kind == "directory":
        (saved / name).mkdir()
    else:
        os.mkfifo(saved / name)
    with pytest.raises(CorruptIndexError):
        load(saved)
    with pytest.raises(SaveError) if name == MANIFEST_NAME else contextmanager(lambda: iter([None]))():
        save(saved, SMALL)


@pytest.mark.parametrize(
    "blob",
    [
        {"shape": [2**60]},
        {"shape": [2**60], "bytes": padded_bytes(2**62)},
        {"shape": [10**15], "bytes": padded_bytes(4 * 10**15)},
        {"shape": [0, 2**61]},
        {"shape": [2**32, 2**32]},
        {"shape": [-3, -4]},
        {"dtype": "object"},
        {"name": "../index/means"},
        {"name": ".."},
    ],
    ids=range(9),
)
def test_a_manifest_that_claims_the_impossible_allocates_nothing(
    saved: Path, monkeypatch: pytest.MonkeyPatch, blob: dict[str, Any]
) -> None:
    def no_memory(*arguments: Any, **options: Any) -> None:
        raise AssertionError("memory was asked for")

    forge(saved, {}, blob=blob)
    monkeypatch.setattr(mmap, "mmap", no_memory)
    tracemalloc.start()
    try:
        every_reader(saved)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300))
def test_a_garbage_manifest_raises_only_storage_errors(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as parent:
        Path(parent, MANIFEST_NAME).write_bytes(data)
        with pytest.raises(StorageError):
            load(parent)


def test_a_newer_format_asks_for_an_upgrade(saved: Path) -> None:
    forge(saved, {"version": FORMAT_VERSION + 1})
    with pytest.raises(
        FormatVersionError, match=f"version {FORMAT_VERSION + 1} but .* versions up to {FORMAT_VERSION}; upgrade"
    ):
        load(saved)


def test_the_error_says_why_a_path_is_not_a_saved_index(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    for name, sentence in (
        ("absent", "does not exist"),
        ("file", "is a file"),
        ("folder", "has no manifest"),
    ):
        with pytest.raises(NotAnIndexError, match=sentence):
            load(tmp_path / name)
    with pytest.raises(NotAnIndexError):
        load(tmp_path / "file" / "below")
    with pytest.raises(NotAnIndexError):
        load(tmp_path / "absent" / "below")


@pytest.mark.parametrize("path", ["a\0b", "\ud800", 3, None])
def test_what_is_not_a_path_is_refused(path: Any) -> None:
    for act in (load, verify, read_manifest, lambda path: save(path, SMALL)):
        with pytest.raises(InputError, match="is not a path"):
            act(path)
