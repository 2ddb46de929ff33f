"""Laws that do not look at the query: uniform, log-uniform, by frequency, and the targets of the batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softindex.errors import InputError
from softindex.train.contract import Sampler, Tables, check_range
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
        if not (isinstance(power, (int, float)) and math.isfinite(power)):
            raise InputError(f"power is {power!r}; expected a number, mostly from 0 to 1.")
        self.power = float(power)

    def _fit(
        self, items: Tensor | None, frequencies: Tensor | None, queries: Tensor | None, bias: Tensor | None
    ) -> Tables:
        if frequencies is None:
            raise InputError(
                "the sampler draws by frequency; give refresh(frequencies=...), one number for each class."
            )
        log_weights = self.power * torch.log(frequencies)
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
    batch must be a fair sample of it.
    """

    def _fit(
        self, items: Tensor | None, frequencies: Tensor | None, queries: Tensor | None, bias: Tensor | None
    ) -> Tables:
        if frequencies is None:
            raise InputError("targets occur by frequency; give refresh(frequencies=...), one number for each class.")
        return Tables({"log_p": log_shares(torch.log(frequencies)).float()})

    def _draw(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        targets = self._check_positives(positives, len(queries))
        others = len(targets) - 1
        size = (len(targets), m)
        if m <= others:
            # Without replacement: as fair, and less noise.
            noise = torch.rand(len(targets), others, generator=generator, device=targets.device)
            steps = noise.topk(m, dim=1).indices
        else:
            steps = torch.randint(others, size, generator=generator, device=targets.device)
        rows = (torch.arange(len(targets), device=targets.device)[:, None] + 1 + steps) % len(targets)
        ids = targets[rows]
        return ids, self._log_q(queries, ids)

    def _draw_shared(
        self, queries: Tensor, m: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        targets = self._check_positives(positives, len(queries))
        b = len(targets)
        rows = torch.randperm(b, generator=generator, device=targets.device).repeat(-(-m // b))[:m]
        ids = targets[rows]
        # Of the draws, one in b is a query's own target, which is no draw for it: the others stand for all m.
        return ids, self._ready()["log_p"][ids] + math.log1p(-1 / b)

    def _check_positives(self, positives: Tensor | None, b: int) -> Tensor:
        if positives is None:
            raise InputError("this sampler draws from the targets of the batch; give sample(..., positives=...).")
        if positives.shape != (b,):
            raise InputError(f"positives have shape {tuple(positives.shape)}; expected ({b},), one for each query.")
        if b < 2:
            raise InputError("there is one query, and no target of another to draw; give at least two.")
        check_range(positives, self.num_items, "positives")
        return positives.long()

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return self._ready()["log_p"][ids]
