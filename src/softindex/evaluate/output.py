"""Files for people: whether one can be written, asked before the long work, and the writing."""

from __future__ import annotations

import os
from pathlib import Path

from softindex.errors import InputError

__all__ = ["check_output", "write_output"]


def check_output(path: str | os.PathLike[str]) -> None:
    """Refuse a path that could not be written; nothing is left behind."""
    target = Path(path)
    existed = target.exists()
    try:
        with target.open("a", encoding="utf-8"):
            pass
        if not existed:
            target.unlink()
    except OSError as error:
        raise InputError(f"{target} cannot be written ({error.strerror}); name a file in a folder of yours.") from error


def write_output(path: str | os.PathLike[str], text: str) -> None:
    """Write the text; InputError if that fails."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); name a file in a folder of yours.") from error
