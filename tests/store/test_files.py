"""What is saved comes back to the bit; what softindex did not save stays as it is."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from samples import SMALL, assert_same, flip, forge

from softindex.errors import (
    CorruptIndexError,
    InputError,
    NotAnIndexError,
    SaveError,
    StorageError,
)
from softindex.records import FORMAT_VERSION, Stored
from softindex.store import files, load, read_manifest, reading, save, verify
from softindex.store.format import DTYPES, MANIFEST_NAME, Blob, padded_bytes


def snapshot(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


# --- what is saved comes back ----------------------------------------------------------------------------

layouts = st.sampled_from(["contiguous", "fortran", "reversed", "strided", "broadcast", "big-endian"])


def laid_out(array: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    if layout == "fortran":
        return np.asfortranarray(array)
    if layout == "reversed":
        return array[::-1] if array.ndim else array
    if layout == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
    if layout == "broadcast":
        return np.broadcast_to(array, (3, *array.shape))
    return array.astype(array.dtype.newbyteorder(">")) if layout == "big-endian" else array


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_array_comes_back_to_the_bit_read_only_and_aligned(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(["a", "b.c", "d-e", "F_1"]), unique=True))
    given_arrays = {}
    for name in names:
        dtype = DTYPES[data.draw(st.sampled_from(sorted(DTYPES)))]
        shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
        # Raw bytes, so that NaNs with payloads and negative zeros are among them.
        raw = data.draw(st.randoms(use_true_random=False)).randbytes(int(np.prod(shape)) * dtype.itemsize)
        array = (np.frombuffer(raw, np.uint8) & 1).view(bool) if dtype.kind == "b" else np.frombuffer(raw, dtype)
        given_arrays[name] = laid_out(array.reshape(shape), data.draw(layouts))
    stored = Stored("index", {"names": names}, given_arrays)
    with tempfile.TemporaryDirectory() as parent:
        save(os.path.join(parent, "index"), stored)
        for mmap in (True, False):
            loaded = load(os.path.join(parent, "index"), mmap=mmap)
            assert_same(loaded, stored)
            for array in loaded.arrays.values():
                assert array.ctypes.data % 64 == 0
                assert not array.flags.writeable
                with pytest.raises(ValueError, match="WRITEABLE"):
                    array.flags.writeable = True


def test_a_blob_is_raw_little_endian_and_zero_padded(saved: Path) -> None:
    content = (saved / "means.bin").read_bytes()
    assert content == SMALL.arrays["means"].astype("<f4").tobytes() + bytes(80)
    assert len(content) == padded_bytes(48) == 128
    assert sorted(os.listdir(saved)) == ["empty.bin", "manifest.json", "means.bin", "sizes.bin"]


def test_a_directory_without_arrays_comes_back(tmp_path: Path) -> None:
    save(tmp_path / "bare", Stored("note", {"text": "hello"}))
    assert_same(load(tmp_path / "bare"), Stored("note", {"text": "hello"}))


def test_saving_never_copies_a_whole_array(tmp_path: Path) -> None:
    matrix = np.lib.format.open_memmap(tmp_path / "big.npy", mode="w+", dtype=np.float32, shape=(6000, 2000))
    matrix[:] = np.arange(2000)
    tracemalloc.start()
    try:
        save(tmp_path / "index", Stored("index", {}, {"plain": matrix, "turned": matrix.T}))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < matrix.nbytes / 2
    loaded = load(tmp_path / "index", verify=True)
    assert np.array_equal(loaded.arrays["plain"], matrix)
    assert np.array_equal(loaded.arrays["turned"], matrix.T)


def test_progress_counts_up_to_the_stated_total(tmp_path: Path) -> None:
    stored = Stored("index", {}, {"a": np.zeros(5_000_000, np.float32), "b": np.zeros(3)})
    for run in (
        lambda progress: save(tmp_path / "index", stored, progress=progress),
        lambda progress: verify(tmp_path / "index", progress=progress),
    ):
        calls: list[tuple[int, int]] = []
        run(lambda done, total, calls=calls: calls.append((done, total)))
        total = read_manifest(tmp_path / "index").bytes
        assert len(calls) > 3
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        assert {stated for _, stated in calls} == {total}
        assert calls[-1] == (total, total)


def test_an_exception_of_the_progress_callback_leaves_the_old(saved: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(saved, Stored("index", {}, {"a": np.zeros(9)}), progress=interrupt)
    assert_same(load(saved), SMALL)
    assert os.listdir(saved.parent) == ["index"]


# --- opening is cheap and reads only ---------------------------------------------------------------------


def test_loading_reads_nothing_of_a_large_array(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it takes milliseconds whatever the size; the 64 GiB here are a hole in a file."""
    count, read = 2**34, []
    check = files.check_blob

    def watched(descriptor: int, blob: Blob, *rest: Any) -> None:
        read.append(blob.name)
        check(descriptor, blob, *rest)

    monkeypatch.setattr(files, "check_blob", watched)
    forge(saved, {}, blob={"shape": [count], "bytes": padded_bytes(4 * count)})
    os.truncate(saved / "means.bin", padded_bytes(4 * count))
    loaded = load(saved)
    assert sorted(read) == ["empty", "sizes"]
    assert loaded.arrays["means"].shape == (count,)
    assert loaded.arrays["means"][count - 1] == 0


