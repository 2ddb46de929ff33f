"""The command that calibrates the stated error of a saved index: calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softindex.calibration import CONFIDENCE
from softindex.cli.options import AsJson, IndexPath, Method, Probes, Queries, Threads, Tolerance, app, given
from softindex.cli.printing import print_json, print_line
from softindex.cli.reading import open_index, read_queries

__all__: list[str] = []


@app.command()
def calibrate(
    index: IndexPath,
    queries: Queries,
    confidence: Annotated[
        float | None, typer.Option(help=f"Share of queries that the error covers; {CONFIDENCE} when left out.")
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option("--temperature", "-t", help="Repeatable: the range to cover; 0.02 to 0.2 when left out."),
    ] = None,
    method: Annotated[Method | None, typer.Option(help="The method to calibrate; sd-2ls when left out.")] = None,
    probes: Probes = None,
    tolerance: Tolerance = None,
    output: Annotated[
        Path | None, typer.Option(help="Directory to write; the index itself is replaced when left out.")
    ] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate the stated error of a saved index on your own queries.

    Afterwards, for queries like these, the error is at least the total variation with the given confidence.
    """
    options = given(confidence=confidence, method=method, probes=probes, tolerance=tolerance, threads=threads)
    if temperature:
        options["temperatures"] = temperature
    calibrated = open_index(index).calibrate(read_queries(queries), progress=True, **options)
    place = index if output is None else output
    calibrated.save(place, progress=True)
    found = calibrated.calibration
    assert found is not None
    low, high = float(found.temperatures[0]), float(found.temperatures[-1])
    if as_json:
        facts = {"index": str(place), **found.parameters(), "queries": found.queries, "temperatures": [low, high]}
        print_json(facts)
        return
    print_line(
        f"{place}: the error of {found.setting.method} covers {found.confidence:.0%} of queries like these "
        f"{found.queries}, at temperatures from {low:g} to {high:g}"
    )
