"""Refresher: refreshes a sampler while a model trains, in another thread so that training does not wait."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from numbers import Real
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from softindex.arguments import check_count, check_flag, check_share
from softindex.errors import InputError, show
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
    old tables stay in use.  When background tables become available depends on timing, so use background=False for
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
        InputError: When an argument is wrong, or none of `steps`, `epochs` and `effective` is given.
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
        _check_sources(sampler, items, bias)
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
            effective: `SampledSoftmaxLoss.effective` of the step; needed if refreshes depend on it.  NaN, from a step
                without targets, is ignored.
            positives: Targets of the queries, (...): queries whose target is -100 are left out.

        Raises:
            InputError: When an argument is wrong, `effective` is missing, the Refresher is closed, or a background
                refresh failed.
        """
        self._check_open()
        if effective is not None:
            _check_effective(effective)
        elif self._effective is not None:
            raise InputError("refreshes depend on the effective sample size; call step(effective=loss.effective).")
        rows = _rows_that_count(queries, positives)
        self._collect()
        if rows is not None:
            self._keep(rows)
        self._after_steps += 1
        due = self._steps is not None and self._after_steps >= self._steps
        if self._effective is not None and effective is not None:
            due = self._has_fallen(float(effective), self._effective) or due
        if due:
            self.refresh()

    def epoch(self) -> None:
        """Report the end of an epoch.

        Raises:
            InputError: When the Refresher is closed, or a background refresh failed.
        """
        self._check_open()
        self._collect()
        self._after_epochs += 1
        if self._epochs is not None and self._after_epochs >= self._epochs:
            self.refresh()

    def refresh(self) -> None:
        """Refresh now, or start a refresh in the background; does nothing while one is running.

        Raises:
            InputError: When the Refresher is closed, or the sampler cannot be refreshed with the data.
        """
        self._check_open()
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

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("this Refresher is closed; create a new one.")

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

    def _keep(self, flat: Tensor) -> None:
        """Remember some of the queries (b, d)."""
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


def _check_sources(sampler: Any, items: Any, bias: Any) -> None:
    """InputError for what no refresh could read; what a function returns is checked at the refresh."""
    if not isinstance(sampler, Sampler):
        raise InputError(f"sampler is {show(sampler)}; expected one of the samplers of softindex.train.")
    for source, name in ((weight_of(items), "items"), (bias, "bias")):
        if source is not None and not _is_function(source):
            _as_tensor(source, name)


def _rows_that_count(queries: Any, positives: Any) -> Tensor | None:
    """Queries (..., d) as rows (b, d), without those whose target is ignored.

    The rows keep their device and dtype, because only a few of them will be copied.  There may be none.
    """
    if queries is None:
        if positives is not None:
            raise InputError("positives say which queries count, but there are no queries; pass both or neither.")
        return None
    for values, name in ((queries, "queries"), (positives, "positives")):
        if values is not None and not isinstance(values, Tensor):
            raise InputError(f"{name}: got {show(values)}; expected a tensor.")
    if not queries.is_floating_point() or not queries.ndim or not queries.shape[-1]:
        raise InputError(f"queries are {queries.dtype} of shape {tuple(queries.shape)}; expected floats (..., d).")
    rows: Tensor = queries.detach().reshape(-1, queries.shape[-1])
    if positives is None:
        return rows
    integers = not (positives.is_floating_point() or positives.is_complex() or positives.dtype == torch.bool)
    if positives.shape != queries.shape[:-1] or not integers:
        raise InputError(
            f"positives are {positives.dtype} of shape {tuple(positives.shape)}; expected integers of shape "
            f"{tuple(queries.shape[:-1])}, one for each query."
        )
    counted = positives.reshape(-1) != IGNORED
    return rows if bool(counted.all()) else rows[counted.to(rows.device)]


def _check_effective(value: Any) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number and not (isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point()):
        raise InputError(f"effective is {show(value)}; expected one number, such as loss.effective.")


def _copy(items: Source, bias: Source) -> tuple[Tensor | None, Tensor | None]:
    """Copies of the current items and bias on the CPU: training goes on during a refresh."""
    layer, given = _read(items), _read(bias)
    return _detach(weight_of(layer), "items"), _detach(bias_of(layer, given), "bias")


def _read(source: Any) -> Any:
    return source() if _is_function(source) else source


def _is_function(source: Any) -> bool:
    return callable(source) and not isinstance(source, nn.Module)


def _detach(value: Any, name: str) -> Tensor | None:
    return None if value is None else _as_tensor(value, name).detach().to("cpu", copy=True)


def _as_tensor(value: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: got {show(value)}; expected a tensor or an array of numbers.") from error
