"""Killed, starved of space or raced: what loads is the whole old or the whole new, never anything between."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from softindex.errors import NotAnIndexError, SaveError
from softindex.records import Stored
from softindex.store import load, read_manifest, replacing, save, verify


def constant(value: int, *, size: int = 100) -> Stored:
    """Every array and every parameter says `value`, so that a mixture shows."""
    arrays = {name: np.full(size, value, np.int32) for name in ("first", "second")}
    return Stored("index", {"value": value}, arrays)


def value_of(stored: Stored) -> int:
    """The value all of it says."""
    values = {int(element) for array in stored.arrays.values() for element in np.unique(array)}
    assert values == {stored.parameters["value"]}, "parts of two saves are mixed"
    return values.pop()


OLD, NEW, NEXT = constant(1), constant(2), constant(3)
# What a save asks of the system; a kill between two of these is a kill at every moment that matters.
CALLS = ["open", "write", "fsync", "close", "mkdir", "rename", "unlink", "rmdir", "fchmod", "listdir", "stat"]


def count_calls(tick: Callable[[], None], patch: Callable[[Any, str, Any], None], calls: list[str]) -> None:
    """Call tick before each call to the system, and once more in the middle of each write."""

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            tick()
            return function(*arguments, **options)

        return call

    write = os.write

    def torn_write(descriptor: int, data: memoryview) -> int:
        tick()
        written = write(descriptor, data[: len(data) // 2])
        tick()
        return written + write(descriptor, data[len(data) // 2 :])

    for name in calls:
        patch(os, name, torn_write if name == "write" else counted(getattr(os, name)))
    patch(fcntl, "flock", counted(fcntl.flock))
    patch(replacing, "exchange", counted(replacing.exchange))


def in_child(work: Callable[[], None]) -> int:
    """Run work in a forked process; returns its exit code, negative for the signal that ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def save_killed_at(step: int, path: Path, stored: Stored) -> bool:
    """Save in a process that is killed with SIGKILL at its step-th call; False once it got to the end."""

    def work() -> None:
        ticks = iter(range(sys.maxsize))
        count_calls(lambda: die() if next(ticks) == step else None, setattr, CALLS)
        save(path, stored)

    code = in_child(work)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def copies(template: Path, work: Path) -> Iterator[tuple[int, Path]]:
    """Fresh copies of the directory template, one for each step."""
    for step in range(1000):
        directory = work / str(step)
        shutil.copytree(template, directory)
        yield step, directory / "index"
        shutil.rmtree(directory)
    raise AssertionError("the save never came to its end")


def cannot_exchange(first: str, second: str) -> bool:
    return False


