"""Limit the threads of NumPy's matrix products: for a small product, waking threads takes ten times as long."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Condition, get_ident
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["blas_threads"]


@cache
def _controller() -> Any:
    """Cached, because finding the BLAS libraries takes milliseconds."""
    return ThreadpoolController()


class _Limit:
    """The number of BLAS threads of the process, and who has set it."""

    def __init__(self) -> None:
        self.forked = False
        """Whether this process was forked while another thread was inside: then products use one thread."""
        self.reset()

    def reset(self) -> None:
        self.changed = Condition()
        self.inside: dict[object, tuple[int, int]] = {}
        """The thread of each open context, and the number that it asked for."""
        self.original: Any = None
        """What the first context replaced; the last one restores it."""
        self.paused: Any = None
        """What a fork in progress replaced."""

    def open(self, count: int) -> object:
        token = object()
        with self.changed:
            self.changed.wait_for(lambda: self.paused is None)
            if not self.forked and count < min((wanted for _, wanted in self.inside.values()), default=sys.maxsize):
                before = _controller().limit(limits=count, user_api="blas")
                self.original = self.original or before
            self.inside[token] = get_ident(), count
        return token

    def close(self, token: object) -> None:
        with self.changed:
            self.inside.pop(token, None)
            if not self.inside and self.original is not None:
                self.original.restore_original_limits()
                self.original = None
            self.changed.notify_all()

    def before_fork(self) -> None:
        """Let products on several threads end: while they run, OpenBLAS can hang in the fork or in the child.

        With one thread it neither starts threads again nor takes the locks that the child would find taken.
        """
        self.changed.acquire()
        self.changed.wait_for(lambda: self.paused is None)
        if self.inside:
            self.paused = _controller().limit(limits=1, user_api="blas")
            self.changed.wait_for(lambda: not self._others_use_threads())

    def _others_use_threads(self) -> bool:
        return any(count > 1 and thread != get_ident() for thread, count in self.inside.values())

    def after_fork_in_parent(self) -> None:
        if self.paused is not None:
            self.paused.restore_original_limits()
            self.paused = None
            self.changed.notify_all()
        self.changed.release()

    def after_fork_in_child(self) -> None:
        self.forked = self.forked or self.paused is not None
        self.reset()


_limit = _Limit()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_limit.before_fork,
        after_in_parent=_limit.after_fork_in_parent,
        after_in_child=_limit.after_fork_in_child,
    )


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """A context in which NumPy's matrix products run on `count` threads.

    The number belongs to the process: of several threads inside, the smallest one holds, and the last restores what was
    before.  A child that was forked while another thread was inside has one thread.
    """
    token = _limit.open(count)
    try:
        yield
    finally:
        _limit.close(token)
