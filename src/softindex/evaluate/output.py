"""Write text files, and check that they can be written before the long work starts."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from softindex.errors import InputError, show

__all__ = ["check_output", "write_output"]


def check_output(path: str | os.PathLike[str]) -> None:
    """Raise InputError for a path that cannot be written; writes nothing."""
    try:
        target = Path(path)
        if target.is_dir():
            raise InputError(f"{target} is a directory; name a file in it.")
        there = os.fspath(target) if target.exists() else os.fspath(target.resolve().parent)
        wanted = os.W_OK if target.exists() else os.W_OK | os.X_OK
        if not os.path.exists(there):
            raise InputError(f"{target} cannot be written: there is no directory {there}; create it or name another.")
        if not os.access(there, wanted):
            raise InputError(f"{target} cannot be written (permission denied); name a file in a writable directory.")
    except (OSError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _refused(path, error) from error


def write_output(path: str | os.PathLike[str], text: str) -> None:
    """Write the text; InputError if that fails, and then a file that was there before is untouched."""
    try:
        # Where a link points to, the file itself is replaced.
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")  # a pipe or a terminal
        else:
            _replace(target, text)
    except (OSError, TypeError, ValueError) as error:
        raise _refused(path, error) from error


def _replace(target: Path, text: str) -> None:
    written = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(target)
    except BaseException:
        with suppress(OSError):
            written.unlink()
        raise


def _refused(path: object, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "make room, or name a file elsewhere" if full else "name a file in a writable directory"
    shown = show(os.fspath(path) if isinstance(path, os.PathLike) else path)
    return InputError(f"{shown} cannot be written ({reason}); {advice}.")
