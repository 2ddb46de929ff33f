"""The application, and the options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import softindex

__all__ = ["AsJson", "IndexPath", "Queries", "Seed", "Temperature", "Threads", "app"]

EPILOG = "Exit codes: 0 done, 1 unexpected failure, 2 wrong usage, 3 bad input, 4 a saved index that cannot be used."

app = typer.Typer(
    help="Softmax over millions of items, in microseconds, with the error stated.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

IndexPath = Annotated[Path, typer.Argument(metavar="INDEX", help="Directory of a saved index.")]
Queries = Annotated[
    str,
    typer.Argument(metavar="QUERIES", help="File of vectors, or - for one query a line on standard input."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for programs.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same draws. A fresh one when left out.")]
Threads = Annotated[int | None, typer.Option(help="Threads to use; all CPUs when left out.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="Low is greedy, high is uniform.")]


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
