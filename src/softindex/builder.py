"""Builds an index: wires the stages, one line per stage, and computes nothing itself."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, NamedTuple

from numpy.typing import NDArray

from softindex.arguments import (
    check_choice,
    check_count,
    check_flag,
    check_per_item,
    check_queries,
    check_seed,
    check_threads,
    check_vectors,
)
from softindex.calibration import CONFIDENCE, check_calibrating
from softindex.codes import encode
from softindex.contents import Contents
from softindex.errors import InputError
from softindex.fields import flatten
from softindex.ids import id_map
from softindex.index import Index
from softindex.laws import Method
from softindex.moments import choose_dispersion, measure, measure_tree
from softindex.outliers import list_outliers
from softindex.partition import grow, inverse_order, order_by_cluster, partition, shuffle_clusters
from softindex.progress import reporting
from softindex.recall import measure_curve
from softindex.records import Floats, Ids, Integers, Json, Partition, Report
from softindex.residuals import STORAGES, Storage, keep_residuals, stored_vectors
from softindex.sketch import draw_sketch
from softindex.tails import measure_tails
from softindex.vectors import WithBias, read, rearrange

__all__ = ["build", "build_shard", "rebuild"]


class _Plan(NamedTuple):
    """The options of a build."""

    clusters: int | None
    dispersion: str | int
    tree: bool
    leaf_items: int | None
    codes: bool
    sketch: bool | None
    storage: str
    seed: int
    threads: Any
    """As it was given, and then an int."""
    biased: bool
    centroids: Floats | None = None
    """Trained elsewhere; None: those of this build."""
    start: Floats | None = None
    """Means of the clusters of similar items, to start from; None: start from random items."""


def build(
    vectors: Any,
    *,
    ids: Any = None,
    bias: Any = None,
    log_bias: Any = None,
    clusters: int | None = None,
    dispersion: str | int = "auto",
    tree: bool = False,
    leaf_items: int | None = None,
    codes: bool = False,
    sketch: bool | None = None,
    storage: Storage = "float32",
    queries: Any = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool = False,
) -> Index:
    """Build an index.  The vectors are copied, cluster by cluster, as float32 or in fewer bits (`storage`).

    The logit of item i is `(q.x_i + bias_i) / temperature + log_bias_i`.

    Args:
        vectors: Items, (n, d): array, memmap, torch tensor, or path to a file (`.npy .npz .safetensors .parquet .fvecs
            .bvecs .hdf5 .csv .txt`); "file.npz::name" names one of its arrays.  float32 or float16; others are rounded.
        ids: Integers or strings, one per row.  None: those in an array or column "ids" of the file (Parquet and CSV
            also "id"), the words of a text file, or else row numbers.
        bias: (n,) part of the score, divided by the temperature, such as the bias of an output layer.
        log_bias: (n,) log prior, not divided: an item of log bias log 2 counts as two items.
        clusters: Number of clusters; `round(sqrt(n))` when None.
        dispersion: What is kept of their spread: "none", "full" (covariances), a rank, or "auto": 8, or full if less.
        tree: Cut the items in two by 2-means, and again, until no cluster holds more than `leaf_items` (or there are
            `clusters` of them).  Keep the tree for the hierarchical methods; all others work too.
        leaf_items: The most items in a leaf of the tree, 1024 when None.
        codes: Also keep every item in eight bits per number, with a bound on the loss.  Certified draws use them.
        sketch: The same in four bits, for a `top_k` several times as fast.  None: where items are float32.
        storage: "float32", or "int8" or "int16": numbers rounded to this many bits, about the mean of a cluster.  All
            laws and proofs are then about the rounded vectors; `parameters["rounding"]` says how far away they are.
        queries: Calibrate the stated error of the default on these, (m, d), as `Index.calibrate` does.
        seed: On one machine the same input, seed and options give the same index.
        threads: Number of threads; all CPUs when None.
        progress: Show progress bars on a terminal.

    Raises:
        InputError: An argument does not fit, or a vector is not finite or too long.
    """
    source = read(vectors, ids=ids)
    n, d = source.vectors.shape
    item_bias = check_per_item(bias, n, name="bias")
    biased = item_bias is not None
    options = _Plan(clusters, dispersion, tree, leaf_items, codes, sketch, storage, seed, threads, biased)
    plan = _check(options, d + biased)
    prior = check_per_item(log_bias, n, name="log_bias")
    check_vectors(source.vectors)
    items = source.vectors if item_bias is None else WithBias(source.vectors, item_bias)
    batch = None if queries is None else _check_calibrating(queries, d)
    with reporting(progress) as report:
        contents = _build(items, source.ids, prior, plan, report)
    index = Index(_describe(contents, d, biased, dispersion if isinstance(dispersion, str) else plan.dispersion))
    return index if batch is None else _calibrate(index, batch, threads=plan.threads, progress=progress)


def build_shard(
    vectors: Any, ids: Any, centroids: Floats, *, bias: Any = None, log_bias: Any = None, threads: int, **options: Any
) -> Index:
    """An index of part of a catalogue, with centroids (k, d) that were trained on a sample of all of it.

    With a bias they have one more column.  options: dispersion, codes, sketch, storage and seed of `build`.  A part too
    small for that many clusters gets its own.
    """
    source = read(vectors, ids=ids)
    n, d = source.vectors.shape
    item_bias, prior = check_per_item(bias, n, name="bias"), check_per_item(log_bias, n, name="log_bias")
    biased, few = item_bias is not None, len(centroids) * 2 > n
    asked: dict[str, Any] = {"dispersion": "auto", "codes": False, "sketch": None, "storage": "float32", "seed": 0}
    asked |= options
    dispersion = asked.pop("dispersion")
    fixed: dict[str, Any] = {"tree": False, "leaf_items": None, "threads": threads, "biased": biased}
    plan = _check(_Plan(None if few else len(centroids), dispersion, **fixed, **asked), d + biased)
    check_vectors(source.vectors)
    items = source.vectors if item_bias is None else WithBias(source.vectors, item_bias)
    contents = _build(items, source.ids, prior, plan._replace(centroids=None if few else centroids), None)
    return Index(_describe(contents, d, biased, dispersion if isinstance(dispersion, str) else plan.dispersion))


def rebuild(vectors: Any, start: Floats, *, log_bias: Any, dispersion: str, seed: int, threads: int) -> Index:
    """An index of items that moved a little, (n, d), with clusters that start from their former means (k, d).

    It has row numbers as ids and no sketch, as for drawing negatives, where it is built again every few steps.
    """
    source = read(vectors, ids=None)
    fixed: dict[str, Any] = {"tree": False, "leaf_items": None, "codes": False, "sketch": False, "storage": "float32"}
    asked: dict[str, Any] = {"dispersion": dispersion, "seed": seed, "threads": threads, "biased": False}
    plan = _check(_Plan(len(start), **fixed, **asked), source.vectors.shape[1])
    prior = check_per_item(log_bias, len(source.vectors), name="log_bias")
    check_vectors(source.vectors)
    contents = _build(source.vectors, source.ids, prior, plan._replace(start=start), None)
    return Index(_describe(contents, source.vectors.shape[1], biased=False, dispersion=dispersion))


def _describe(contents: Contents, d: int, biased: bool, dispersion: str | int) -> Contents:
    """The contents with what only the caller's arguments say."""
    added = {"dim": d, "bias": biased, "dispersion_asked": dispersion}
    return Contents(contents.arrays, contents.ids, {**contents.parameters, **added})


