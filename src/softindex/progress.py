"""Progress bars on stderr, shown only in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from softindex.records import Report

__all__ = ["reporting"]


@contextmanager
def reporting(show: bool) -> Iterator[Report | None]:
    """Yield a function that draws progress bars on stderr; None where `show` is False or stderr is not a terminal."""
    if not show or not sys.stderr.isatty():
        yield None
        return
    # Imported here, because rich takes longer to import than most of the library.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<22}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%", markup=False),
    )
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
