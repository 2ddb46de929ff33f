"""The access log: lines of JSON on standard error, written by a thread so that a full pipe stops nobody."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["AccessLog"]

SECONDS = 0.1
"""Between writes: lines are written together."""
MOST_LINES = 10_000
"""Lines kept while they cannot be written; then the oldest are dropped."""
LAST_SECONDS = 2.0


class AccessLog:
    """Lines of one worker process."""

    def __init__(self) -> None:
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=MOST_LINES)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="softindex-log", daemon=True)
        self._thread.start()

    def add(self, line: Mapping[str, Any]) -> None:
        """Write this line soon."""
        self._lines.append(line)

    def close(self) -> None:
        """Write what is left, unless nobody reads it."""
        self._stop.set()
        self._thread.join(LAST_SECONDS)

    def _run(self) -> None:
        encoder = msgspec.json.Encoder()
        while True:
            stopped = self._stop.wait(SECONDS)
            parts = []
            while self._lines:
                parts.append(encoder.encode(self._lines.popleft()) + b"\n")
            if parts:
                sys.stderr.buffer.write(b"".join(parts))
                sys.stderr.buffer.flush()
            if stopped:
                return
