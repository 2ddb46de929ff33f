"""Keeps NumPy's own threads out of small products: to wake them takes ten times as long as the product."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread"]

_guard = Lock()
_inside: list[Any] = []
"""The limit that the first to come in set; one entry more for each that came after."""


@cache
def _controller() -> Any:
    """Finding the libraries takes milliseconds: once is enough."""
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which NumPy's products run on one thread.

    The number is one for the whole process: of several threads inside, the first sets it and the last restores it.
    """
    with _guard:
        _inside.append(None if _inside else _controller().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _guard:
            if len(_inside) == 1:
                _inside[0].restore_original_limits()
            # The limit itself stays at the front until nobody is inside.
            _inside.pop()
