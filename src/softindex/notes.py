"""Notes to the caller: what was done with an input that was accepted but is not as expected."""

from __future__ import annotations

import sys
import warnings

__all__ = ["note", "note_rounded"]

PACKAGE = __name__.partition(".")[0]


def note(sentence: str) -> None:
    """Warn with the sentence, at the line outside softindex that called it: Python prints it once on stderr."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, UserWarning, stacklevel=level)


def note_rounded(what: str, kind: object) -> None:
    """Note that these numbers become float32."""
    note(f"{what} are {kind}: softindex keeps float32, so they were rounded to it in a copy.")
