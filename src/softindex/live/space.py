"""The files of a catalogue: what they take, and which of them nobody needs any more."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress

from softindex.live.generation import Generation

__all__ = ["disk_bytes", "remove_unused"]

_OURS = re.compile(r"\.?(generation|segment)-[0-9]{12}(\.(saving|replaced)-[0-9a-f]{32})?")


def disk_bytes(place: str) -> int:
    """Bytes of all files in the directory."""
    total = 0
    for folder, _, files in os.walk(place):
        for name in files:
            with suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def remove_unused(place: str, generation: Generation | None) -> None:
    """Delete generations and segments that are not part of the present one.

    Readers of an older snapshot have all its files mapped, and the system keeps the space of a deleted file until the
    last mapping is gone: it is freed when the last such reader lets go, and no reader has to be asked.
    """
    needed = set() if generation is None else {generation.name, *generation.parameters["segments"]}
    with suppress(OSError):
        for name in os.listdir(place):
            if _OURS.fullmatch(name) and name not in needed:
                shutil.rmtree(os.path.join(place, name), ignore_errors=True)
