"""Samplers that ignore the query: uniform, log-uniform, by frequency, and from the targets of the batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softindex.errors import InputError
from softindex.train.checks import check_number, check_range
from softindex.train.contract import RefreshInput, Sampler, Tables
from softindex.train.drawing import cumulate, find, log_normalise

__all__ = ["InBatchSampler", "LogUniformSampler", "UniformSampler", "UnigramSampler"]


class UniformSampler(Sampler):
    """Draw every class with the same probability.  Needs no refresh.

    Args:
        num_items: Number of classes.
    """

    needs_refresh = False

    def _draw(
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        ids = torch.randint(self.num_items, (len(queries), n), generator=generator, device=queries.device)
        return ids, self._log_q(queries, ids)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return torch.full(ids.shape, -math.log(self.num_items), device=ids.device)


class LogUniformSampler(Sampler):
    """Draw class i with probability log((i + 2) / (i + 1)) / log(num_items + 1), which is close to Zipf's law.

    For classes sorted by decreasing frequency.  Needs no refresh.

    Args:
        num_items: Number of classes.
    """

    needs_refresh = False

    def _draw(
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        uniforms = torch.rand(len(queries), n, generator=generator, device=queries.device, dtype=torch.float64)
        ids = torch.expm1(uniforms * math.log1p(self.num_items)).long().clamp_(0, self.num_items - 1)
        return ids, self._log_q(queries, ids)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return torch.log(torch.log1p(1.0 / (ids.double() + 1.0))) - math.log(math.log1p(self.num_items))


class UnigramSampler(Sampler):
    """Draw classes in proportion to frequency ** power.

    A class that never occurred counts as often as the rarest that did.

    Args:
        num_items: Number of classes.
        power: 1 draws classes as often as they are targets, 0 uniformly.
    """

    def __init__(self, num_items: int, *, power: float = 1.0) -> None:
        super().__init__(num_items)
        self.power = check_number(power, "power", -10, 10)

    def _options(self) -> dict[str, Any]:
        return {"power": self.power}

    def _fit(self, inputs: RefreshInput) -> Tables:
        log_weights = self.power * torch.log(inputs.positive_frequencies())
        return Tables({"log_p": log_normalise(log_weights).float(), "cumulative": cumulate(log_weights)})

    def _draw(
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        uniforms = torch.rand(len(queries), n, generator=generator, device=queries.device, dtype=torch.float64)
        ids = find(self._ready()["cumulative"], uniforms)
        return ids, self._log_q(queries, ids)

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return self._ready()["log_p"][ids]


class InBatchSampler(Sampler):
    """Draw the targets of the other queries in the batch, which occur as often as their frequency says.

    Only rows of the items that the batch needs anyway are read.  `log_q` is that of the targets in the data, so the
    batch must be a random sample of the data, and a class that is never a target is never drawn.  A query alone in its
    batch gets draws by frequency.  Of b shared draws one is the query's own target, which does not count for it: the
    others stand for all, so log(1 - 1 / b) is added to their log_q.

    Args:
        num_items: Number of classes.
    """

    independent = False

    def _fit(self, inputs: RefreshInput) -> Tables:
        log_weights = torch.log(inputs.require_frequencies())
        return Tables({"log_p": log_normalise(log_weights).float(), "cumulative": cumulate(log_weights)})

    def _draw(
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        targets = self._check_positives(positives, len(queries))
        b, others = len(targets), len(targets) - 1
        if others == 0:
            uniforms = torch.rand(1, n, generator=generator, device=targets.device, dtype=torch.float64)
            ids = find(self._ready()["cumulative"], uniforms)
            return ids, self._log_q(queries, ids)
        if n <= others:
            # Without replacement: still unbiased, with less variance.
            steps = torch.rand(b, others, generator=generator, device=targets.device).topk(n, dim=1).indices
        else:
            steps = torch.randint(others, (b, n), generator=generator, device=targets.device)
        ids = targets[(torch.arange(b, device=targets.device)[:, None] + 1 + steps) % b]
        return ids, self._log_q(queries, ids)

    def _draw_shared(
        self, queries: Tensor, n: int, positives: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        targets = self._check_positives(positives, len(queries))
        b = len(targets)
        if b == 1:
            ids, log_q = self._draw(queries, n, targets, generator)
            return ids[0], log_q[0]
        rows = torch.randperm(b, generator=generator, device=targets.device).repeat(-(-n // b))[:n]
        ids = targets[rows]
        return ids, self._ready()["log_p"][ids] + math.log1p(-1 / b)

    def _check_positives(self, positives: Tensor | None, b: int) -> Tensor:
        if positives is None:
            raise InputError("this sampler draws from the targets of the batch; call sample(..., positives=...).")
        if positives.shape != (b,):
            raise InputError(f"positives have shape {tuple(positives.shape)}; expected ({b},), one per query.")
        check_range(positives, self.num_items, "positives")
        unknown = positives[torch.isneginf(self._ready()["log_p"][positives.long()])]
        if len(unknown):
            raise InputError(
                f"class {int(unknown[0])} is a target of this batch, but its frequency is 0; refresh with frequencies "
                "that count every target, or with frequencies.clamp(min=1)."
            )
        return positives.long()

    def _log_q(self, queries: Tensor, ids: Tensor) -> Tensor:
        return self._ready()["log_p"][ids]
