"""Commands that query an index: sample, top-k, log-partition."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

import softindex
from softindex.cli.options import (
    Allow,
    AsJson,
    Exclude,
    IndexPath,
    Item,
    Method,
    OptionalQueries,
    Probes,
    Queries,
    Seed,
    Subset,
    Temperature,
    Threads,
    Tolerance,
    Unknown,
    app,
    given,
)
from softindex.cli.printing import decimals, print_draws, print_rows, print_table, written_error
from softindex.cli.reading import find_queries, open_index, read_choice, read_queries
from softindex.records import Draws, TopK

__all__: list[str] = []

DEFAULT_METHOD = Method("sd-2ls")


def _choosing(index: softindex.Index, exclude: str | None, allow: str | None, unknown: Any) -> dict[str, Any]:
    chosen = {name: read_choice(text, index, name) for name, text in (("exclude", exclude), ("allow", allow))}
    return given(**chosen, unknown=unknown)


@app.command()
def sample(
    index: IndexPath,
    queries: OptionalQueries = None,
    *,
    temperature: Temperature,
    item: Item = None,
    n: Annotated[int, typer.Option("-n", help="Draws per query.")] = 1,
    method: Annotated[
        Method,
        typer.Option(
            help="The distribution to draw from. The exact softmax: exact, and certified, which scans fewer items. "
            "Close to it: 2ls, s-2ls, sd-2ls. By a tree, in an index built with --tree: hierarchical, s-hierarchical, "
            "sd-hierarchical. Among the best items only: top-k."
        ),
    ] = DEFAULT_METHOD,
    probes: Probes = None,
    tolerance: Tolerance = None,
    replace: Annotated[
        bool, typer.Option("--replace/--no-replace", help="Whether a query may draw the same item twice.")
    ] = True,
    exclude: Exclude = None,
    allow: Allow = None,
    subset: Subset = None,
    unknown: Unknown = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw only among the most probable items that together reach this probability.")
    ] = None,
    k: Annotated[int | None, typer.Option("-k", help="Items of the method top-k; 1000 when left out.")] = None,
    seed: Seed = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Draw items for each query, with the log-probability of each draw.

    The error is the estimated total variation between the distribution used and the exact softmax; - or null where the
    method reports none. If the index was calibrated for these options, confidence says which share of queries it
    covers. Low and high are proven bounds on log_prob.
    """
    loaded = open_index(index)
    batch = find_queries(queries, item or [], loaded)
    loaded = loaded if subset is None else loaded.subset(subset)
    draws = loaded.sample(
        batch,
        n,
        temperature=temperature,
        method=method.value,
        replace=replace,
        **_choosing(loaded, exclude, allow, unknown),
        **given(probes=probes, tolerance=tolerance, top_p=top_p, k=k, seed=seed, threads=threads),
    )
    _print_sample(draws, temperature, len(batch), as_json=as_json)


def _print_sample(draws: Draws, temperature: float, count: int, *, as_json: bool) -> None:
    per_draw = ("log_prob",) if draws.low is None else ("log_prob", "low", "high")
    if as_json:
        shared: dict[str, Any] = {"method": draws.method, "seed": draws.seed, "confidence": draws.confidence}
        if draws.snapshot is not None:
            shared["snapshot"] = draws.snapshot
        print_rows(draws, ("ids", *per_draw, "error", "items_scored"), count, shared)
        return
    columns = {name: decimals(getattr(draws, name)) for name in per_draw}
    per_query = {
        "error": [written_error(value) for value in np.asarray(draws.error)],
        "items scored": [f"{value:,}" for value in np.asarray(draws.items_scored)],
    }
    covered = "" if draws.confidence is None else f", error calibrated at {draws.confidence:g}"
    title = f"{draws.method}, temperature {temperature}, seed {draws.seed}{covered}"
    print_draws(title, draws.ids, columns, per_query)


@app.command("top-k")
def top_k(
    index: IndexPath,
    queries: OptionalQueries = None,
    item: Item = None,
    k: Annotated[int, typer.Option("-k", help="Items per query.")] = 10,
    probes: Annotated[
        int | None,
        typer.Option(help="Clusters to search at most. When left out, search until the result is proven."),
    ] = None,
    recall: Annotated[
        float | None, typer.Option(help="Expected share of the k best to find, such as 0.99; proven when left out.")
    ] = None,
    temperature: Temperature = 1.0,
    exclude: Exclude = None,
    allow: Allow = None,
    subset: Subset = None,
    unknown: Unknown = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Find the k items with the highest score for each query.

    Proven: the item is certainly among the k best. Gap: no item left out scores more than this above the last result;
    - or null where nothing is proven. The temperature matters only in an index with log biases.
    """
    loaded = open_index(index)
    batch = find_queries(queries, item or [], loaded)
    loaded = loaded if subset is None else loaded.subset(subset)
    options = given(probes=probes, recall=recall, threads=threads)
    best = loaded.top_k(batch, k, temperature=temperature, **_choosing(loaded, exclude, allow, unknown), **options)
    _print_top_k(best, k, len(batch), as_json=as_json)


def _print_top_k(best: TopK, k: int, count: int, *, as_json: bool) -> None:
    if as_json:
        print_rows(best, ("ids", "scores", "proven", "gap", "recall", "items_scored"), count, {})
        return
    columns = {
        "score": [[f"{value:.6g}" for value in row] for row in best.scores],
        "proven": [["yes" if value else "no" for value in row] for row in best.proven],
    }
    per_query = {
        "gap": [written_error(value) for value in np.asarray(best.gap)],
        "recall": [written_error(value) for value in np.asarray(best.recall)],
        "items scored": [f"{value:,}" for value in np.asarray(best.items_scored)],
    }
    print_draws(f"top {k}", best.ids, columns, per_query)


@app.command("log-partition")
def log_partition(
    index: IndexPath,
    queries: Queries,
    temperature: Temperature,
    method: Annotated[
        Method, typer.Option(help="How log Z is estimated; exact and certified also bound it.")
    ] = DEFAULT_METHOD,
    probes: Probes = None,
    tolerance: Tolerance = None,
    width: Annotated[
        float | None, typer.Option(help="Largest distance between the bounds of certified, in nats.")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            help="Probability with which the bounds hold, such as 0.95: over queries where the index was calibrated "
            "for these options (narrow), otherwise over the seed (wide)."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of bounds with a confidence; 0 when left out.")] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Estimate log Z, the log of the softmax's denominator, for each query.

    Low and high are bounds; - or null where the method has none. The guarantee says whether they are proven, a bound
    that holds with the confidence, or calibrated.
    """
    loaded, batch = open_index(index), read_queries(queries)
    options = given(probes=probes, tolerance=tolerance, width=width, confidence=confidence, seed=seed, threads=threads)
    found = loaded.log_partition(batch, temperature=temperature, method=method.value, **options)
    names = ("value",) if found.low is None else ("value", "low", "high")
    if as_json:
        print_rows(found, names, len(batch), {"method": method.value, "guarantee": found.guarantee})
        return
    values = zip(*(np.asarray(getattr(found, name)) for name in names), strict=True)
    rows = ((row, *(f"{value + 0.0:.6f}" for value in one)) for row, one in enumerate(values))
    kind = "" if found.guarantee is None else f", bounds: {found.guarantee}"
    print_table(f"log Z by {method.value}, temperature {temperature}{kind}", ("query", *names), rows)
