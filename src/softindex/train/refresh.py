"""Refresher: refreshes a sampler while a model trains, in another thread so that training does not wait."""

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
from softindex.train.checks import IGNORED, bias_of, weight_of
from softindex.train.contract import Sampler, Tables

__all__ = ["Refresher"]

KEPT = 1024
"""Recent queries passed to a refresh."""
KEPT_PER_STEP = 64
WINDOW = 20
"""Steps over which the effective share of the draws is averaged."""

Source = Tensor | nn.Module | Callable[[], Tensor] | None


class Refresher:
    """Refresh a sampler after a number of steps or epochs, or when its effective sample size falls.

    Pass the same data as to `sampler.refresh`, and queries to every `step`: the Refresher knows nothing from earlier
    refreshes of the sampler.  At least one of `steps`, `epochs` and `effective` is needed.

    A failed refresh, for example of items with NaN, raises from the next `step`, `epoch` or `wait` after it ended; the
    old tables stay in use.  When background tables are ready depends on the clock, so use background=False for
    repeatable runs.

    Args:
        sampler: The sampler.
        items: Class vectors, the layer, or a function that returns either; read at each refresh.
        frequencies: How often each class occurs as a target, (num_items,).
        bias: Numbers added to the logits, or a function that returns them; read at each refresh.  None uses the bias of
            the layer, if it has one.
        steps: Refresh after this many steps.
        epochs: Refresh after this many epochs.
        effective: Refresh when the effective share passed to `step` falls below this fraction of its best value since
            the last refresh.
        background: Compute the new tables in another thread from a copy of the items, and install them at the first
            step after they are ready.

    Raises:
        InputError: When none of `steps`, `epochs` and `effective` is given.
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
            raise InputError("it is not clear when to refresh; pass steps, epochs or effective.")
        self._pool = ThreadPoolExecutor(1, "softindex-refresh") if check_flag(background, "background") else None
        self._pending: Future[Tables] | None = None
        self._replaces: Tables | None = None
        self._recent: list[Tensor] = []
        self._random = torch.Generator().manual_seed(0)
        self._closed = False
        self._after_steps = self._after_epochs = 0
        self._reported = 0
        self._best = self._average = 0.0
        self.refreshes = 0
        """Number of times new tables were installed."""

    def step(
        self,
        queries: Tensor | None = None,
        effective: Tensor | float | None = None,
        *,
        positives: Tensor | None = None,
    ) -> None:
        """Report a training step.

        Args:
            queries: Queries of the step, (..., d), for samplers that use recent queries.
            effective: `SampledSoftmaxLoss.effective` of the step; needed if refreshes depend on it.
            positives: Targets of the queries, (...): queries whose target is -100 are left out.

        Raises:
            InputError: When `effective` is missing, the Refresher is closed, or a background refresh failed.
        """
        self._collect()
        if self._effective is not None and effective is None:
            raise InputError("refreshes depend on the effective sample size; call step(effective=loss.effective).")
        if queries is not None:
            self._keep(queries.detach(), positives)
        self._after_steps += 1
        due = self._steps is not None and self._after_steps >= self._steps
        if self._effective is not None and effective is not None:
            due = self._has_fallen(float(effective), self._effective) or due
        if due:
            self.refresh()

    def epoch(self) -> None:
        """Report the end of an epoch."""
        self._collect()
        self._after_epochs += 1
        if self._epochs is not None and self._after_epochs >= self._epochs:
            self.refresh()

    def refresh(self) -> None:
        """Refresh now, or start to in the background; does nothing while a background refresh is running."""
        if self._closed:
            raise InputError("this Refresher is closed; create a new one.")
        if self._pending is not None:
            return
        self._after_steps = self._after_epochs = 0
        items, bias = _copy(self._items, self._bias)
        options = {
            "frequencies": self._frequencies,
            "queries": torch.cat(self._recent) if self._recent else None,
            "bias": bias,
        }
        if self._pool is None:
            self._install(self.sampler.fit(items, **options))
        else:
            self._replaces = self.sampler.tables
            self._pending = self._pool.submit(self.sampler.fit, items, **options)

    def wait(self) -> None:
        """Wait for a running background refresh and install its tables."""
        self._collect(wait=True)

    def close(self) -> None:
        """Wait for the thread and drop its result; leaving a `with` block installs the result first."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pending, self._closed = None, True

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

    def _collect(self, *, wait: bool = False) -> None:
        if self._pending is not None and (wait or self._pending.done()):
            pending, self._pending = self._pending, None
            tables = pending.result()
            # If the sampler was refreshed or loaded since, those tables are newer.
            if self.sampler.tables is self._replaces:
                self._install(tables)

    def _install(self, tables: Tables) -> None:
        self.sampler.install(tables)
        self.refreshes += 1
        self._reported, self._best, self._average = 0, 0.0, 0.0

    def _keep(self, queries: Tensor, positives: Tensor | None) -> None:
        flat = queries.reshape(-1, queries.shape[-1])
        if positives is not None and bool((positives == IGNORED).any()):
            counted = positives.reshape(-1) != IGNORED
            flat = flat[counted.to(flat.device)]
        if len(flat) > KEPT_PER_STEP:
            flat = flat[torch.randint(len(flat), (KEPT_PER_STEP,), generator=self._random).to(flat.device)]
        flat = flat.to("cpu", torch.float32, copy=True)
        # Steps in half precision may overflow; such queries say nothing about later ones.
        flat = flat[torch.isfinite(flat).all(1)]
        if self._recent and self._recent[0].shape[1] != flat.shape[1]:
            self._recent.clear()
        if len(flat):
            self._recent.append(flat)
        while sum(map(len, self._recent)) > KEPT:
            self._recent.pop(0)

    def _has_fallen(self, effective: float, fraction: float) -> bool:
        """Whether the recent average is below a fraction of its best value since the last refresh."""
        if not math.isfinite(effective):
            return False
        self._reported += 1
        # A plain mean of the first values, then an exponential moving average.
        self._average += (effective - self._average) / min(self._reported, WINDOW)
        if self._reported < WINDOW:
            return False
        self._best = max(self._best, self._average)
        return self._average < fraction * self._best


def _copy(items: Source, bias: Source) -> tuple[Tensor | None, Tensor | None]:
    """Copies of the present items and bias on the CPU: training goes on during a refresh."""
    layer, given = _read(items), _read(bias)
    return _detach(weight_of(layer)), _detach(bias_of(layer, given))


def _read(source: Source) -> Any:
    return source() if callable(source) and not isinstance(source, nn.Module) else source


def _detach(value: Any) -> Tensor | None:
    return None if value is None else torch.as_tensor(value).detach().to("cpu", copy=True)
