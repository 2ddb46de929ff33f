"""Laws that do not look at the query: uniform, log-uniform, by frequency, and the targets of the batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softindex.errors import InputError
from softindex.train.contract import Given, Sampler, Tables, check_number, check_range
from softindex.train.drawing import cumulate, find, log_shares

__all__ = ["InBatchSampler", "LogUniformSampler", "UniformSampler", "UnigramSampler"]


class UniformSampler(Sampler):
    """Every class alike.  Needs no refresh."""

    needs_refresh = False

    def _draw(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        ids = torch.randint(self.num_items, (len(queries), m), generator=generator, device=queries.device)
        return ids, self._log_q(queries, ids)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return torch.full(ids.shape, -math.log(self.num_items), device=ids.device)


class LogUniformSampler(Sampler):
    """log((i + 2) / (i + 1)) / log(n + 1), about Zipf's law: for classes sorted by falling frequency.  No refresh."""

    needs_refresh = False

    def _draw(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        shares = torch.rand(len(queries), m, generator=generator, device=queries.device, dtype=torch.float64)
        ids = torch.expm1(shares * math.log1p(self.num_items)).long().clamp_(0, self.num_items - 1)
        return ids, self._log_q(queries, ids)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return torch.log(torch.log1p(1.0 / (ids.double() + 1.0))) - math.log(math.log1p(self.num_items))


class UnigramSampler(Sampler):
    """In proportion to frequency ** power: 1 draws classes as often as they are targets, 0 is uniform."""

    def __init__(self, num_items: int, *, power: float = 1.0) -> None:
        super().__init__(num_items)
        self.power = check_number(power, "power", -10, 10)

    def _options(self) -> dict[str, Any]:
        return {"power": self.power}

    def _fit(self, given: Given) -> Tables:
        log_weights = self.power * torch.log(given.seen())
        return Tables({"log_p": log_shares(log_weights).float(), "cumulative": cumulate(log_weights)})

    def _draw(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        shares = torch.rand(len(queries), m, generator=generator, device=queries.device, dtype=torch.float64)
        ids = find(self._ready()["cumulative"], shares)
        return ids, self._log_q(queries, ids)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return self._ready()["log_p"][ids]


class InBatchSampler(Sampler):
    """The targets of the other queries of the batch, which occur as often as their frequency.

    No row of the items is read that the batch does not read anyway.  The law is that of the targets in the data, so the
    batch must be a fair sample of it, and a class that is never a target is never drawn.  A query that is alone gets
    draws by frequency.  Of shared draws one in b is a query's own target, which is no draw for it: the others stand for
    all, and their log_q is less by that part.
    """

    def _fit(self, given: Given) -> Tables:
        log_weights = torch.log(given.need_frequencies())
        return Tables({"log_p": log_shares(log_weights).float(), "cumulative": cumulate(log_weights)})

    def _draw(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        targets = self._check_positives(positives, len(queries))
        b, others = len(targets), len(targets) - 1
        if others == 0:
            shares = torch.rand(1, m, generator=generator, device=targets.device, dtype=torch.float64)
            ids = find(self._ready()["cumulative"], shares)
            return ids, self._log_q(queries, ids)
        if m <= others:
            # Without replacement: as fair, and less noise.
            steps = torch.rand(b, others, generator=generator, device=targets.device).topk(m, dim=1).indices
        else:
            steps = torch.randint(others, (b, m), generator=generator, device=targets.device)
        ids = targets[(torch.arange(b, device=targets.device)[:, None] + 1 + steps) % b]
        return ids, self._log_q(queries, ids)

    def _draw_shared(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        targets = self._check_positives(positives, len(queries))
        b = len(targets)
        if b == 1:
            ids, log_q = self._draw(queries, m, targets, generator)
            return ids[0], log_q[0]
        rows = torch.randperm(b, generator=generator, device=targets.device).repeat(-(-m // b))[:m]
        ids = targets[rows]
        return ids, self._ready()["log_p"][ids] + math.log1p(-1 / b)

    def _check_positives(self, positives: Tensor | None, b: int) -> Tensor:
        if positives is None:
            raise InputError("this sampler draws from the targets of the batch; give sample(..., positives=...).")
        if positives.shape != (b,):
            raise InputError(f"positives have shape {tuple(positives.shape)}; expected ({b},), one for each query.")
        check_range(positives, self.num_items, "positives")
        return positives.long()

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return self._ready()["log_p"][ids]
