"""The command line: parses, calls the library, prints."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import softindex
from softindex import demo as demonstration
from softindex.errors import InputError, MissingDependencyError, StorageError
from softindex.evaluate import TEMPERATURES, Audit
from softindex.evaluate.output import check_output
from softindex.evaluate.report import short
from softindex.laws import METHODS, TOLERANCE
from softindex.progress import reporting
from softindex.store import read_manifest
from softindex.store import verify as verify_stored
from softindex.vectors import check_seed, read

__all__ = ["app", "main"]

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 3
EXIT_STORAGE = 4
EPILOG = "Exit codes: 0 done, 1 unexpected failure, 2 wrong usage, 3 bad input, 4 a saved index that cannot be used."

app = typer.Typer(
    help="Softmax over millions of items, in microseconds, with the error stated.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Method = Enum("Method", {name: name for name in METHODS}, type=str)  # type: ignore[misc]
DEFAULT_METHOD = Method("sd-2ls")

IndexPath = Annotated[Path, typer.Argument(metavar="INDEX", help="Directory of a saved index.")]
Queries = Annotated[
    str,
    typer.Argument(metavar="QUERIES", help="File of vectors, or - for one query a line on standard input."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for programs.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same draws. A fresh one when left out.")]
Threads = Annotated[int | None, typer.Option(help="Threads to use; all CPUs when left out.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="Low is greedy, high is uniform.")]


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, allow_nan=False))


def _plain(value: Any) -> Any:
    """Arrays as lists, and NaN, which JSON does not know, as null."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")  # a narrow terminal breaks an id, and cuts none
    for row in rows:
        table.add_row(*[str(value) for value in row])
    # Outside a terminal rich assumes 80 columns and cuts; a pipe has no width.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table)


def _print_rows(result: Any, names: Iterable[str], count: int, told: dict[str, Any]) -> None:
    """One JSON object per query, with its part of each named field."""
    for row in range(count):
        _print_json({"query": row, **{name: _plain(getattr(result, name)[row]) for name in names}, **told})


def _print_table(
    title: str, ids: NDArray[Any], columns: dict[str, list[list[str]]], told: dict[str, list[str]] | None = None
) -> None:
    """One line per result, the queries one after the other.

    columns: a value per result; told: a value per query, shown beside its first result.
    """
    once = told or {}
    rows = (
        (
            row,
            identity,
            *(values[row][place] for values in columns.values()),
            *(values[row] if place == 0 else "" for values in once.values()),
        )
        for row, found in enumerate(ids)
        for place, identity in enumerate(found)
    )
    _table(title, ("query", "id", *columns, *once), rows)


def _decimals(values: NDArray[Any]) -> list[list[str]]:
    # Adding zero turns -0.0 into 0.0.
    return [[f"{value + 0.0:.4f}" for value in row] for row in values]


def _error(value: float | None) -> str:
    """An error to two digits, and a dash where none is stated."""
    return "-" if value is None or np.isnan(value) else f"{value:.2g}"


def _parse_line(line: str, number: int) -> list[float]:
    try:
        if line.lstrip().startswith("["):
            return [float(value) for value in json.loads(line)]
        return [float(value) for value in line.replace(",", " ").split()]
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"line {number} of standard input is not a query ({error}); write its numbers separated by spaces or "
            "commas, or as a JSON list."
        ) from error


def _read_queries(source: str) -> NDArray[Any]:
    if source != "-":
        return read(source).vectors
    lines = [_parse_line(line, number) for number, line in enumerate(sys.stdin, 1) if line.strip()]
    if not lines:
        raise InputError("standard input is empty; write one query a line.")
    lengths = {len(line) for line in lines}
    if len(lengths) > 1:
        raise InputError(f"the queries on standard input have {sorted(lengths)} numbers; give each the same.")
    return np.array(lines)


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


