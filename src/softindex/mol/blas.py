"""Keeps NumPy's own threads out of small products: to wake them takes ten times as long as the product."""

from __future__ import annotations

from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["blas_threads"]


@cache
def _controller() -> Any:
    """Finding the libraries takes milliseconds: once is enough."""
    return ThreadpoolController()


def blas_threads(count: int) -> Any:
    """A context in which NumPy's products run on so many threads."""
    return _controller().limit(limits=count, user_api="blas")
