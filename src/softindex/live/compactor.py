"""Runs compactions one at a time, in a thread of the writer; keeps failures visible and tries again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from softindex.live.status import CompactionState

__all__ = ["Compactor"]

FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0
"""Seconds before a failed compaction is tried again: twice as long after each failure."""


class Compactor:
    """Calls `work` when asked to, in the calling thread or in the background."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._one = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._running, self._completed, self._failures = False, 0, 0
        self._error: str | None = None
        self._seconds: float | None = None

    def state(self) -> CompactionState:
        """How it fares."""
        return CompactionState(self._running, self._completed, self._failures, self._error, self._seconds)

    def run(self) -> None:
        """Compact now; raises what went wrong."""
        with self._one:
            self._running, start = True, time.monotonic()
            try:
                self._work()
            except BaseException as error:
                self._failures += 1
                self._error = f"{type(error).__name__}: {error}"
                raise
            else:
                self._completed += 1
                self._failures, self._error = 0, None
            finally:
                self._running, self._seconds = False, time.monotonic() - start

    def wake(self) -> None:
        """Compact in the background, soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="softindex-compaction", daemon=True)
            self._thread.start()
        self._wake.set()

    def _loop(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopped:
                return
            try:
                self.run()
            except Exception:
                # status() shows it; a change or the time that passes tries again.
                wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._failures - 1, 20))
                deadline = time.monotonic() + wait
                while not self._stopped and time.monotonic() < deadline:
                    time.sleep(min(0.2, wait))
                self._wake.set()

    def stop(self) -> None:
        """Wait for the running compaction, and start no other."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._one:
            pass
