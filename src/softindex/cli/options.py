"""The application, and the options that several commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

import softindex
from softindex.laws import METHODS, TOLERANCE

__all__ = [
    "Allow",
    "AsJson",
    "Exclude",
    "IndexPath",
    "Item",
    "Method",
    "OptionalQueries",
    "Probes",
    "Queries",
    "Seed",
    "Subset",
    "Temperature",
    "Threads",
    "Tolerance",
    "Unknown",
    "app",
    "given",
]

EPILOG = (
    "Exit codes: 0 success, 1 output or system failure, 2 wrong usage, 3 bad input, 4 a saved index that cannot be "
    "read or written, 130 interrupted."
)

app = typer.Typer(
    help="Softmax over millions of items, in microseconds, with the error stated.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Method = Enum("Method", {name: name for name in METHODS}, type=str)  # type: ignore[misc]
UnknownIds = Enum("UnknownIds", {"error": "error", "ignore": "ignore"}, type=str)

IndexPath = Annotated[Path, typer.Argument(metavar="INDEX", help="Directory of a saved index, or of a catalogue.")]
Queries = Annotated[
    str,
    typer.Argument(metavar="QUERIES", help="File of query vectors, or - to read one query per line from stdin."),
]
OptionalQueries = Annotated[
    str | None,
    typer.Argument(metavar="[QUERIES]", help="File of query vectors, or - to read one query per line from stdin."),
]
Item = Annotated[
    list[str] | None,
    typer.Option(metavar="ID", help="Take the vector of this item as a query, instead of a file; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, one object per line.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same draws. Random when left out.")]
Threads = Annotated[int | None, typer.Option(help="Number of threads; all CPUs when left out.")]
Temperature = Annotated[
    float, typer.Option("--temperature", "-t", help="Low values favour the best items; high values are near uniform.")
]
Probes = Annotated[
    int | None,
    typer.Option(
        help="Clusters to scan before drawing. 0: none, and no error is reported. When left out, scan until the "
        "estimated error is within the tolerance or the budget is spent."
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(help=f"Total variation at which adaptive scanning stops; {TOLERANCE} when left out."),
]
Exclude = Annotated[
    str | None,
    typer.Option(metavar="IDS", help="Ids to leave out, separated by commas, or a text file with one id per line."),
]
Allow = Annotated[
    str | None,
    typer.Option(metavar="IDS", help="The only ids to return, separated by commas, or a text file with one per line."),
]
Subset = Annotated[
    str | None, typer.Option(metavar="NAME", help="Use only the items of this subset, which was saved with the index.")
]
Unknown = Annotated[
    UnknownIds | None,
    typer.Option(help="What to do with excluded or allowed ids that the index does not hold; error when left out."),
]


def given(**options: Any) -> dict[str, Any]:
    """The options that the user gave; the library has the defaults of the others."""
    return {
        name: value.value if isinstance(value, Enum) else value for name, value in options.items() if value is not None
    }


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"softindex {softindex.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Softmax over millions of items, in microseconds, with the error stated."""
