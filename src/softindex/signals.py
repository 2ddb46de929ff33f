"""Put off Ctrl-C while files are moved and removed: an exception between two of these steps would leave some behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupts_put_off"]


@contextmanager
def interrupts_put_off() -> Iterator[Callable[[], None]]:
    """A context in which SIGINT waits.  Yields a function that lets it happen: call it where stopping is safe.

    At the end a signal that still waits is handled.  Only the main thread handles signals; on others this does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    waiting: list[FrameType | None] = []

    def let_happen() -> None:
        if waiting:
            handler(signal.SIGINT, waiting.pop())

    signal.signal(signal.SIGINT, lambda number, frame: waiting.append(frame))
    try:
        yield let_happen
    finally:
        signal.signal(signal.SIGINT, handler)
        let_happen()
