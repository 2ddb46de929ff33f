"""Refresher: looks at the classes again while a model trains, in another thread so that training does not wait."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from softindex.errors import InputError
from softindex.train.contract import Sampler, Tables
from softindex.vectors import check_count, check_flag, check_share

__all__ = ["Refresher"]

KEPT = 1024
"""Recent queries that a refresh is given."""
KEPT_OF_A_STEP = 64
MEMORY = 0.9
"""How much of the effective size told before counts after another step."""

Source = Tensor | nn.Embedding | Callable[[], Tensor] | None


class Refresher:
    """Refresh a sampler every so many steps, every so many epochs, or when few of its draws count.

    items, bias: the tensors that are trained (or a function that returns them), read at each refresh.
    steps, epochs: after so many of them.  effective: when the effective part of the draws, told to `step`, falls below
    this part of what it was after the last refresh.  background: the new tables are made in another thread from a copy
    of the items, and put to use at the first step after they are ready.

    A refresh that fails, as of items that hold NaN, raises from `step` or `epoch`; the old tables stay in use.
    """

    def __init__(
        self,
        sampler: Sampler,
        items: Source = None,
        *,
        frequencies: Any = None,
        bias: Source = None,
        steps: int | None = None,
        epochs: int | None = None,
        effective: float | None = None,
        background: bool = True,
    ) -> None:
        self.sampler = sampler
        self._items, self._frequencies, self._bias = items, frequencies, bias
        self._steps = None if steps is None else check_count(steps, "steps")
        self._epochs = None if epochs is None else check_count(epochs, "epochs")
        self._effective = None if effective is None else check_share(effective, "effective")
        if steps is None and epochs is None and effective is None:
            raise InputError("nothing says when to refresh; give steps, epochs or effective.")
        self._pool = ThreadPoolExecutor(1, "softindex-refresh") if check_flag(background, "background") else None
        self._coming: Future[Tables] | None = None
        self._recent: list[Tensor] = []
        self._after_steps = self._after_epochs = 0
        self._best = self._now = math.nan
        self.refreshes = 0
        """How many times new tables were put to use."""

    def step(self, queries: Tensor | None = None, effective: Tensor | float | None = None) -> None:
        """Say that a step of training is done: its queries (b, d), and what part of its draws counted.

        The queries are for samplers that look at them; `effective` is `SampledSoftmaxLoss.effective`.
        """
        self._take()
        if queries is not None:
            self._keep(queries.detach())
        self._after_steps += 1
        due = self._steps is not None and self._after_steps >= self._steps
        if self._effective is not None and effective is not None:
            due = self._has_fallen(float(effective), self._effective) or due
        if due:
            self.refresh()

    def epoch(self) -> None:
        """Say that an epoch is done."""
        self._take()
        self._after_epochs += 1
        if self._epochs is not None and self._after_epochs >= self._epochs:
            self.refresh()

    def refresh(self) -> None:
        """Refresh now; in the background, if that is where refreshes are made and none is on its way."""
        if self._coming is not None:
            return
        self._after_steps = self._after_epochs = 0
        asked = {
            "frequencies": self._frequencies,
            "queries": torch.cat(self._recent) if self._recent else None,
            "bias": _copy(self._bias),
        }
        items = _copy(self._items)
        if self._pool is None:
            self._put(self.sampler.fit(items, **asked))
        else:
            self._coming = self._pool.submit(self.sampler.fit, items, **asked)

    def wait(self) -> None:
        """Wait for a refresh that is on its way, and put it to use."""
        self._take(wait=True)

    def close(self) -> None:
        """End the thread; what is on its way is dropped."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._coming = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, *, wait: bool = False) -> None:
        if self._coming is not None and (wait or self._coming.done()):
            coming, self._coming = self._coming, None
            self._put(coming.result())

    def _put(self, tables: Tables) -> None:
        self.sampler.install(tables)
        self.refreshes += 1
        self._best = self._now = math.nan

    def _keep(self, queries: Tensor) -> None:
        flat = queries.reshape(-1, queries.shape[-1])
        if len(flat) > KEPT_OF_A_STEP:
            flat = flat[torch.randint(len(flat), (KEPT_OF_A_STEP,), device=flat.device)]
        self._recent.append(flat.float().cpu())
        while sum(map(len, self._recent)) > KEPT:
            self._recent.pop(0)

    def _has_fallen(self, effective: float, part: float) -> bool:
        first = math.isnan(self._now)
        self._now = effective if first else MEMORY * self._now + (1 - MEMORY) * effective
        self._best = self._now if first else max(self._best, self._now)
        return self._now < part * self._best


def _copy(source: Source) -> Tensor | None:
    """What a source holds now, on the CPU and apart from it: training goes on while a refresh looks at it."""
    if source is None:
        return None
    now = source.weight if isinstance(source, nn.Embedding) else source() if not isinstance(source, Tensor) else source
    return now.detach().to("cpu", copy=True)
