"""Watch: reports the steps of another library's training loop to a Refresher."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from softindex.errors import InputError, MissingDependencyError, show
from softindex.train.loss import SampledSoftmaxLoss
from softindex.train.refresh import Refresher

__all__ = ["LightningHooks", "Watch", "missing"]


def missing(library: str, package: str, error: ImportError) -> MissingDependencyError:
    """The error of an adapter whose library is not installed.

    Args:
        library: Name of the library.
        package: What to install.
        error: What the import raised; a library may be installed and still fail to import.
    """
    return MissingDependencyError(f"this plug-in needs {library} ({error}); run pip install {package}.")


class Watch:
    """Reports to a Refresher, once per step, what a loss was called with.

    Args:
        refresher: Refreshes the sampler.
        loss: The loss whose queries, targets and effective sample size are reported; None reports only the steps.

    Raises:
        InputError: When an argument has the wrong type, or the loss draws from another sampler.
    """

    def __init__(self, refresher: Refresher, loss: SampledSoftmaxLoss | None = None) -> None:
        if not isinstance(refresher, Refresher):
            raise InputError(f"refresher is {show(refresher)}; expected a softindex.train.Refresher.")
        if loss is not None and not isinstance(loss, SampledSoftmaxLoss):
            raise InputError(f"loss is {show(loss)}; expected a softindex.train.SampledSoftmaxLoss.")
        if loss is not None and loss.sampler is not refresher.sampler:
            raise InputError("the loss draws from another sampler than the Refresher's; use the same one for both.")
        self.refresher = refresher
        self._last: dict[str, Any] = {}
        self._ignored = None if loss is None else loss.ignore_index
        if loss is not None:
            loss.register_forward_hook(self._note, with_kwargs=True)

    def begin(self) -> None:
        """Refresh now if the sampler has no tables: the first step needs them."""
        if self.refresher.sampler.tables is None:
            self.refresher.refresh()
            self.refresher.wait()

    def step(self) -> None:
        """Report a step, with the last call of the loss since the previous step."""
        last, self._last = self._last, {}
        self.refresher.step(**last)

    def epoch(self) -> None:
        """Report the end of an epoch."""
        self.refresher.epoch()

    def end(self) -> None:
        """Install the tables of a refresh that is still running."""
        self.refresher.wait()

    def _note(self, loss: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], value: Tensor) -> None:
        """Forward hook of the loss; calls in evaluation mode do not count."""
        if not loss.training:
            return
        queries, positives = (*args, *(kwargs[name] for name in ("queries", "positives") if name in kwargs))[:2]
        self._last = {"queries": queries.detach(), "effective": getattr(loss, "effective", None)}
        # The Refresher leaves out targets of -100 only, and takes one target per query.
        if positives.shape == queries.shape[:-1]:
            self._last["positives"] = positives.masked_fill(positives == self._ignored, -100)


class LightningHooks:
    """What a callback of Lightning does, under either name of the library: the two packages do not mix.

    Args:
        refresher: Refreshes the sampler.
        loss: The loss of the LightningModule, which hands its queries to the Refresher; None if there is none.
    """

    def __init__(self, refresher: Refresher, loss: SampledSoftmaxLoss | None = None) -> None:
        super().__init__()
        self._watch = Watch(refresher, loss)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refresh a sampler without tables."""
        self._watch.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any, **others: Any) -> None:
        """Report a step."""
        self._watch.step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report an epoch."""
        self._watch.epoch()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Install the tables of the last refresh."""
        self._watch.end()
