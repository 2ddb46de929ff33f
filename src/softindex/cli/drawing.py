"""Commands that ask an index: sample, top-k."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import softindex
from softindex.cli.building import read_lines
from softindex.cli.options import AsJson, IndexPath, Queries, Seed, Temperature, Threads, app
from softindex.cli.printing import decimals, print_draws, print_rows, written_error
from softindex.errors import InputError
from softindex.laws import METHODS, TOLERANCE
from softindex.vectors import read

__all__ = ["read_queries"]

Method = Enum("Method", {name: name for name in METHODS}, type=str)  # type: ignore[misc]
DEFAULT_METHOD = Method("sd-2ls")


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


def read_queries(source: str) -> NDArray[Any]:
    """Queries from a file, or one a line from standard input for -."""
    if source != "-":
        return read(source).vectors
    lines = [_parse_line(line, number) for number, line in enumerate(sys.stdin, 1) if line.strip()]
    if not lines:
        raise InputError("standard input is empty; write one query a line.")
    lengths = {len(line) for line in lines}
    if len(lengths) > 1:
        raise InputError(f"the queries on standard input have {sorted(lengths)} numbers; give each the same.")
    return np.array(lines)


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
    loaded, asked = softindex.load(index), np.atleast_2d(read_queries(queries))
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
        print_rows(draws, ("ids", *per_draw, "error", "items_scored"), len(asked), told)
    else:
        title = f"{draws.method}, temperature {temperature}, seed {draws.seed}"
        columns = {name: decimals(getattr(draws, name)) for name in per_draw}
        errors, scored = np.asarray(draws.error), np.asarray(draws.items_scored)
        per_query = {
            "error": [written_error(value) for value in errors],
            "items scored": [f"{value:,}" for value in scored],
        }
        print_draws(title, draws.ids, columns, per_query)


def _excluded(text: str, index: softindex.Index) -> list[int] | list[str]:
    """Ids from a file if there is one of this name, and otherwise from the text itself."""
    path = Path(text)
    words = read_lines(path) if _is_file(path) else text.split(",")
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
    loaded, asked = softindex.load(index), np.atleast_2d(read_queries(queries))
    best = loaded.top_k(asked, k, temperature=temperature, probes=probes, threads=threads)
    if as_json:
        print_rows(best, ("ids", "scores", "items_scored"), len(asked), {})
    else:
        print_draws(f"top {k}", best.ids, {"score": [[f"{value:.6g}" for value in row] for row in best.scores]})
