"""Time functions in turns, so that a busy machine slows all of them equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from softindex.blocks import blocks
from softindex.records import Doubles

__all__ = ["take_turns"]

Name = TypeVar("Name")


def take_turns(
    functions: Mapping[Name, Callable[[Any], Any]],
    arguments: Sequence[Any],
    *,
    stretch: int = 20,
    clock: Callable[[], float] = time.perf_counter,
    report: Callable[[int, int], None] | None = None,
) -> dict[Name, Doubles]:
    """Seconds (m,) that each function takes for each of the m arguments, by the clock.

    Each function runs on `stretch` arguments before the next one does.  Switching after every argument would measure
    cold caches: an index in service keeps its cluster means in the cache, and a full scan in between would evict them.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in functions}
    for part in blocks(len(arguments), stretch):
        for name, function in functions.items():
            for argument in arguments[part]:
                begin = clock()
                function(argument)
                seconds[name].append(clock() - begin)
        if report is not None:
            report(part.stop, len(arguments))
    return {name: np.array(values) for name, values in seconds.items()}
