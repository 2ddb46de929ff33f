"""Commands that make and change a catalogue: live create, upsert, remove, status, compact."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import softindex
from softindex.cli.options import AsJson, Unknown, app, given
from softindex.cli.printing import print_json, print_line, print_table
from softindex.cli.reading import parse_ids, read_array, read_ids
from softindex.errors import InputError
from softindex.restrictions import count_items
from softindex.vectors import read

__all__: list[str] = []

live = typer.Typer(help="Catalogues that change: durable upserts and removals.", no_args_is_help=True)
app.add_typer(live, name="live")

Catalogue = Annotated[Path, typer.Argument(metavar="CATALOGUE", help="Directory of the catalogue.")]
Ids = Annotated[Path | None, typer.Option(help="Text file with one id per line: all integers, or all strings.")]
Bias = Annotated[Path | None, typer.Option(help=".npy file with one bias per item, divided by the temperature.")]
LogBias = Annotated[Path | None, typer.Option(help=".npy file with one log bias per item, not divided.")]


@live.command()
def create(
    catalogue: Catalogue,
    source: Annotated[
        str | None,
        typer.Argument(metavar="[VECTORS|INDEX]", help="File of item vectors, or directory of a saved index."),
    ] = None,
    dim: Annotated[int | None, typer.Option(help="Make an empty catalogue of this many dimensions.")] = None,
    ids: Ids = None,
    bias: Bias = None,
    log_bias: LogBias = None,
) -> None:
    """Make a catalogue from vectors, from a saved index, or empty with --dim."""
    if (source is None) == (dim is None):
        raise InputError("say what the catalogue is made from: a file of vectors, a saved index, or --dim.")
    options: dict[str, Any] = given(
        ids=None if ids is None else read_ids(ids),
        bias=None if bias is None else read_array(bias),
        log_bias=None if log_bias is None else read_array(log_bias),
    )
    made: Any = dim if source is None else softindex.load(source) if os.path.isdir(source) else source
    with softindex.open(catalogue, create=made, compaction="manual", **options) as opened:
        print_line(f"{catalogue}: {len(opened)} items of {opened.dim} dimensions")


@live.command()
def upsert(
    catalogue: Catalogue,
    vectors: Annotated[str, typer.Argument(metavar="VECTORS", help="File of item vectors.")],
    ids: Ids = None,
    bias: Bias = None,
    log_bias: LogBias = None,
) -> None:
    """Add items, or replace those with the same ids. Ids come from --ids or from the file itself."""
    source = read(vectors, ids=None if ids is None else read_ids(ids))
    if source.ids is None:
        raise InputError(f"{vectors} has no ids; pass them with --ids.")
    options = given(
        bias=None if bias is None else read_array(bias),
        log_bias=None if log_bias is None else read_array(log_bias),
    )
    with softindex.open(catalogue, compaction="manual") as opened:
        number = opened.upsert(source.ids, source.vectors, **options)
        print_line(f"{catalogue}: {count_items(len(source.vectors))} upserted, {len(opened)} in all, state {number}")


@live.command()
def remove(
    catalogue: Catalogue,
    ids: Annotated[
        str, typer.Argument(metavar="IDS", help="Ids separated by commas, or a text file with one id per line.")
    ],
    unknown: Unknown = None,
) -> None:
    """Remove items."""
    with softindex.open(catalogue, compaction="manual") as opened:
        before = len(opened)
        number = opened.remove(parse_ids(ids, strings=opened.ids == "strings", name="ids"), **given(unknown=unknown))
        print_line(f"{catalogue}: {count_items(before - len(opened))} removed, {len(opened)} left, state {number}")


@live.command()
def status(catalogue: Catalogue, as_json: AsJson = False) -> None:
    """Show what a catalogue holds and what it takes on disk; another process may be writing it."""
    with softindex.open(catalogue, read_only=True) as opened:
        found = {
            name: value for name, value in asdict(opened.status()).items() if name not in ("compaction", "writable")
        }
    if as_json:
        print_json(found)
    else:
        rows = (
            (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else value) for name, value in found.items()
        )
        print_table(str(catalogue), ("", "value"), rows)


@live.command()
def compact(catalogue: Catalogue) -> None:
    """Fold what came into the clusters, and free the space of what was removed."""
    with softindex.open(catalogue, compaction="manual") as opened:
        opened.compact()
        state = opened.status()
        print_line(
            f"{catalogue}: {state.items} items in {state.clusters} clusters, {state.bytes_on_disk} bytes on disk"
        )
