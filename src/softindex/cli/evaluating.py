"""Commands that measure: audit, bench, demo."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

import softindex
from softindex import demo as demonstration
from softindex.arguments import check_count, check_seed, check_threads
from softindex.cli.drawing import read_queries
from softindex.cli.options import AsJson, IndexPath, Threads, app
from softindex.cli.printing import print_json, print_table
from softindex.errors import InputError
from softindex.evaluate import TEMPERATURES, Audit
from softindex.evaluate.bench import SETS, kl_table, latency_table, run_bench
from softindex.evaluate.datasets import MADE, open_dataset
from softindex.evaluate.output import check_output
from softindex.evaluate.tables import check_place, machine, place
from softindex.laws import TOLERANCE

__all__: list[str] = []


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
        None if queries is None else read_queries(queries),
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
        print_json(found.to_dict())
        return
    _print_audit(found)
    if html is not None:
        typer.echo(f"The report is in {html}.")


def _print_audit(found: Audit) -> None:
    for heat in found.temperatures:
        title = f"temperature {heat:g}, {found.parameters['queries']} queries"
        print_table(
            title, *_columns(row.cells() for row in found.at(heat)), spare=("95 %", "log Z error", "items scored")
        )
    typer.echo(textwrap.fill(f"Recommended: {found.recommendation}", 100))


def _columns(cells: Iterable[dict[str, str]]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table, all of whose cells have the same heads."""
    rows = list(cells)
    return list(rows[0]), [list(row.values()) for row in rows]


@app.command()
def bench(
    sets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SET]...", help="synth-balanced, synth-unbalanced, glove, or files of vectors."),
    ] = None,
    queries: Annotated[int, typer.Option(help="Queries whose laws are compared with the softmax.")] = 1000,
    timed: Annotated[int, typer.Option(help="Queries whose latency is taken; 0 for none.")] = 300,
    clusters: Annotated[int, typer.Option(help="Clusters of all but the tree.")] = 1024,
    items: Annotated[int | None, typer.Option(help="Items of the synthetic sets; a million when left out.")] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Take the queries out of the items first.")] = False,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the tables into this page, between its marks, or to a new one.")
    ] = None,
    threads: Threads = None,
) -> None:
    """Measure the paper's tables, with NumPy, faiss and, where it is installed, torch in the same run."""
    for name, value in {"queries": queries, "clusters": clusters, "items": 1 if items is None else items}.items():
        check_count(value, name)
    if timed != 0:
        check_count(timed, "timed")
    section = "paper-held-out" if held_out else "paper"
    if markdown is not None:
        check_place(markdown, section)
    asked = sets or list(SETS)
    for name in asked:
        # What is made up can be had; the others may be missing, and are looked for before an hour of work.
        count = (items or 1_000_000) if name in MADE else len(open_dataset(name).vectors)
        if count - held_out * queries < clusters:
            raise InputError(f"{name} has {count} items for {clusters} clusters; ask for fewer clusters.")
    options = {"queries": queries, "timed": timed, "clusters": clusters, "items": items, "held_out": held_out}
    measured = []
    for one in run_bench(asked, **options, threads=check_threads(threads), progress=True):  # type: ignore[arg-type]
        typer.echo(f"{one.name} is measured.", err=True)
        measured.append(one)
    parts = [f"Measured with `{_command(sets or [], options)}` on: {machine()}."]
    parts.append(kl_table(measured, clusters, held_out=held_out).markdown())
    if timed:
        parts.append(latency_table(measured, min(timed, queries), clusters).markdown())
        if "torch multinomial" not in measured[0].milliseconds:
            parts.append("torch is not installed, and has no row.")
    recalls = ", ".join(f"{one.head_recall:.1%} on {one.name}" for one in measured)
    parts.append(f"The search for the head of Gumbel-max finds {recalls} of the true sqrt(n) best.")
    body = "\n\n".join(parts)
    typer.echo(body)
    if markdown is not None:
        place(markdown, section, body)


def _command(sets: list[str], options: dict[str, Any]) -> str:
    """The command, with the options that are not as they are when left out."""
    usual = {"queries": 1000, "timed": 300, "clusters": 1024, "items": None, "held_out": False}
    flags = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in options.items()
        if value != usual[name]
    ]
    return " ".join(["softindex bench", *sets, *flags])


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
    found = demonstration.compare(items, seed=check_seed(seed), threads=threads)
    if as_json:
        print_json(found.to_dict())
        return
    facts = found.parameters
    title = (
        f"{facts['items']:,} items of {facts['dim']} dimensions in {facts['clusters']} clusters, with eight-bit codes "
        f"for certified draws; {facts['queries']} of the items as queries; one thread"
    )
    print_table(title, *_columns(row.cells() for row in found.rows), spare=("95 %", "log Z error", "items scored"))
    for paragraph in (demonstration.LEGEND, demonstration.conclude(found)):
        typer.echo("\n" + textwrap.fill(paragraph, 100))
