"""Commands that measure: audit, demo."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from softindex import demo as demonstration
from softindex.arguments import check_count, check_seed
from softindex.cli.options import AsJson, IndexPath, Threads, app
from softindex.cli.printing import print_json, print_line, print_paragraph, print_table
from softindex.cli.reading import open_index, read_queries
from softindex.errors import InputError
from softindex.evaluate import LEGEND, TEMPERATURES, Audit
from softindex.evaluate.output import check_output
from softindex.laws import TOLERANCE

__all__: list[str] = []

SPARE = ("KL interval", "log Z error", "items scored", "covered")
"""Columns of an audit that a narrow terminal does not show."""
DECIDED = (", us", "weight error")
"""Ends and beginnings of columns that have a table of their own."""
DECIDED_LEGEND = (
    "Slates are drawn without replacement. Weight error is the mean relative error of an importance weight for those "
    "who take the softmax as the propensity, by the error that the method states: twice the total variation, and up "
    "to as many times that as a slate has items. Weights by draws.log_prob have no such error; certified is the "
    "exception, whose log_prob is an estimate between bounds."
)


@app.command()
def audit(
    index: IndexPath,
    queries: Annotated[
        str | None,
        typer.Option(
            help="File of query vectors, or - for stdin; items of the index, each left out for itself, when left out."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="Number of queries; 300 items, or the entire file, when left out.")
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option("--temperature", "-t", help="Repeatable; 0.05, 0.1 and 0.2 when left out."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; sd-2ls:16 is sd-2ls with 16 probes. All when left out."),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help=f"Largest total variation of a recommended method; {TOLERANCE} when left out.")
    ] = None,
    slate: Annotated[
        int | None, typer.Option(help="Also time slates of this many items and exclusions; 10 is usual.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML report with plots to this file.")] = None,
    seed: Annotated[int, typer.Option(help="Seed that chooses the queries.")] = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure the error and the cost of every method on your own vectors."""
    if html is not None:
        check_output(html)
    found = open_index(index).audit(
        None if queries is None else read_queries(queries),
        count=count,
        temperatures=temperature or TEMPERATURES,
        methods=method or None,
        tolerance=tolerance,
        slate=slate,
        seed=seed,
        threads=threads,
        progress=True,
    )
    if html is not None:
        found.to_html(html)
    if as_json:
        print_json(found.to_dict())
        return
    _print_audit(found)
    if html is not None:
        print_line(f"The report is in {html}.")


def _print_audit(found: Audit) -> None:
    _print_tables(found)
    print_paragraph(LEGEND)
    if found.rows[0].decided is not None:
        print_paragraph(DECIDED_LEGEND)
    print_paragraph(f"Recommended: {found.recommendation}")


def _print_tables(found: Audit) -> None:
    """One table for each temperature, and one of slates and exclusions where they were measured."""
    for temperature in found.temperatures:
        title = f"temperature {temperature:g}, {found.parameters['queries']} queries"
        # The title says the temperature.
        cells = [{name: cell for name, cell in row.cells().items() if name != "t"} for row in found.at(temperature)]
        print_table(title, *_columns([_without(row, DECIDED) for row in cells]), spare=SPARE)
        if found.rows[0].decided is not None:
            names = ("method", "microseconds", "stated TV")
            chosen = [{name: cell for name, cell in row.items() if name in names} for row in cells]
            more = [row.decided.cells() for row in found.at(temperature) if row.decided is not None]
            both = [{**one, **other} for one, other in zip(chosen, more, strict=True)]
            print_table(f"slates and exclusions, temperature {temperature:g}", *_columns(both))


def _without(row: dict[str, str], marks: tuple[str, ...]) -> dict[str, str]:
    return {name: cell for name, cell in row.items() if not name.endswith(marks) and not name.startswith(marks)}


def _columns(cells: Iterable[dict[str, str]]) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of a table."""
    rows = list(cells)
    return list(rows[0]), [list(row.values()) for row in rows]


@app.command()
def demo(
    items: Annotated[int, typer.Option(help="Number of items.")] = 200_000,
    every: Annotated[
        bool, typer.Option("--all", help="Compare every method, at three temperatures, in one table each.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the data and of the draws.")] = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Build an index of a made-up shop, draw from it, and show the error and the speed."""
    if check_count(items, "items") < 100:
        raise InputError(f"items is {items}; expected at least 100.")
    found = demonstration.compare(items, seed=check_seed(seed), threads=threads, every_method=every)
    if as_json:
        print_json(found.to_dict())
        return
    print_paragraph(found.conclude())
    print_line("")
    if every:
        _print_tables(found.audit)
        print_paragraph(demonstration.LEGEND)
    else:
        queries = found.audit.parameters["queries"]
        print_table(
            f"one thread, temperature {demonstration.TEMPERATURE}, {queries} queries",
            *found.table(),
        )
    _print_drawn(found)


def _print_drawn(found: demonstration.Demo) -> None:
    print_line("")
    print_line(f"Drawn for the query {found.query}, with probabilities:")
    for name, probability in found.drawn:
        print_line(f"  {name:<34} {probability:.2%}")
    print_line("")
    print_paragraph(
        "All methods and temperatures: softindex demo --all. Your own vectors: softindex build, then softindex audit."
    )
