"""Write text files, and check that they can be written before the long work starts."""

from __future__ import annotations

import os
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
    """Write the text; InputError if that fails."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise _refused(path, error) from error


def _refused(path: object, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return InputError(f"{show(path)} cannot be written ({reason}); name a file in a writable directory.")