@app.command()
def build(
    vectors: Annotated[
        str,
        typer.Argument(
            metavar="VECTORS",
            help="Item vectors: .npy .npz .safetensors .parquet .fvecs .bvecs .hdf5 .txt; path::name picks an array.",
        ),
    ],
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="Directory to write.")],
    ids: Annotated[Path | None, typer.Option(help="Text file with one id a line; all integers, or strings.")] = None,
    log_bias: Annotated[Path | None, typer.Option(help=".npy file with one log bias per item.")] = None,
    clusters: Annotated[
        int | None, typer.Option(help="Square root of the items when left out (with --tree: 1024 items each).")
    ] = None,
    dispersion: Annotated[str, typer.Option(help="none, full, auto, or a rank.")] = "auto",
    codes: Annotated[bool, typer.Option("--codes", help="Also keep every item in eight bits a number.")] = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Cluster by a binary tree, for the hierarchical methods.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the k-means.")] = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Build an index of the vectors and save it."""
    built = softindex.build(
        vectors,
        ids=None if ids is None else _read_ids(ids),
        log_bias=None if log_bias is None else _read_array(log_bias),
        clusters=clusters,
        dispersion=_dispersion(dispersion),
        codes=codes,
        tree=tree,
        seed=seed,
        threads=threads,
        progress=True,
    )
    built.save(index, progress=True)
    if as_json:
        _print_json({"index": str(index), "items": len(built), "dim": built.dim, "clusters": built.clusters})
    else:
        typer.echo(f"{index}: {len(built)} items of {built.dim} dimensions in {built.clusters} clusters")


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a text of ids ({error}); write one id a line.") from error


def _read_ids(path: Path) -> list[int] | list[str]:
    lines = _read_lines(path)
    with contextlib.suppress(ValueError):
        numbers = [int(line) for line in lines]
        # 007 is a name, not a number: only what would be written the same way is taken for one.
        if all(str(number) == line for number, line in zip(numbers, lines, strict=True)):
            return numbers
    return lines


def _read_array(path: Path) -> NDArray[Any]:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as an array ({error}); save it with numpy.save.") from error
    if not isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds several arrays; save one with numpy.save.")
    return loaded


def _dispersion(text: str) -> str | int:
    try:
        return int(text)
    except ValueError:
        return text


@app.command()
def info(index: IndexPath, as_json: AsJson = False) -> None:
    """Tell what a saved index holds, without reading its data."""
    manifest = read_manifest(index)
    size = sum(blob.bytes for blob in manifest.blobs)
    facts = {"version": manifest.version, **manifest.parameters, "bytes": size}
    if as_json:
        _print_json(facts)
    else:
        _table(str(index), ("", "value"), facts.items())


@app.command()
def verify(index: IndexPath, as_json: AsJson = False) -> None:
    """Check every byte of a saved index against its checksum."""
    with reporting(True) as report:
        checked = verify_stored(index, progress=None if report is None else partial(report, "checking"))
    softindex.load(index)  # whole arrays must also fit together
    if as_json:
        blobs = [{"name": blob.name, "bytes": blob.bytes} for blob in checked.blobs]
        _print_json({"index": str(index), "blobs": blobs})
    else:
        typer.echo(f"{index}: whole, {len(checked.blobs)} arrays checked")


