"""`python -m benchmarks paper`: measure the paper's tables and write them into a Markdown page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.data import SETS, open_set
from benchmarks.paper_measure import Bench, run_bench
from benchmarks.paper_tables import kl_table, latency_table
from benchmarks.tables import check_place, place
from softindex.arguments import check_count, check_threads
from softindex.errors import InputError
from softindex.evaluate.datasets import NAMES
from softindex.evaluate.machine import machine

__all__ = ["main"]

ITEMS = 1_000_000
"""Items of a synthetic set when --items is left out."""


def parser() -> argparse.ArgumentParser:
    """The command line of this section."""
    found = argparse.ArgumentParser(prog="python -m benchmarks paper", description=__doc__)
    found.add_argument("sets", nargs="*", metavar="SET", help=f"{', '.join(SETS)}, or files of vectors")
    found.add_argument("--queries", type=int, default=1000, help="queries whose distributions are compared")
    found.add_argument("--timed", type=int, default=300, help="queries that are timed; 0 for none")
    found.add_argument("--clusters", type=int, default=1024, help="clusters of all indexes but the tree")
    found.add_argument("--items", type=int, help="items of the synthetic sets; a million when left out")
    found.add_argument("--held-out", action="store_true", help="remove the queries from the items first")
    found.add_argument("--markdown", type=Path, help="write the tables into this page, between its marks")
    found.add_argument("--threads", type=int, help="threads to use; all CPUs when left out")
    return found


def main(arguments: Sequence[str]) -> None:
    """Measure the sets, print the tables, and write them where --markdown says."""
    options = parser().parse_args(arguments)
    section = "paper-held-out" if options.held_out else "paper"
    _check(options, section)
    measured = []
    for bench in run_bench(
        options.sets or SETS,
        queries=options.queries,
        timed=options.timed,
        clusters=options.clusters,
        items=options.items,
        held_out=options.held_out,
        threads=check_threads(options.threads),
        progress=True,
    ):
        print(f"{bench.name} is measured.", flush=True)
        measured.append(bench)
    body = _body(options, measured)
    print(body)
    if options.markdown is not None:
        place(options.markdown, section, body)


def _check(options: argparse.Namespace, section: str) -> None:
    """Raise InputError before an hour of work rather than after it."""
    for name in ("queries", "clusters"):
        check_count(getattr(options, name), name)
    if options.items is not None:
        check_count(options.items, "items")
    if options.timed != 0:
        check_count(options.timed, "timed")
    if options.markdown is not None:
        check_place(options.markdown, section)
    for name in options.sets or SETS:
        count = (options.items or ITEMS) if name in NAMES else len(open_set(name).vectors)
        if count - options.held_out * options.queries < options.clusters:
            raise InputError(f"{name} has {count} items, too few for {options.clusters} clusters; pass fewer clusters.")


def _body(options: argparse.Namespace, measured: Sequence[Bench]) -> str:
    parts = [f"Measured with `{_command(options)}` on: {machine()}."]
    parts.append(kl_table(measured, options.clusters, held_out=options.held_out).markdown())
    if options.timed:
        parts.append(latency_table(measured, min(options.timed, options.queries), options.clusters).markdown())
        if "torch multinomial" not in measured[0].milliseconds:
            parts.append("torch is not installed and has no row.")
    recalls = ", ".join(f"{bench.head_recall:.1%} on {bench.name}" for bench in measured)
    parts.append(f"The search for the head of Gumbel-max finds this share of the true sqrt(n) best: {recalls}.")
    return "\n\n".join(parts)


def _command(options: argparse.Namespace) -> str:
    """The command, with the options that differ from their defaults and change what is measured."""
    defaults = vars(parser().parse_args([]))
    flags = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in vars(options).items()
        if value != defaults[name] and name not in ("sets", "markdown", "threads")
    ]
    return " ".join(["python -m benchmarks paper", *options.sets, *flags])
