"""How many threads NumPy's products run on: to wake its own for a small one takes ten times as long as the product."""

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
"""The limit that the first to come in set; one entry more for each that came after."""


@cache
def _controller() -> Any:
    """Finding the libraries takes milliseconds: once is enough."""
    return ThreadpoolController()


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """A context in which NumPy's products run on so many threads.

    There is one number for the whole process: of several threads inside, the first sets it and the last restores it.
    """
    with _guard:
        _inside.append(None if _inside else _controller().limit(limits=count, user_api="blas"))
    try:
        yield
    finally:
        with _guard:
            if len(_inside) == 1:
                _inside[0].restore_original_limits()
            # The limit itself stays at the front until nobody is inside.
            _inside.pop()
