"""Builds an index: wires the stages, one line a stage, and computes nothing itself."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from softindex.arguments import check_count, check_flag, check_per_item, check_seed, check_threads, check_vectors
from softindex.codes import encode
from softindex.contents import Contents
from softindex.ids import id_map
from softindex.index import Index
from softindex.moments import choose_dispersion, measure, measure_tree
from softindex.outliers import list_outliers
from softindex.partition import grow, inverse_order, order_by_cluster, partition, shuffle_clusters
from softindex.progress import reporting
from softindex.vectors import read, rearrange

__all__ = ["build"]


def build(
    vectors: Any,
    *,
    ids: Any = None,
    log_bias: Any = None,
    clusters: int | None = None,
    dispersion: str | int = "auto",
    tree: bool = False,
    codes: bool = False,
    seed: int = 0,
    threads: int | None = None,
    progress: bool = False,
) -> Index:
    """Build an index.  The vectors are copied, cluster by cluster, as float32.

    Args:
        vectors: Items, (n, d): float32 or float16 array, memmap, torch tensor, or path to a file (`.npy .npz
            .safetensors .parquet .fvecs .bvecs .hdf5 .txt`).  Of several arrays in a file the only two-dimensional one
            is taken, or the one named vectors, embeddings, weight or train, or the one you name: "file.npz::name".
        ids: Integers or strings, one per row.  None: those in an array or column "ids" of the file (Parquet also "id"),
            the words of a text file, or else row numbers.
        log_bias: (n,) added to each item's logit, as a log prior: an item of bias log 2 counts as two items.
        clusters: `round(sqrt(n))` when None.
        dispersion: What is kept of the spread inside clusters for sd-2ls: "none", "full" (covariances), a rank r, or
            "auto".
        tree: Cut the items in two by 2-means, and the parts again, until no cluster holds more than 1024 items (or
            there are `clusters` of them), and keep the tree for the hierarchical methods.  All others work too.
        codes: Also keep every item in eight bits a number, a quarter of the memory of the vectors, with a bound on the
            loss.
        seed: On one machine the same input, seed and settings give the same index.
    """
    workers, key = check_threads(threads), check_seed(seed)
    source = read(vectors, ids=ids)
    n, d = source.vectors.shape
    wanted_clusters = None if clusters is None else check_count(clusters, "clusters")
    with_tree, with_codes = check_flag(tree, "tree"), check_flag(codes, "codes")
    form = choose_dispersion(dispersion, d)
    bias = check_per_item(log_bias, n, name="log_bias")
    check_vectors(source.vectors)
    with reporting(progress) as report:
        if with_tree:
            parts, branches = grow(source.vectors, wanted_clusters, seed=key, threads=workers, report=report)
        else:
            clusters, branches = wanted_clusters or max(1, round(n**0.5)), None
            parts = partition(source.vectors, clusters, seed=key, threads=workers, report=report)
        order, offsets = order_by_cluster(parts)
        shuffle_clusters(order, offsets, seed=key)
        positions = inverse_order(order)
        placed = rearrange(source.vectors, positions, report=report)
        placed_bias = None if bias is None else bias[order]
        settings: Any = {"log_bias": placed_bias, "dispersion": form, "threads": workers, "report": report}
        moments = measure(placed, offsets, **settings)
        nodes = None if branches is None else measure_tree(placed, branches, **settings)
        far = list_outliers(placed, offsets, moments.means, threads=workers)
        coded = encode(placed, offsets, moments.means, threads=workers, report=report) if with_codes else None
    wanted = dispersion if isinstance(dispersion, str) else form
    parameters = {"softindex": version("softindex"), "seed": key, "dispersion_asked": wanted}
    names = id_map(source.ids, order, positions)
    return Index(Contents(placed, offsets, names, placed_bias, moments, parameters, coded, far, nodes))
