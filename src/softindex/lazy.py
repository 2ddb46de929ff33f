"""An attribute that is computed when it is first read, without a lock that a forked child might find taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["lazy"]

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801 - used as a decorator
    """Like functools.cached_property, which has one lock for all instances before Python 3.12.

    Threads that read it at the same time may each compute it, so it must not depend on which of them is first.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> lazy[Value] | Value:
        if instance is None:
            return self
        # The instance's own attribute comes first from now on.
        value = instance.__dict__[self.name] = self.compute(instance)
        return value