def _check_calibrating(queries: Any, d: int) -> Floats:
    """The queries (m, d), if they are enough to calibrate with: before a build that takes hours."""
    batch = check_queries(queries, d)[0]
    check_calibrating("sd-2ls", CONFIDENCE, len(batch))
    return batch


def _calibrate(index: Index, queries: Floats, *, threads: int, progress: bool) -> Index:
    """The index with its default calibrated."""
    default: Method = "s-2ls" if index.parameters["dispersion"] == "none" else "sd-2ls"
    return index.calibrate(queries, method=default, threads=threads, progress=progress)


def _check(plan: _Plan, width: int) -> _Plan:
    """The plan as it was asked for, checked, for items of this width."""
    return plan._replace(
        clusters=None if plan.clusters is None else check_count(plan.clusters, "clusters"),
        dispersion=choose_dispersion(plan.dispersion, width),
        tree=check_flag(plan.tree, "tree"),
        leaf_items=_check_leaf_items(plan.leaf_items, tree=plan.tree, clusters=plan.clusters),
        codes=_check_codes(plan),
        sketch=plan.storage == "float32" if plan.sketch is None else check_flag(plan.sketch, "sketch"),
        storage=check_choice(plan.storage, "storage", STORAGES),
        seed=check_seed(plan.seed),
        threads=check_threads(plan.threads),
    )


