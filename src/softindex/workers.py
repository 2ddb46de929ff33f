"""Threads for work in Python, as many as the system gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from softindex.errors import SoftindexError

__all__ = ["workers"]


@contextmanager
def workers(
    threads: int, initializer: Callable[..., Any] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[ThreadPoolExecutor]:
    """A pool of `threads` threads, or of as many as the system starts; SoftindexError where it starts none.

    Making it takes a millisecond: it is for the stages of a build and an audit.  At the end, and after Ctrl-C, it waits
    for the tasks that run; those that have not begun are dropped.
    """
    pool = ThreadPoolExecutor(_granted(threads), initializer=initializer, initargs=initargs)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _granted(threads: int) -> int:
    """How many of these threads the system starts.  A pool that is refused one fails in the middle of its work."""
    end = Event()
    started: list[Thread] = []
    try:
        for _ in range(threads):
            thread = Thread(target=end.wait)
            thread.start()
            started.append(thread)
    except RuntimeError:
        if not started:
            raise SoftindexError(
                "the system refuses to start a thread; end other processes or raise the limit on them (ulimit -u)."
            ) from None
    finally:
        end.set()
        for thread in started:
            thread.join()
    return len(started)
