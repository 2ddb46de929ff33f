"""Seconds of things that take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from softindex.records import Doubles

__all__ = ["take_turns"]

Name = TypeVar("Name")


def take_turns(
    functions: Mapping[Name, Callable[[Any], Any]],
    arguments: Sequence[Any],
    *,
    stretch: int = 20,
    report: Callable[[int, int], None] | None = None,
) -> dict[Name, Doubles]:
    """Seconds (m,) of each function for each of the m arguments.

    They take turns a stretch of arguments each, and not argument by argument: an index in service has its own means in
    the cache, not what a scan of everything left there.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in functions}
    for start in range(0, len(arguments), stretch):
        for name, function in functions.items():
            for argument in arguments[start : start + stretch]:
                begin = time.perf_counter()
                function(argument)
                seconds[name].append(time.perf_counter() - begin)
        if report is not None:
            report(min(start + stretch, len(arguments)), len(arguments))
    return {name: np.array(values) for name, values in seconds.items()}
