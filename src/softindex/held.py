"""What an index holds: its items, ids and parameters, and subsets of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as replace_fields
from typing import Any, Self

import numpy as np

from softindex.arguments import check_flag, check_threads
from softindex.calibration import Calibration
from softindex.contents import Contents, make_engine
from softindex.errors import InputError, show
from softindex.kernels import Engine
from softindex.records import Floats, Ids, Integers, Items, Json
from softindex.restrictions import Unknown, find_items
from softindex.subset import subset_contents

__all__ = ["Held"]


class Held:
    """The part of `Index` that draws nothing."""

    __slots__ = ("_contents", "_dim", "_engine")

    def __init__(self, contents: Contents, engine: Engine | None = None) -> None:
        self._contents = contents
        self._dim: int = contents.parameters["dim"]
        self._engine = make_engine(contents) if engine is None else engine

    def __len__(self) -> int:
        return len(self._contents)

    def __repr__(self) -> str:
        kinds = {"none": "no dispersion", "full": "full dispersion"}
        kept = kinds.get(self.parameters["dispersion"], f"dispersion of rank {self.parameters['rank']}")
        return f"<softindex.Index: {len(self)} items, {self.dim} dimensions, {self.clusters} clusters, {kept}>"

    @property
    def dim(self) -> int:
        """Dimensions of a query."""
        return self._dim

    @property
    def clusters(self) -> int:
        """Number of clusters, empty ones included."""
        return len(self._contents.arrays["means"])

    @property
    def sizes(self) -> Integers:
        """(k,) number of items in each cluster."""
        return self._contents.sizes()

    @property
    def ids(self) -> Ids:
        """(n,) every id, cluster after cluster: the first `sizes[0]` are those of cluster 0."""
        return self._contents.ids.at(self._contents.positions())

    @property
    def items(self) -> Items:
        """The stored vectors, biases, cluster offsets and means, in the order of `ids`.  Do not write to them."""
        return self._contents.items()

    @property
    def snapshot(self) -> int | None:
        """Number of the state of a `LiveIndex` that this is; None for an index of its own."""
        return self._contents.snapshot

    def vectors(self, ids: Any) -> Floats:
        """(m, d) the vectors of these ids, (m,); (d,) for a single id.  A copy, such as queries by item need."""
        return self._contents.vectors_of(ids)

    @property
    def parameters(self) -> Json:
        """How the index was built, and what it holds."""
        return self._contents.parameters

    @property
    def calibration(self) -> Calibration | None:
        """What `calibrate` measured; None for an index that is not calibrated."""
        return self._contents.calibration

    def with_calibration(self, calibration: Calibration | None) -> Self:
        """The same index with another calibration, or none; items and clusters are shared, not copied."""
        return type(self)(replace_fields(self._contents, calibration=calibration), self._engine)

    @property
    def subsets(self) -> tuple[str, ...]:
        """Names of the subsets that were saved with the index; open one with `subset(name)`."""
        return tuple(self._contents.subsets)

    def subset(
        self, items: Any, *, sketch: bool | None = None, unknown: Unknown = "error", threads: int | None = None
    ) -> Self:
        """The index of some of the items: it shares the vectors, and has the methods and laws of every index.

        Each cluster is measured without the items that are left out, in one pass and without k-means: sizes, means,
        dispersions and bounds are those of the subset.  Of a cluster that keeps less than half of its items the rows
        are copied.  A subset has no tree, codes or calibration.

        Args:
            items: Ids, or a boolean array (n,) in the order of `ids`, or the name of a subset saved with the index.
            sketch: Whether to make a sketch, which makes `top_k` several times faster; as the index when None.
            unknown: Ids that the index does not hold: "error" or "ignore".
            threads: Number of threads; all CPUs when None.

        Returns:
            An index that never changes either.  `save` writes it as an index of its own.
        """
        sketched = self.parameters["sketch"] if sketch is None else check_flag(sketch, "sketch")
        workers = check_threads(threads)
        wanted = self._contents.named(items) if isinstance(items, str) else items
        kept = find_items(self._contents, wanted, unknown)
        if not len(kept):
            raise InputError("a subset needs an item; pass at least one id, or a mask that is true somewhere.")
        return type(self)(subset_contents(self._contents, kept, sketch=sketched, threads=workers))

    def _with_subsets(self, subsets: Any) -> Contents:
        """The contents with these named subsets as well: views, or whatever `subset` takes."""
        if not isinstance(subsets, Mapping) or not all(isinstance(name, str) and name for name in subsets):
            raise InputError("subsets are not a mapping of names; pass a dict such as {'in stock': view}.")
        places, added = self._contents.positions(), {}
        for name, items in subsets.items():
            wanted = items.ids if isinstance(items, Held) else items
            kept = find_items(self._contents, wanted, "error")
            if not len(kept):
                raise InputError(f"subset {show(name)} holds no item; leave it out.")
            added[name] = np.packbits(np.isin(places, kept, assume_unique=True))
        return replace_fields(self._contents, subsets={**self._contents.subsets, **added})

    def __reduce__(self) -> str:
        raise TypeError(
            "an Index cannot be pickled; save it with index.save(path) and open it with softindex.load(path)."
        )
