"""Commands that measure: audit, bench, demo."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

import softindex
from softindex import demo as demonstration
from softindex.cli.drawing import read_queries
from softindex.cli.options import AsJson, IndexPath, Threads, app
from softindex.cli.printing import print_json, print_table
from softindex.errors import InputError
from softindex.evaluate import TEMPERATURES, Audit
from softindex.evaluate.bench import SETS, kl_table, latency_table, run_bench
from softindex.evaluate.datasets import NAMES, open_dataset
from softindex.evaluate.output import check_output
from softindex.evaluate.report import short
from softindex.evaluate.tables import machine, place
from softindex.laws import TOLERANCE
from softindex.vectors import check_count, check_seed, check_threads

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
        print_table(f"temperature {heat:g}, {found.parameters['queries']} queries", columns, rows)
    typer.echo(textwrap.fill(f"Recommended: {found.recommendation}", 100))


@app.command()
def bench(
    sets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SET]...", help="synth-balanced, synth-unbalanced, glove, or files of vectors."),
    ] = None,
    queries: Annotated[int, typer.Option(help="Queries whose laws are compared with the softmax.")] = 1000,
    timed: Annotated[int, typer.Option(help="Queries whose latency is taken.")] = 300,
    clusters: Annotated[int, typer.Option(help="Clusters, of every method alike.")] = 1024,
    items: Annotated[int | None, typer.Option(help="Items of the synthetic sets; a million when left out.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the tables into this page, between its marks, or to a new one.")
    ] = None,
    threads: Threads = None,
) -> None:
    """Measure the paper's tables, with NumPy, faiss and torch in the same run."""
    counts = {"queries": queries, "timed": timed, "clusters": clusters, "items": items or 1}
    for name, value in counts.items():
        check_count(value, name)
    if markdown is not None:
        check_output(markdown)
    asked = sets or list(SETS)
    for name in asked:
        if name not in NAMES:
            open_dataset(name)
    workers = check_threads(threads)
    measured = list(
        run_bench(asked, queries=queries, timed=timed, clusters=clusters, items=items, threads=workers, progress=True)
    )
    tables = [kl_table(measured, queries, clusters), latency_table(measured, min(timed, queries), clusters)]
    recalls = ", ".join(f"{one.head_recall:.1%} on {one.name}" for one in measured)
    command = " ".join(["softindex bench", *(sets or []), *_changed(queries, timed, clusters, items)])
    body = "\n\n".join(
        [
            f"Measured with `{command}` on: {machine()}.",
            *(table.markdown() for table in tables),
            f"The search for the head of Gumbel-max finds {recalls} of the true sqrt(n) best.",
        ]
    )
    typer.echo(body)
    if markdown is not None:
        place(markdown, "paper", body)


def _changed(queries: int, timed: int, clusters: int, items: int | None) -> list[str]:
    """The options that are not as they are when left out."""
    usual = {"queries": 1000, "timed": 300, "clusters": 1024, "items": None}
    asked = {"queries": queries, "timed": timed, "clusters": clusters, "items": items}
    return [f"--{name} {value}" for name, value in asked.items() if value != usual[name]]


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
    rows = (
        (
            f"{row.temperature:g}",
            row.label,
            short(row.kl.value),
            short(row.total_variation.value),
            "-" if row.stated_error is None else short(row.stated_error),
            f"{row.microseconds.value:,.0f}",
            f"{row.speedup:,.0f}x",
            f"{row.items_scored:,.0f}",
        )
        for row in found.rows
    )
    facts = found.parameters
    title = (
        f"{facts['items']:,} items of {facts['dim']} dimensions in {facts['clusters']} clusters, with eight-bit codes "
        f"for certified draws; {facts['queries']} of the items as queries; one thread"
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
    print_table(title, columns, rows)
    for paragraph in (demonstration.LEGEND, demonstration.conclude(found)):
        typer.echo("\n" + textwrap.fill(paragraph, 100))
