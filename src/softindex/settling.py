"""Makes an index of its own from contents that share what they hold with others: a snapshot, or a subset."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.contents import Contents
from softindex.fields import flatten
from softindex.ids import id_map
from softindex.moments import measure
from softindex.outliers import list_outliers
from softindex.recall import measure_curve
from softindex.sketch import draw_sketch
from softindex.tails import measure_tails

__all__ = ["settled"]


def settled(contents: Contents, *, sketch: bool = False, threads: int = 1) -> Contents:
    """The same items as an index of their own, in one array: what `save` writes.

    Every cluster is measured, and rows that came to a catalogue are a cluster like any other there, so the default law
    differs a little.
    """
    places, sizes = contents.positions(), contents.sizes()
    filled = np.flatnonzero(sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes[filled])])
    vectors, held = contents.vectors_at(places), contents.parameters
    log_bias = contents.arrays["log_bias"][places] if "log_bias" in contents.arrays else None
    dispersion = held["rank"] if held["dispersion"] == "rank" else held["dispersion"]
    moments = measure(vectors, offsets, log_bias=log_bias, dispersion=dispersion, threads=threads)
    arrays: dict[str, NDArray[Any]] = {"vectors": vectors, "offsets": offsets, **flatten(moments)}
    arrays |= flatten(list_outliers(vectors, offsets, moments.means, threads=threads), "outlier_")
    if log_bias is not None:
        arrays["log_bias"] = log_bias
    if sketch:
        arrays |= flatten(draw_sketch(vectors, offsets, moments.means, threads=threads), "sketch_")
        seed, biased = held["seed"], held["bias"]
        arrays["sketch_tails"] = measure_tails(arrays, biased=biased, seed=seed)
        arrays["sketch_recall"] = measure_curve(arrays, held["dispersion"], biased=biased, seed=seed, threads=threads)
    order = np.arange(len(places))
    ids = id_map(contents.ids.at(places), order, order.astype(np.int32 if len(order) < 2**31 else np.int64))
    counts = {"items": len(places), "clusters": len(filled), "ids": ids.kind, "sketch": sketch}
    return Contents(arrays, ids, {**held, **counts})
