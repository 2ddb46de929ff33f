"""Locks that a forked child finds free: a thread that held one in the parent does not exist there."""

from __future__ import annotations

import os
from threading import Lock
from types import TracebackType
from weakref import WeakSet

__all__ = ["ForkLock"]


class ForkLock:
    """A lock for changes that end in one assignment: a child may begin anew where another thread was interrupted."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = Lock()


_all: WeakSet[ForkLock] = WeakSet()


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