@app.command()
def sample(
    index: IndexPath,
    queries: Queries,
    temperature: Temperature,
    n: Annotated[int, typer.Option("-n", help="Draws per query.")] = 1,
    method: Annotated[
        Method,
        typer.Option(
            help="The law to draw from. The softmax itself: exact, and certified, which scans fewer items. Close to "
            "it: 2ls, s-2ls, sd-2ls. By a tree, in an index built with --tree: hierarchical, s-hierarchical, "
            "sd-hierarchical. Of the best items only: top-k."
        ),
    ] = DEFAULT_METHOD,
    probes: Annotated[
        int | None,
        typer.Option(
            help="Clusters to scan before drawing; 0 is the published law, which states no error. As many as the "
            "tolerance asks for, within a limit, when left out."
        ),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help=f"The stated error to stop probing at; {TOLERANCE} when left out.")
    ] = None,
    no_replace: Annotated[bool, typer.Option("--no-replace", help="Draw no item twice for a query.")] = False,
    exclude: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Ids not to draw, separated by commas, or a text file with one id a line."),
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Only the most probable items, up to this probability together.")
    ] = None,
    k: Annotated[int | None, typer.Option("-k", help="Items of the method top-k; 1000 when left out.")] = None,
    seed: Seed = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Draw items for each query and tell the log-probability of each draw, and how far the law is from the softmax.

    The error is the estimated total variation to the softmax; - or null: none is stated. Low and high are proven.
    """
    loaded, asked = softindex.load(index), np.atleast_2d(_read_queries(queries))
    draws = loaded.sample(
        asked,
        n,
        temperature=temperature,
        method=method.value,
        probes=probes,
        tolerance=tolerance,
        replace=not no_replace,
        exclude=None if exclude is None else _excluded(exclude, loaded),
        top_p=top_p,
        k=k,
        seed=seed,
        threads=threads,
    )
    per_draw = ("log_prob",) if draws.low is None else ("log_prob", "low", "high")
    if as_json:
        told = {"method": draws.method, "seed": draws.seed}
        _print_rows(draws, ("ids", *per_draw, "error", "items_scored"), len(asked), told)
    else:
        title = f"{draws.method}, temperature {temperature}, seed {draws.seed}"
        columns = {name: _decimals(getattr(draws, name)) for name in per_draw}
        errors, scored = np.asarray(draws.error), np.asarray(draws.items_scored)
        per_query = {"error": [_error(value) for value in errors], "items scored": [f"{value:,}" for value in scored]}
        _print_table(title, draws.ids, columns, per_query)


def _excluded(text: str, index: softindex.Index) -> list[int] | list[str]:
    """Ids from a file if there is one of this name, and otherwise from the text itself."""
    path = Path(text)
    words = _read_lines(path) if _is_file(path) else text.split(",")
    if index.parameters["ids"] == "strings":
        return words
    try:
        return [int(word) for word in words if word.strip()]
    except ValueError as error:
        raise InputError(
            f"exclude is {text!r}, which is no file and no list of integer ids ({error}); write ids separated by "
            "commas, or the name of a text file with one id a line."
        ) from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a list of ids may be too long for the name of a file
        return False


@app.command("top-k")
def top_k(
    index: IndexPath,
    queries: Queries,
    k: Annotated[int, typer.Option("-k", help="Items per query.")] = 10,
    probes: Annotated[int | None, typer.Option(help="Clusters to scan; proven exact when left out.")] = None,
    temperature: Temperature = 1.0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Find the k items of highest score for each query."""
    loaded, asked = softindex.load(index), np.atleast_2d(_read_queries(queries))
    best = loaded.top_k(asked, k, temperature=temperature, probes=probes, threads=threads)
    if as_json:
        _print_rows(best, ("ids", "scores", "items_scored"), len(asked), {})
    else:
        _print_table(f"top {k}", best.ids, {"score": [[f"{value:.6g}" for value in row] for row in best.scores]})


