"""Download a package of npm or PyPI without installing it, check it, and keep what was read from it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from softindex import store
from softindex.errors import CorruptIndexError, InputError, MissingDependencyError, NotAnIndexError, SaveError
from softindex.records import Stored

__all__ = ["check_digest", "keep", "npm_pack", "pip_download"]

Arrays = Mapping[str, NDArray[Any]]


def keep(
    cache: str | os.PathLike[str] | None, name: str, kind: str, what: str, make: Callable[[str], Arrays]
) -> Arrays:
    """The arrays that `make(scratch directory)` returns: made once, then kept in `cache` under this name.

    `cache` is $XDG_CACHE_HOME/softindex or ~/.cache/softindex when None.  Arrays are saved as softindex saves its
    indexes, and all checksums are verified on every opening.  A damaged copy is made again.
    """
    folder = _default_cache() if cache is None else Path(cache)
    place = folder / name
    if place.exists():
        try:
            # In memory, not mapped: all of it is read for the check anyway, and draws are timed on it.
            return store.load(place, mmap=False, kind=kind).arrays
        except (CorruptIndexError, NotAnIndexError):
            # The store would not replace a directory whose manifest is damaged.
            shutil.rmtree(place, ignore_errors=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as scratch:
            arrays = dict(make(scratch))
    except OSError as error:
        raise SaveError(f"{folder} cannot store {what} ({error}); choose another cache.") from error
    store.save(place, Stored(kind, {"name": name}, arrays))
    return arrays


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softindex"


def npm_pack(scratch: str, package: str, version: str, what: str) -> Path:
    """Have npm download the archive of a package into `scratch`, and return its path."""
    npm = shutil.which("npm")
    if npm is None:
        raise MissingDependencyError(
            f"{what} come in the npm package {package}, and npm is not installed; install Node.js, which "
            "includes it, or pass the path of your own word vectors."
        )
    command = [npm, "pack", "--silent", "--ignore-scripts", f"{package}@{version}"]
    return _run(command, scratch, "*.tgz", f"npm pack {package}@{version} did not download {what}", "npm")


def pip_download(scratch: str, package: str, version: str, what: str) -> Path:
    """Have pip download the wheel of a package into `scratch`, and return its path; nothing is installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", scratch, f"{package}=={version}"]
    return _run(command, scratch, "*.whl", f"pip download {package}=={version} did not download {what}", "pip")


def _run(command: list[str], scratch: str, pattern: str, failure: str, tool: str) -> Path:
    try:
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, errors="replace", check=False)
        said = " ".join((done.stderr or done.stdout).split())[-300:] or f"exit code {done.returncode}"
        failed = done.returncode != 0
    except OSError as error:
        said, failed = str(error), True
    archives = list(Path(scratch).glob(pattern))
    if failed or len(archives) != 1:
        raise InputError(f"{failure} ({said}); check that {tool} reaches its registry and try again.")
    return archives[0]


def check_digest(data: bytes | Path, expected: str, what: str, tool: str) -> None:
    """Refuse data, or a file, with another SHA-256 than expected: every machine must measure the same vectors."""
    if isinstance(data, Path):
        with data.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    else:
        found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise InputError(
            f"{what} has SHA-256 {found}; expected {expected}: it was damaged or replaced in transit, so it is not "
            f"opened; clear {tool}'s cache and try again."
        )