def test_reading_changes_nothing_on_disk(saved: Path) -> None:
    shutil.copytree(saved, saved.parent / (".index.saving-" + "0" * 32))
    saved.rename(saved.parent / (".index.replaced-" + "0" * 32))
    before = snapshot(saved.parent)
    assert_same(load(saved), SMALL)
    verify(saved)
    read_manifest(saved)
    assert snapshot(saved.parent) == before


def test_no_descriptor_stays_open_but_those_of_mappings(saved: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0

    before = descriptors()
    for _ in range(3):
        load(saved)
        load(saved, mmap=False)
        verify(saved)
        save(saved, SMALL)
    (saved / "sizes.bin").unlink()
    for _ in range(3):
        with pytest.raises(CorruptIndexError):
            load(saved)
    assert descriptors() == before


def test_the_manifest_alone_tells_what_is_there(saved: Path) -> None:
    (saved / "means.bin").unlink()
    manifest = read_manifest(saved)
    assert manifest.kind == "index"
    assert [blob.name for blob in manifest.blobs] == ["means", "sizes", "empty"]


def test_verification_lists_every_blob(saved: Path) -> None:
    found = verify(saved)
    assert (found.kind, found.version, found.parameters) == ("index", FORMAT_VERSION, SMALL.parameters)
    assert [(blob.name, blob.dtype, blob.shape, blob.bytes, blob.ok) for blob in found.blobs] == [
        ("means", "float32", (3, 4), 128, True),
        ("sizes", "int64", (3,), 128, True),
        ("empty", "float16", (0, 5), 64, True),
    ]


def test_the_kind_must_be_the_requested_one(saved: Path) -> None:
    assert load(saved, kind="index").kind == "index"
    with pytest.raises(
        NotAnIndexError, match=r"holds an index, not a learned-similarity index; open it with softindex\.load"
    ):
        load(saved, kind="mixture-index")
    with pytest.raises(NotAnIndexError, match="not a save of kind 'other'"):
        load(saved, kind="other")


def test_a_link_to_a_saved_directory_is_followed(saved: Path) -> None:
    link = saved.parent / "latest"
    link.symlink_to("index")
    assert_same(load(link), SMALL)
    new = Stored("index", {"new": True})
    save(link, new)
    assert link.is_symlink()
    assert_same(load(saved), new)


def test_files_the_manifest_does_not_name_are_ignored_by_load(saved: Path) -> None:
    (saved / "README").write_text("mine")
    (saved / "other.bin").write_bytes(b"mine")
    assert_same(load(saved), SMALL)


# --- what softindex did not save stays -------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        {"notes.txt": "mine"},
        {"manifest.json": '{"name": "firmware"}', "firmware.bin": "mine"},
        {"manifest.json": "not json"},
        {"data.bin": "mine"},
        {"folder/file": "mine"},
        {".hidden": "mine"},
    ],
    ids=["text", "another manifest", "broken manifest", "a blob alone", "folder", "hidden"],
)
def test_a_directory_softindex_did_not_save_is_not_replaced(tmp_path: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (tmp_path / "index" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "index" / name).write_text(text)
    before = snapshot(tmp_path)
    with pytest.raises(SaveError, match="not replaced"):
        save(tmp_path / "index", SMALL)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["README", "pytorch_model.bin"])