@app.command()
def audit(
    index: IndexPath,
    queries: Annotated[
        str | None, typer.Option(help="File of query vectors, or - for one a line; items of the index when left out.")
    ] = None,
    count: Annotated[int | None, typer.Option(help="Queries to measure: 300 items, or all of the file.")] = None,
    temperature: Annotated[
        list[float] | None, typer.Option("--temperature", "-t", help="May be given again; 0.05, 0.1 and 0.2.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="May be given again; sd-2ls:16 is sd-2ls with 16 probes. All when left out."),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help=f"Total variation that the recommendation allows; {TOLERANCE} when left out.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report with plots to this file.")] = None,
    seed: Annotated[int, typer.Option(help="Which items serve as queries.")] = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure how far every method is from the softmax on your own vectors, and what it costs."""
    if html is not None:
        check_output(html)
    found = softindex.load(index).audit(
        None if queries is None else _read_queries(queries),
        count=count,
        temperatures=temperature or TEMPERATURES,
        methods=method or None,
        tolerance=tolerance,
        seed=seed,
        threads=threads,
        progress=True,
    )
    if html is not None:
        found.to_html(html)
    if as_json:
        _print_json(found.to_dict())
        return
    _print_audit(found)
    if html is not None:
        typer.echo(f"The report is in {html}.")


def _print_audit(found: Audit) -> None:
    columns = (
        "method",
        "KL",
        "95 %",
        "TV",
        "stated\nTV",
        "log Z\nerror",
        "micro-\nseconds",
        "speed-\nup",
        "items\nscored",
    )
    for heat in found.temperatures:
        rows = (
            (
                row.label,
                short(row.kl.value),
                "proven" if row.proven else f"{short(row.kl.low)} - {short(row.kl.high)}",
                short(row.total_variation.value),
                "-" if row.stated_error is None else short(row.stated_error),
                "-" if row.log_partition_error is None else short(row.log_partition_error.value),
                f"{row.microseconds.value:,.0f}",
                f"{row.speedup:,.1f}x",
                f"{row.items_scored:,.0f}",
            )
            for row in found.at(heat)
        )
        _table(f"temperature {heat:g}, {found.parameters['queries']} queries", columns, rows)
    typer.echo(textwrap.fill(f"Recommended: {found.recommendation}", 100))


@app.command()
def demo(
    items: Annotated[int, typer.Option(help="Size of the made-up catalogue.")] = 200_000,
    seed: Annotated[int, typer.Option(help="Seed of the catalogue.")] = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Make up an unbalanced catalogue, build its index, and show every method's error and speed."""
    if items < 100:
        raise InputError(f"items is {items}; ask for at least 100.")
    index, queries = demonstration.build_catalogue(items, seed=check_seed(seed), threads=threads)
    lines = list(demonstration.compare(index, queries))
    if as_json:
        for line in lines:
            _print_json(asdict(line))
        return
    rows = (
        (
            line.temperature,
            line.label,
            _error(line.kl),
            _error(line.total_variation),
            _error(line.stated_error),
            f"{line.microseconds:,.0f}",
            f"{line.speedup:,.0f}x",
            f"{line.items_scored:,.0f}",
        )
        for line in lines
    )
    title = (
        f"{len(index):,} items of {index.dim} dimensions in {index.clusters} clusters, with eight-bit codes for "
        f"certified draws; {len(queries)} of the items as queries; one thread"
    )
    # In two lines, so that a terminal of 80 columns breaks no number.
    columns = (
        "t",
        "method",
        "KL",
        "measured\nTV",
        "stated\nerror",
        "micro-\nseconds",
        "speed-\nup",
        "items\nscored",
    )
    _table(title, columns, rows)
    for paragraph in (demonstration.LEGEND, demonstration.conclude(lines)):
        typer.echo("\n" + textwrap.fill(paragraph, 100))


def main() -> None:
    """Run the command line; an error of ours becomes one sentence on stderr and a stable exit code."""
    try:
        app()
    except BrokenPipeError:
        # The reader of our output left, as `head` does: nothing is wrong. The pipe must not be flushed again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (InputError, MissingDependencyError) as error:
        _fail(error, EXIT_BAD_INPUT)
    except StorageError as error:
        _fail(error, EXIT_STORAGE)
    except MemoryError:
        _fail("this does not fit into memory; use fewer items, queries or draws.", EXIT_BAD_INPUT)
    except OSError as error:
        _fail(f"the output could not be written ({error.strerror}).", EXIT_FAILURE)


def _fail(sentence: object, code: int) -> None:
    typer.echo(f"softindex: {sentence}", err=True)
    # What is left in the buffer could not be written either, and is not tried again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
