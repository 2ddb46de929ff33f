"""TwoLevelSampler: negatives from the two-level laws of a softindex Index."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softindex.arguments import check_count, check_seed, check_threads
from softindex.builder import build
from softindex.contents import from_stored, to_stored
from softindex.errors import MethodError, show
from softindex.index import Index
from softindex.records import Stored
from softindex.train.contract import Given, Sampler, Tables, check_dim

__all__ = ["TwoLevelSampler"]

METHODS = ("s-2ls", "sd-2ls", "2ls")
HEADER = "header"


class TwoLevelSampler(Sampler):
    """Draw a cluster by its estimated mass, then a class in it by the softmax: nearer to the softmax than MIDX.

    method: how the mass is estimated, "s-2ls" from sizes, "sd-2ls" from sizes and dispersion.  probes: clusters that
    are scanned before; 0 is the law as published.  clusters: sqrt(n) when None.  A refresh builds the index again.
    Draws are made on the CPU, whatever device the queries are on.
    """

    def __init__(
        self,
        num_items: int,
        *,
        method: str = "sd-2ls",
        probes: int = 0,
        clusters: int | None = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        super().__init__(num_items)
        if method not in METHODS:
            raise MethodError(f"method is {show(method)}; expected one of {', '.join(METHODS)}.")
        self.method = method
        self.probes = 0 if probes == 0 else check_count(probes, "probes")
        self.clusters = None if clusters is None else check_count(clusters, "clusters")
        self.seed, self.threads = check_seed(seed), check_threads(threads)
        self._opened: tuple[Tables, Index] | None = None

    def _options(self) -> dict[str, Any]:
        return {"method": self.method}

    def __getstate__(self) -> dict[str, Any]:
        # An index is not copied; it is opened again from the tables.
        return self.__dict__ | {"_opened": None}

    def _fit(self, given: Given) -> Tables:
        index = build(
            given.need_items().cpu().numpy(),
            log_bias=None if given.bias is None else given.bias.float().cpu().numpy(),
            clusters=self.clusters,
            dispersion="auto" if self.method == "sd-2ls" else "none",
            seed=self.seed,
            threads=self.threads,
        )
        return _pack(to_stored(index._contents))

    @property
    def index(self) -> Index:
        """The index that is drawn from."""
        tables = self._ready()
        if self._opened is None or self._opened[0] is not tables:
            self._opened = (tables, Index(from_stored(_unpack(tables))))
        return self._opened[1]

    def _draw(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        seed = int(torch.randint(2**63 - 1, (), generator=generator, device=queries.device))
        drawn = self.index.sample(
            self._rows(queries),
            m,
            temperature=1.0,
            method=self.method,
            probes=self.probes,
            seed=seed,
            threads=self.threads,
        )
        return torch.from_numpy(drawn.ids).to(queries.device), torch.from_numpy(drawn.log_prob).to(queries.device)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        log_prob = self.index.log_prob(
            self._rows(queries),
            ids.cpu().numpy(),
            temperature=1.0,
            method=self.method,
            probes=self.probes,
            threads=self.threads,
        )
        return torch.from_numpy(log_prob).to(queries.device)

    def _rows(self, queries: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        check_dim(queries, self.index.dim)
        return queries.float().cpu().numpy()


def _pack(stored: Stored) -> Tables:
    """The arrays of an index as tensors of bytes, whatever their dtypes, and a header that says what they are."""
    header = {
        "kind": stored.kind,
        "parameters": stored.parameters,
        "arrays": {name: {"dtype": array.dtype.str, "shape": array.shape} for name, array in stored.arrays.items()},
    }
    arrays = {name: _bytes(array.tobytes()) for name, array in stored.arrays.items()}
    return Tables({HEADER: _bytes(json.dumps(header).encode()), **arrays})


def _bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _unpack(tables: Tables) -> Stored:
    header = json.loads(bytes(tables[HEADER].tolist()))
    arrays = {
        name: np.frombuffer(tables[name].cpu().numpy(), dtype=kind["dtype"]).reshape(kind["shape"])
        for name, kind in header["arrays"].items()
    }
    return Stored(header["kind"], header["parameters"], arrays)