def _check_codes(plan: _Plan) -> bool:
    if check_flag(plan.codes, "codes") and plan.storage != "float32":
        raise InputError("codes are kept beside float32 vectors; leave codes out, or pass storage='float32'.")
    return plan.codes


def _check_leaf_items(leaf_items: Any, *, tree: bool, clusters: int | None) -> int | None:
    if leaf_items is None:
        return None
    if not tree:
        raise InputError("leaf_items is the size of the leaves of a tree; pass tree=True as well.")
    if clusters is not None:
        raise InputError("clusters and leaf_items both say where the tree ends; pass one of them.")
    return check_count(leaf_items, "leaf_items")


def _build(items: Any, ids: Ids | None, log_bias: Floats | None, plan: _Plan, report: Report | None) -> Contents:
    """The stages, in order.  items: vectors (n, d) or `WithBias`; the stages read rows of it and its shape."""
    every: dict[str, Any] = {"threads": plan.threads, "report": report}
    branches = None
    if plan.tree:
        parts, branches = grow(items, plan.clusters, leaf_items=plan.leaf_items, seed=plan.seed, **every)
    else:
        clusters = plan.clusters or max(1, round(len(items) ** 0.5))
        trained = plan.centroids if plan.centroids is not None and len(plan.centroids) == clusters else None
        parts = partition(items, clusters, seed=plan.seed, trained=trained, start=plan.start, **every)
    order, offsets = order_by_cluster(parts)
    shuffle_clusters(order, offsets, seed=plan.seed)
    positions = inverse_order(order)
    placed, stored, rounding = _place(items, parts, positions, offsets, plan, report)
    prior = None if log_bias is None else log_bias[order]
    moments = measure(placed, offsets, log_bias=prior, dispersion=plan.dispersion, **every)
    arrays: dict[str, NDArray[Any]] = {**stored, "offsets": offsets, **flatten(moments)}
    arrays |= flatten(list_outliers(placed, offsets, moments.means, threads=plan.threads), "outlier_")
    if prior is not None:
        arrays["log_bias"] = prior
    if plan.codes:
        arrays |= flatten(encode(placed, offsets, moments.means, **every), "code_")
    if plan.sketch:
        arrays |= flatten(draw_sketch(placed, offsets, moments.means, **every), "sketch_")
    if branches is not None:
        nodes = measure_tree(placed, branches, log_bias=prior, dispersion=plan.dispersion, **every)
        arrays |= flatten(nodes, "tree_")
    if plan.sketch:
        kind, biased = moments.dispersion.kind, plan.biased
        arrays["sketch_tails"] = measure_tails(arrays, biased=biased, seed=plan.seed)
        arrays["sketch_recall"] = measure_curve(arrays, kind, biased=biased, seed=plan.seed, threads=plan.threads)
    names = id_map(ids, order, positions)
    parameters = {
        "softindex": version("softindex"),
        "seed": plan.seed,
        "items": len(items),
        "clusters": parts.clusters,
        "ids": names.kind,
        "dispersion": moments.dispersion.kind,
        "rank": moments.dispersion.rank,
        "log_bias": prior is not None,
        "storage": plan.storage,
        **({} if rounding is None else {"rounding": rounding}),
        "codes": plan.codes,
        "sketch": plan.sketch,
        "tree": plan.tree,
    }
    return Contents(arrays, names, parameters)


def _place(
    items: Any, parts: Partition, positions: NDArray[Any], offsets: Integers, plan: _Plan, report: Report | None
) -> tuple[Any, dict[str, NDArray[Any]], Json | None]:
    """The items in cluster order, the arrays that hold them, and what was lost by rounding."""
    if plan.storage == "float32":
        placed = rearrange(items, positions, report=report)
        return placed, {"vectors": placed}, None
    every: dict[str, Any] = {"storage": plan.storage, "biased": plan.biased, "threads": plan.threads, "report": report}
    residuals, rounding = keep_residuals(items, parts.assignment, positions, offsets, **every)
    arrays = flatten(residuals, "residual_")
    return stored_vectors({**arrays, "offsets": offsets}), arrays, rounding