@pytest.fixture(params=["exchange", "two renames"])
def swap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to put a directory in the place of another."""
    if request.param == "two renames":
        monkeypatch.setattr(replacing, "exchange", cannot_exchange)
    return str(request.param)


def test_this_system_can_exchange_two_directories(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not replacing.exchange(str(tmp_path / "first"), str(tmp_path / "second")):
        pytest.skip("this system or file system cannot")
    assert os.listdir(tmp_path / "first") == ["second"]
    with pytest.raises(FileNotFoundError):
        replacing.exchange(str(tmp_path / "first"), str(tmp_path / "absent"))


def test_killed_at_any_step_the_old_or_the_new_loads(tmp_path: Path, swap: str) -> None:
    template = tmp_path / "template"
    template.mkdir()
    save(template / "index", OLD)
    seen = []
    for step, path in copies(template, tmp_path):
        killed = save_killed_at(step, path, NEW)
        seen.append(value_of(load(path, mmap=False)))
        assert read_manifest(path).parameters == {"value": seen[-1]}
        for aside in path.parent.glob(".index.replaced-*"):
            if (aside / "manifest.json").exists():
                verify(aside)
        save(path, NEXT)
        assert os.listdir(path.parent) == ["index"], "the next save removes what the killed one left"
        if not killed:
            break
    assert seen == sorted(seen), "once the new is there it stays"
    assert seen.count(1) > 20
    assert seen.count(2) > 5


def test_a_first_save_killed_at_any_step_leaves_nothing_or_the_new(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.mkdir()
    seen = []
    for step, path in copies(template, tmp_path):
        killed = save_killed_at(step, path, NEW)
        try:
            seen.append(value_of(load(path, mmap=False)))
        except NotAnIndexError:
            seen.append(0)
        save(path, NEXT)
        assert os.listdir(path.parent) == ["index"]
        if not killed:
            break
    assert seen == sorted(seen)
    assert {0, 2} == set(seen)


def test_a_save_that_mends_a_cut_one_may_be_killed_too(tmp_path: Path, swap: str) -> None:
    template = tmp_path / "template"
    template.mkdir()
    save(template / "index", OLD)
    (template / "index").rename(template / (".index.replaced-" + "0" * 32))
    for step, path in copies(template, tmp_path):
        killed = save_killed_at(step, path, NEW)
        assert value_of(load(path, mmap=False)) in (1, 2)
        if not killed:
            assert os.listdir(path.parent) == ["index"]
            break


def save_failing_at(step: int, path: Path, stored: Stored) -> tuple[SaveError | None, bool]:
    """Save while the step-th call fails; returns what was raised and whether it came to that call."""
    ticks = iter(range(sys.maxsize))

    def fail() -> None:
        if next(ticks) == step:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patch:
        # A close that fails would leave the descriptor, and with it the lock, to this process.
        count_calls(fail, patch.setattr, [name for name in CALLS if name != "close"])
        try:
            save(path, stored)
        except SaveError as error:
            return error, True
    return None, next(ticks) > step


def test_a_call_that_fails_at_any_step_leaves_the_old_and_nothing_else(tmp_path: Path, swap: str) -> None:
    template = tmp_path / "template"
    template.mkdir()
    save(template / "index", OLD)
    raised = 0
    for step, path in copies(template, tmp_path):
        error, failed = save_failing_at(step, path, NEW)
        assert value_of(load(path, mmap=False)) == (2 if error is None else 1)
        assert os.listdir(path.parent) == ["index"]
        raised += error is not None
        if not failed:
            break
    assert raised > 20


@pytest.mark.skipif(sys.platform != "linux", reason="names of descriptors are read from /proc")
def test_everything_reaches_the_disk_before_the_swap_and_the_swap_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = []
    fsync, exchange = os.fsync, replacing.exchange

    def logged_fsync(descriptor: int) -> None:
        log.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def logged_exchange(first: str, second: str) -> bool:
        log.append("swap")
        return exchange(first, second)

    save(tmp_path / "index", OLD)
    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(replacing, "exchange", logged_exchange)
    save(tmp_path / "index", NEW)
    assert log[3].startswith(".index.saving-")
    assert log == ["first.bin", "second.bin", "manifest.json", log[3], "swap", tmp_path.name]


# --- no room ---------------------------------------------------------------------------------------------


def test_a_limit_on_the_size_of_a_file_leaves_the_old(tmp_path: Path) -> None:
    path = tmp_path / "index"
    save(path, OLD)

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        with pytest.raises(SaveError, match=r"saving 8000\d+ bytes to .*File too large; raise the limit"):
            save(path, constant(2, size=1_000_000))

    assert in_child(work) == 0
    assert value_of(load(path, verify=True)) == 1
    assert os.listdir(tmp_path) == ["index"]


def test_a_disk_without_room_is_told_with_what_was_needed_and_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", no_room)
    with pytest.raises(SaveError, match=r"saving 1024 bytes to .*: No space left.*; \d+ bytes are free there"):
        save(tmp_path / "index", OLD)
    assert os.listdir(tmp_path) == []


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A file system of one mebibyte; skips the test where mounting is not allowed."""
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk_leaves_the_old_and_says_what_was_needed_and_free(tmp_path: Path, swap: str) -> None:
    path = tmp_path / "index"
    with small_disk(tmp_path):
        save(path, OLD)
        with pytest.raises(SaveError, match=r"saving 8000\d+ bytes .*No space left.* \d+ bytes are free"):
            save(path, constant(2, size=1_000_000))
        assert value_of(load(path, mmap=False)) == 1
        assert os.listdir(tmp_path) == ["index"]
        save(path, NEW)
        assert value_of(load(path, mmap=False)) == 2


def test_a_mount_point_is_not_replaced_and_the_sentence_says_so(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with small_disk(tmp_path / "index"), pytest.raises(SaveError, match="mount point"):
        save(tmp_path / "index", OLD)
    assert os.listdir(tmp_path) == ["index"]


# --- at the same time ------------------------------------------------------------------------------------


def test_a_mapped_save_may_be_saved_onto_itself(tmp_path: Path, swap: str) -> None:
    path = tmp_path / "index"
    save(path, constant(7, size=3_000_000))
    mapped = load(path)
    for _ in range(2):
        save(path, mapped)
        assert value_of(load(path, verify=True)) == 7
    save(path, NEW)
    assert value_of(mapped) == 7, "a mapping outlives the directory it came from"
    assert value_of(load(path)) == 2


@contextmanager
def savers(path: Path, *, count: int) -> Iterator[None]:
    """Processes that save 1 and 2 in turn until the end of the block."""
    stop = Path(tempfile.mkdtemp()) / "stop"
    children = []
    for _ in range(count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                while not stop.exists():
                    save(path, OLD)
                    save(path, NEW)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    try:
        yield
    finally:
        stop.touch()
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        shutil.rmtree(stop.parent)
    assert codes == [0] * count


@pytest.mark.parametrize("count", [1, 3])
def test_readers_see_the_old_or_the_new_and_never_a_mixture(tmp_path: Path, swap: str, count: int) -> None:
    path = tmp_path / "index"
    save(path, OLD)
    seen = []
    with savers(path, count=count):
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            seen.append(value_of(load(path)))
            seen.append(value_of(load(path, mmap=False)))
            verify(path)
            read_manifest(path)
    assert set(seen) == {1, 2}
    save(path, NEXT)
    assert os.listdir(tmp_path) == ["index"]
