"""Published samplers for comparison, with correct log q: the sphere kernel and locality-sensitive hashing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softindex.arguments import check_count, check_seed, check_share
from softindex.errors import InputError
from softindex.train.checks import check_dim, check_number
from softindex.train.contract import RefreshInput, Sampler, Tables
from softindex.train.drawing import find

__all__ = ["LSHSampler", "SphereSampler"]

MOST_BITS = 24
"""Every hash table has an entry for each pattern of bits."""


class SphereSampler(Sampler):
    """Draw classes in proportion to alpha o^2 + 1, where o is the logit: the quadratic kernel of Blanc and Rendle.

    Scores every class, so it is useful to compare distributions, not speed.

    Args:
        num_items: Number of classes.
        alpha: Weight of the squared logit.
    """

    def __init__(self, num_items: int, *, alpha: float = 100.0) -> None:
        super().__init__(num_items)
        self.alpha = check_number(alpha, "alpha", 0, 1e30)

    def _options(self) -> dict[str, Any]:
        return {"alpha": self.alpha}

    def _fit(self, inputs: RefreshInput) -> Tables:
        tables = {"items": inputs.require_items().clone()}
        return Tables(tables if inputs.bias is None else tables | {"bias": inputs.bias.clone()})

    def _weights(self, queries: Tensor) -> Tensor:
        """Weights (b, num_items) of all classes, not normalised."""
        tables = self._ready()
        check_dim(queries, tables["items"].shape[1])
        logits = (queries.float() @ tables["items"].T).double()
        if "bias" in tables:
            logits += tables["bias"]
        # In float64 even the largest alpha and the square of the largest float32 stay below infinity.
        return logits.square_().mul_(self.alpha).add_(1.0)

    def _draw(
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        weights = self._weights(queries)
        sums = weights.cumsum(1)
        uniforms = torch.rand(len(queries), n, generator=generator, device=queries.device, dtype=torch.float64)
        ids = find(sums, uniforms * sums[:, -1:])
        return ids, torch.log(weights.gather(1, ids) / sums[:, -1:])

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        weights = self._weights(queries)
        return torch.log(weights.gather(1, ids) / weights.sum(1, keepdim=True))


class LSHSampler(Sampler):
    """Draw classes whose signs in a random projection equal those of the query.

    A draw picks a hash table, then any class, with equal probability, whose signs in that table are the query's.  If
    there is none, and for the share `uniform` of all draws, it is any class at all.

    Args:
        num_items: Number of classes.
        tables: Number of hash tables, each a set of random directions.
        bits: Directions per table; None chooses as many as give about 16 classes per cluster of equal signs.
        uniform: Share of draws that are uniform over all classes.
        seed: Seed of the directions.
    """

    def __init__(
        self, num_items: int, *, tables: int = 16, bits: int | None = None, uniform: float = 0.1, seed: int = 0
    ) -> None:
        super().__init__(num_items)
        self.hash_tables = check_count(tables, "tables")
        self.bits = max(1, round(math.log2(num_items / 16))) if bits is None else check_count(bits, "bits")
        if self.bits > MOST_BITS:
            raise InputError(f"bits is {self.bits}; expected at most {MOST_BITS}.")
        self.uniform = check_share(uniform, "uniform")
        self.seed = check_seed(seed)

    def _options(self) -> dict[str, Any]:
        return {"tables": self.hash_tables, "bits": self.bits, "uniform": self.uniform}

    def _fit(self, inputs: RefreshInput) -> Tables:
        items = inputs.require_items()
        random = torch.Generator().manual_seed(self.seed % 2**63)
        directions = torch.randn(self.hash_tables, self.bits, items.shape[1], generator=random, dtype=torch.float32)
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
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        tables = self._ready()
        codes = self._codes(queries)
        size = (len(queries), n)
        which = torch.randint(self.hash_tables, size, generator=generator, device=queries.device)
        code = codes.T.gather(1, which)
        members = tables["sizes"][which, code]
        uniforms = torch.rand((3, *size), generator=generator, device=queries.device, dtype=torch.float64)
        positions = tables["starts"][which, code] + (uniforms[0] * members).long()
        near = tables["order"][which, positions.clamp(max=self.num_items - 1)]
        any_class = (uniforms[1] * self.num_items).long()
        ids = torch.where((members == 0) | (uniforms[2] < self.uniform), any_class, near)
        return ids, self._log_q(queries, ids)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        tables = self._ready()
        codes = self._codes(queries)
        near = torch.zeros(ids.shape, dtype=torch.float64, device=ids.device)
        for table in range(self.hash_tables):
            sizes = tables["sizes"][table][codes[table]].double()[:, None]
            same = tables["codes"][table][ids] == codes[table][:, None]
            near += torch.where(sizes > 0, same / sizes.clamp(min=1), 1.0 / self.num_items)
        return torch.log((1 - self.uniform) * near / self.hash_tables + self.uniform / self.num_items)

    def _codes(self, queries: Tensor) -> Tensor:
        """Code of each query in each table, (tables, b)."""
        directions = self._ready()["directions"]
        check_dim(queries, directions.shape[2])
        return _signs(queries.float(), directions)


def _signs(rows: Tensor, directions: Tensor) -> Tensor:
    """Signs of rows (n, d) in directions (tables, bits, d), as one integer per table and row: (tables, n)."""
    powers = 2 ** torch.arange(directions.shape[1], device=rows.device)
    return torch.stack([((rows @ table.T > 0) * powers).sum(1) for table in directions])
