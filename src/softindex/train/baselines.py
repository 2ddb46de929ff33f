"""Samplers that others propose, weighted rightly, to compare with: the sphere kernel and locality-sensitive hashing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softindex.arguments import check_count, check_seed, check_share
from softindex.errors import InputError
from softindex.train.contract import Given, Sampler, Tables, check_dim, check_number
from softindex.train.drawing import draw, log_shares

__all__ = ["LSHSampler", "SphereSampler"]

MOST_BITS = 24
"""Every table has a place for each pattern of bits."""


class SphereSampler(Sampler):
    """In proportion to alpha o^2 + 1, where o is the logit: the quadratic kernel of Blanc and Rendle.

    Scores every class: it is here for its law, not for its speed.
    """

    def __init__(self, num_items: int, *, alpha: float = 100.0) -> None:
        super().__init__(num_items)
        self.alpha = check_number(alpha, "alpha", 0, 1e30)

    def _options(self) -> dict[str, Any]:
        return {"alpha": self.alpha}

    def _fit(self, given: Given) -> Tables:
        return Tables({"items": given.need_items().clone()})

    def _log_weights(self, queries: Tensor) -> Tensor:
        items = self._ready()["items"]
        check_dim(queries, items.shape[1])
        return torch.log1p(self.alpha * (queries.float() @ items.T).double() ** 2)

    def _draw(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        log_weights = self._log_weights(queries)
        ids = draw(log_weights, m, generator)
        return ids, log_shares(log_weights).gather(1, ids)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return log_shares(self._log_weights(queries)).gather(1, ids)


class LSHSampler(Sampler):
    """A class that has the query's signs in one of several random projections, or, for a part of the draws, any class.

    tables: sets of random directions; bits: directions in each.  A draw picks a table, and a class alike among those
    whose signs in it are the query's; where there is none, and for the part `uniform` of all draws, any class alike.
    """

    def __init__(
        self, num_items: int, *, tables: int = 16, bits: int | None = None, uniform: float = 0.1, seed: int = 0
    ) -> None:
        super().__init__(num_items)
        self.projections = check_count(tables, "tables")
        # A bucket then holds about sixteen classes.
        self.bits = max(1, round(math.log2(num_items / 16))) if bits is None else check_count(bits, "bits")
        if self.bits > MOST_BITS:
            raise InputError(f"bits is {self.bits}; expected at most {MOST_BITS}.")
        self.uniform = check_share(uniform, "uniform")
        self.seed = check_seed(seed)

    def _options(self) -> dict[str, Any]:
        return {"tables": self.projections, "bits": self.bits, "uniform": self.uniform}

    def _fit(self, given: Given) -> Tables:
        items = given.need_items()
        random = torch.Generator().manual_seed(self.seed % 2**63)
        directions = torch.randn(self.projections, self.bits, items.shape[1], generator=random, dtype=torch.float32)
        centre = items.cpu().mean(0)
        codes = _signs(items.cpu() - centre, directions)
        sizes = torch.stack([torch.bincount(code, minlength=2**self.bits) for code in codes])
        starts = sizes.cumsum(1) - sizes
        return Tables(
            {
                "directions": directions,
                "centre": centre,
                "codes": codes.int(),
                "order": torch.argsort(codes, dim=1, stable=True),
                "sizes": sizes,
                "starts": starts,
            }
        )

    def _draw(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        tables = self._ready()
        codes = self._codes(queries)
        size = (len(queries), m)
        which = torch.randint(self.projections, size, generator=generator, device=queries.device)
        code = codes.T.gather(1, which)
        members = tables["sizes"][which, code]
        shares = torch.rand((3, *size), generator=generator, device=queries.device, dtype=torch.float64)
        places = tables["starts"][which, code] + (shares[0] * members).long()
        near = tables["order"][which, places.clamp(max=self.num_items - 1)]
        any_class = (shares[1] * self.num_items).long()
        ids = torch.where((members == 0) | (shares[2] < self.uniform), any_class, near)
        return ids, self._log_q(queries, ids)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        tables = self._ready()
        codes = self._codes(queries)
        near = torch.zeros(ids.shape, dtype=torch.float64, device=ids.device)
        for place in range(self.projections):
            sizes = tables["sizes"][place][codes[place]].double()[:, None]
            same = tables["codes"][place][ids] == codes[place][:, None]
            near += torch.where(sizes > 0, same / sizes.clamp(min=1), 1.0 / self.num_items)
        return torch.log((1 - self.uniform) * near / self.projections + self.uniform / self.num_items)

    def _codes(self, queries: Tensor) -> Tensor:
        """The query's code in each table, (tables, b)."""
        directions = self._ready()["directions"]
        check_dim(queries, directions.shape[2])
        return _signs(queries.float(), directions)


def _signs(rows: Tensor, directions: Tensor) -> Tensor:
    """The signs of rows (n, d) in the directions (tables, bits, d) as numbers (tables, n)."""
    powers = 2 ** torch.arange(directions.shape[1], device=rows.device)
    return torch.stack([((rows @ some.T > 0) * powers).sum(1) for some in directions])
