"""TwoLevelSampler: negatives from the two-level distributions of a softindex Index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from softindex.arguments import check_count, check_per_item, check_seed, check_threads
from softindex.builder import build, rebuild
from softindex.errors import InputError
from softindex.index import Index, from_stored, to_stored
from softindex.records import Floats, Stored
from softindex.train.checks import check_choice, check_dim
from softindex.train.contract import RefreshInput, Sampler, Tables

__all__ = ["TwoLevelSampler"]

Method = Literal["s-2ls", "sd-2ls", "2ls"]
METHODS: tuple[str, ...] = get_args(Method)
HEADER = "header"
"""Name of the tensor that describes the saved arrays."""


class IndexTables(Tables):
    """An index in memory, written as tensors of bytes only when a state dict or a copy needs them."""

    def __init__(self, index: Index) -> None:
        super().__init__({})
        self.index = index

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, tensor in _pack(self.index).items():
            destination[prefix + name] = tensor

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Load nothing: the sampler opened the index from the saved arrays when it created these tables."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"index": _pack(self.index)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"index": _unpack(state["index"])})  # type: ignore[no-untyped-call]


class TwoLevelSampler(Sampler):
    """Draw a cluster by its estimated mass, then a class in it by the softmax: usually closer to the softmax than MIDX.

    The first refresh trains the clusters.  Later ones start from the clusters of the last tables and take less time,
    above all with "s-2ls".  Draws are made on the CPU, whatever the device of the queries.

    Args:
        num_items: Number of classes.
        method: How the mass of a cluster is estimated: "2ls" from its mean, "s-2ls" from mean and size, "sd-2ls" from
            mean, size and dispersion.
        probes: Clusters scanned before drawing; 0 is the published distribution.
        clusters: Number of clusters; None uses sqrt(num_items).
        seed: Seed of the build.
        threads: Number of threads; None uses all cores.
    """

    def __init__(
        self,
        num_items: int,
        *,
        method: Method = "sd-2ls",
        probes: int = 0,
        clusters: int | None = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        super().__init__(num_items)
        check_choice(method, "method", METHODS)
        self.method = method
        self.probes = 0 if probes == 0 else check_count(probes, "probes")
        self.clusters = None if clusters is None else check_count(clusters, "clusters")
        self.seed, self.threads = check_seed(seed), check_threads(threads)

    def _options(self) -> dict[str, Any]:
        return {"method": self.method}

    @property
    def index(self) -> Index:
        """The index that draws come from."""
        tables = self._ready()
        assert isinstance(tables, IndexTables)
        return tables.index

    def _fit(self, inputs: RefreshInput) -> Tables:
        items = inputs.require_items().cpu().numpy()
        bias = None if inputs.bias is None else inputs.bias.float().cpu().numpy()
        log_bias = check_per_item(bias, self.num_items, name="bias", of="class")
        options: dict[str, Any] = {"dispersion": "auto" if self.method == "sd-2ls" else "none", "log_bias": log_bias}
        options |= {"seed": self.seed, "threads": check_threads(self.threads)}
        means = self._means(items.shape[1])
        if means is None:
            # A sketch speeds up top-k only.
            return IndexTables(build(items, clusters=self.clusters, sketch=False, **options))
        return IndexTables(rebuild(items, means, **options))

    def _means(self, dim: int) -> Floats | None:
        """Means (k, d) of the clusters of the current tables; None if there are none of this dimension and number."""
        tables = self.tables
        if not isinstance(tables, IndexTables) or tables.index.dim != dim:
            return None
        means = to_stored(tables.index).arrays["means"]
        return means if self.clusters in (None, len(means)) else None

    def _tables_to_load(self, saved: Mapping[str, Tensor]) -> Tables:
        try:
            return self._label(IndexTables(_unpack(saved)))
        except (KeyError, ValueError) as error:
            raise InputError(
                f"the saved sampler is not intact ({error}); call refresh() instead of loading it."
            ) from error

    def _draw(
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        seed = int(torch.randint(2**63 - 1, (), generator=generator, device=queries.device))
        draws = self.index.sample(
            self._as_array(queries),
            n,
            temperature=1.0,
            method=self.method,
            probes=self.probes,
            seed=seed,
            threads=self.threads,
        )
        ids, log_prob = torch.from_numpy(draws.ids), torch.from_numpy(draws.log_prob)
        return ids.to(queries.device), log_prob.to(queries.device)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        log_prob = self.index.log_prob(
            self._as_array(queries),
            ids.cpu().numpy(),
            temperature=1.0,
            method=self.method,
            probes=self.probes,
            threads=self.threads,
        )
        return torch.from_numpy(log_prob).to(queries.device)

    def _as_array(self, queries: Tensor) -> Floats:
        check_dim(queries, self.index.dim)
        return queries.float().cpu().numpy()


def _pack(index: Index) -> dict[str, Tensor]:
    """The arrays of an index as tensors of bytes, which have no dtype to convert, and a header that describes them."""
    stored = to_stored(index)
    header = {
        "kind": stored.kind,
        "parameters": stored.parameters,
        "arrays": {name: {"dtype": array.dtype.str, "shape": array.shape} for name, array in stored.arrays.items()},
    }
    arrays = {name: _to_bytes(array.tobytes()) for name, array in stored.arrays.items()}
    return {HEADER: _to_bytes(json.dumps(header).encode()), **arrays}


def _to_bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _unpack(saved: Mapping[str, Tensor]) -> Index:
    """The index that `_pack` described, independent of the tensors."""
    header = json.loads(bytes(saved[HEADER].tolist()))
    arrays = {
        name: np.frombuffer(saved[name].cpu().numpy().tobytes(), dtype=kind["dtype"]).reshape(kind["shape"])
        for name, kind in header["arrays"].items()
    }
    return from_stored(Stored(header["kind"], header["parameters"], arrays))
