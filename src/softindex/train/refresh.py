"""Refresher: looks at the classes again while a model trains, in another thread so that training does not wait."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from softindex.arguments import check_count, check_flag, check_share
from softindex.errors import InputError
from softindex.train.contract import Sampler, Tables, weight_of

__all__ = ["Refresher"]

KEPT = 1024
"""Recent queries that a refresh is given."""
KEPT_OF_A_STEP = 64
LATELY = 20
"""Steps over which the effective part of the draws is averaged."""

Source = Tensor | nn.Module | Callable[[], Tensor] | None


class Refresher:
    """Refresh a sampler every so many steps, every so many epochs, or when few of its draws count.

    items, bias: the tensors that are trained, or the layer, or a function that returns them; read at each refresh.
    Give it what you gave the sampler's own refresh, and queries to every step: nothing is remembered from there.
    steps, epochs: after so many of them.  effective: when the effective part of the draws, told to `step`, falls below
    this part of what it was after the last refresh.  background: the new tables are made in another thread from a copy
    of the items, and put to use at the first step after they are ready.

    A refresh that fails, as of items that hold NaN, raises from the `step`, `epoch` or `wait` that finds it ended; the
    old tables stay in use.  When tables are ready depends on the clock: for the same run twice, use background=False.
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
        self._replaces: Tables | None = None
        self._recent: list[Tensor] = []
        self._random = torch.Generator().manual_seed(0)
        self._closed = False
        self._after_steps = self._after_epochs = 0
        self._told = 0
        self._best = self._now = 0.0
        self.refreshes = 0
        """How many times new tables were put to use."""

    def step(self, queries: Tensor | None = None, effective: Tensor | float | None = None) -> None:
        """Say that a step of training is done: its queries (b, d), and what part of its draws counted.

        The queries are for samplers that look at them; `effective` is `SampledSoftmaxLoss.effective`.
        """
        self._take()
        if self._effective is not None and effective is None:
            raise InputError(
                "refreshes depend on the effective part of the draws; give step(effective=loss.effective)."
            )
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
        if self._closed:
            raise InputError("this Refresher is closed; make a new one.")
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
            self._replaces = self.sampler.tables
            self._coming = self._pool.submit(self.sampler.fit, items, **asked)

    def wait(self) -> None:
        """Wait for a refresh that is on its way, and put it to use."""
        self._take(wait=True)

    def close(self) -> None:
        """End the thread when it has ended what it does, and drop that; leaving a `with` block puts it to use first."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._coming, self._closed = None, True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self.close()

    def _take(self, *, wait: bool = False) -> None:
        if self._coming is not None and (wait or self._coming.done()):
            coming, self._coming = self._coming, None
            tables = coming.result()
            # Somebody else may have refreshed or loaded the sampler since: what they know is newer.
            if self.sampler.tables is self._replaces:
                self._put(tables)

    def _put(self, tables: Tables) -> None:
        self.sampler.install(tables)
        self.refreshes += 1
        self._told, self._best, self._now = 0, 0.0, 0.0

    def _keep(self, queries: Tensor) -> None:
        flat = queries.reshape(-1, queries.shape[-1])
        if len(flat) > KEPT_OF_A_STEP:
            flat = flat[torch.randint(len(flat), (KEPT_OF_A_STEP,), generator=self._random).to(flat.device)]
        flat = flat.to("cpu", torch.float32, copy=True)
        # A step that overflowed, as steps in half precision may, says nothing about the queries to come.
        flat = flat[torch.isfinite(flat).all(1)]
        if self._recent and self._recent[0].shape[1] != flat.shape[1]:
            self._recent.clear()
        if len(flat):
            self._recent.append(flat)
        while sum(map(len, self._recent)) > KEPT:
            self._recent.pop(0)

    def _has_fallen(self, effective: float, part: float) -> bool:
        """Whether the mean of what was told lately is below a part of what it was at its best since the refresh."""
        if not math.isfinite(effective):
            return False
        self._told += 1
        # The mean of all at first, then one that forgets.
        self._now += (effective - self._now) / min(self._told, LATELY)
        if self._told < LATELY:
            return False
        self._best = max(self._best, self._now)
        return self._now < part * self._best


def _copy(source: Source) -> Tensor | None:
    """What a source holds now, on the CPU and apart from it: training goes on while a refresh looks at it."""
    if source is None:
        return None
    now = weight_of(source)
    now = now if isinstance(now, Tensor) else now()
    return now.detach().to("cpu", copy=True)
