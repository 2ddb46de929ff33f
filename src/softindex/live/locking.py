"""One writer at a time: a lock that the system frees when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from softindex.errors import SaveError

__all__ = ["WriterLock"]

LOCK = "writer.lock"


class WriterLock:
    """Held from open to close by the one process that may write."""

    def __init__(self, place: str) -> None:
        path = os.path.join(place, LOCK)
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise SaveError(
                f"{place} cannot be written ({error.strerror}); open it with read_only=True, or change its permissions."
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = self._holder()
            os.close(self._descriptor)
            raise SaveError(
                f"{place} is open for writing{holder}, and a catalogue has one writer at a time; "
                "close it there, or open it with read_only=True."
            ) from error
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def _holder(self) -> str:
        with suppress(OSError, ValueError):
            return f" in process {int(os.pread(self._descriptor, 20, 0))}"
        return ""

    def release(self) -> None:
        """Let another process write."""
        os.close(self._descriptor)