def test_a_saved_directory_with_something_added_is_not_replaced(saved: Path, name: str) -> None:
    (saved / name).write_text("mine")
    before = snapshot(saved.parent)
    with pytest.raises(SaveError, match=f"'{name}'"):
        save(saved, SMALL)
    assert snapshot(saved.parent) == before


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "index").write_text("mine")
    with pytest.raises(SaveError, match="not replaced"):
        save(tmp_path / "index", SMALL)
    assert snapshot(tmp_path) == {"index": b"mine"}


def test_an_empty_directory_and_a_damaged_save_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    save(tmp_path / "index", SMALL)
    (tmp_path / "index" / "means.bin").unlink()
    flip(tmp_path / "index" / MANIFEST_NAME, 20)
    save(tmp_path / "index", SMALL)
    assert_same(load(tmp_path / "index"), SMALL)


def test_a_parent_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for parent in ("absent", "file"):
        with pytest.raises(SaveError, match="create it first"):
            save(tmp_path / parent / "index", SMALL)
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_stored_leaves_the_old_untouched(saved: Path) -> None:
    before = snapshot(saved.parent)
    for stored in (Stored("index", {}, {"a": np.array([None])}), Stored("index", {"x": {1, 2}})):
        with pytest.raises(InputError):
            save(saved, stored)
    assert snapshot(saved.parent) == before


def test_a_directory_closed_to_others_stays_closed(saved: Path) -> None:
    saved.chmod(0o700)
    save(saved, SMALL)
    assert saved.stat().st_mode & 0o777 == 0o700


@contextmanager
def without_privileges(directory: str) -> Iterator[None]:
    """Act as a user who may not write to the directory; root acts as nobody."""
    user = os.geteuid()
    os.chmod(directory, 0o555)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        os.chmod(directory, 0o755)


def test_saving_without_permission_gives_a_sentence_and_leaves_the_old() -> None:
    with tempfile.TemporaryDirectory() as parent:
        path = Path(parent, "index")
        save(path, SMALL)
        with without_privileges(parent), pytest.raises(SaveError, match=r"Permission denied|does not read"):
            save(path, Stored("index", {}))
        assert_same(load(path), SMALL)
        assert os.listdir(parent) == ["index"]


def test_a_file_that_may_not_be_read_gives_a_sentence(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match="could not be read: Permission denied"):
        load(saved)


# --- leftovers -------------------------------------------------------------------------------------------


def test_leftovers_of_killed_saves_are_removed_but_not_those_of_living_ones(saved: Path) -> None:
    dead, living = (saved.parent / f".index.saving-{digit * 32}" for digit in "01")
    for directory in (dead, living):
        shutil.copytree(saved, directory)
    similar = [saved.parent / name for name in (".index.saving-x", ".index2.saving-" + "0" * 32, "index.saving")]
    for directory in similar:
        directory.mkdir()
    descriptor = os.open(living, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    save(saved, SMALL)
    assert not dead.exists()
    assert living.exists()
    os.close(descriptor)
    save(saved, SMALL)
    assert not living.exists()
    assert all(directory.exists() for directory in similar)


def test_a_leftover_that_holds_something_else_keeps_it(saved: Path) -> None:
    leftover = saved.parent / (".index.saving-" + "0" * 32)
    leftover.mkdir()
    (leftover / "notes.txt").write_text("mine")
    save(saved, SMALL)
    assert (leftover / "notes.txt").read_text() == "mine"


def test_the_newest_set_aside_directory_is_loaded_when_a_save_was_cut_between_its_renames(
    saved: Path,
) -> None:
    old, new = (Stored("index", {"age": age}) for age in ("old", "new"))
    for digit, stored in (("1", old), ("2", new)):
        save(saved.parent / stored.parameters["age"], stored)
        (saved.parent / stored.parameters["age"]).rename(saved.parent / f".index.replaced-{digit * 32}")
    (saved.parent / (".index.replaced-" + "3" * 32)).mkdir()
    shutil.rmtree(saved)
    assert_same(load(saved), new)
    assert_same(load(saved, mmap=False), new)
    save(saved, SMALL)
    assert_same(load(saved), SMALL)
    assert os.listdir(saved.parent) == ["index"]


def test_a_save_that_ends_while_load_looks_beside_the_path_is_found(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = saved.parent / (".index.replaced-" + "0" * 32)
    saved.rename(aside)

    def too_late(target: str, state: str) -> list[str]:
        if aside.exists():
            aside.rename(saved)
        return []

    monkeypatch.setattr(reading, "siblings", too_late)
    assert_same(load(saved), SMALL)
