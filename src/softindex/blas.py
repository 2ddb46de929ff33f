"""Limit the threads of NumPy's matrix products: for a small product, waking threads takes ten times as long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["blas_threads"]

_guard = Lock()
_inside: list[Any] = []
"""One entry per open context; the first one is the limit that was set."""


@cache
def _controller() -> Any:
    """Cached, because finding the BLAS libraries takes milliseconds."""
    return ThreadpoolController()


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """A context in which NumPy's matrix products run on `count` threads.

    The number belongs to the process: of several threads inside, the first sets it and the last restores it.
    """
    with _guard:
        _inside.append(None if _inside else _controller().limit(limits=count, user_api="blas"))
    try:
        yield
    finally:
        with _guard:
            if len(_inside) == 1:
                _inside[0].restore_original_limits()
            # The limit itself stays at the front until the last context closes.
            _inside.pop()
