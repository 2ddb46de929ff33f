"""RefreshCallback: refreshes a sampler while a Trainer of Lightning trains."""

from __future__ import annotations

from softindex.train.plugins.watching import LightningHooks, missing

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise missing("lightning", "lightning", error) from error

__all__ = ["RefreshCallback"]


class RefreshCallback(LightningHooks, Callback):
    """Refreshes the sampler before training if it has no tables, then whenever the Refresher finds it due.

    Each batch counts as a step, even if gradients are accumulated over several batches.  For `pytorch_lightning`
    import it from `softindex.train.plugins.pytorch_lightning`: the two packages do not mix.

    Args:
        refresher: Refreshes the sampler.
        loss: The loss of the LightningModule, which hands its queries to the Refresher; None if there is none.
    """
