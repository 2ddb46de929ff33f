"""SampledTransformerModule: the sampled softmax with correction, for SASRec and BERT4Rec of RecTools."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from softindex.arguments import check_count
from softindex.train.checks import check_choice
from softindex.train.contract import Sampler
from softindex.train.loss import SampledSoftmaxLoss
from softindex.train.midx import MIDXSampler
from softindex.train.plugins.watching import Watch, missing
from softindex.train.refresh import Refresher
from softindex.train.static import UniformSampler
from softindex.train.two_level import TwoLevelSampler

try:
    from rectools.models.nn.transformers.lightning import TransformerLightningModule
except ImportError as error:
    raise missing("RecTools", '"rectools[torch]"', error) from error

__all__ = ["LOSS", "SAMPLERS", "SampledTransformerModule"]

LOSS = "softindex"
"""What to pass as `loss` to a model."""
SAMPLERS: dict[str, Any] = {
    "midx": lambda items: MIDXSampler(items, residual="weighted"),
    "two-level": lambda items: TwoLevelSampler(items),
    "uniform": lambda items: UniformSampler(items),
}
PADDING = 0
"""Number of the token that marks a position without an item."""


class SampledTransformerModule(TransformerLightningModule):
    """Trains a transformer model of RecTools with `SampledSoftmaxLoss` over its items.

    RecTools' own "sampled_softmax" draws negatives uniformly and does not correct for the draws.

        SASRecModel(
            loss="softindex",
            lightning_module_type=SampledTransformerModule,
            lightning_module_kwargs={"sampler": "midx", "draws": 100, "refresh_steps": 200},
        )

    The classes are the items of the catalogue, without padding and mask tokens.  The distance and `logits_t` are
    those of the model.  The validation loss is sampled too; recommendations use all items, as with any loss.

    Args:
        *args: As for `TransformerLightningModule`.
        sampler: "midx" (weighted), "two-level" or "uniform".
        draws: Negatives per position.
        refresh_steps: Steps between refreshes of the sampler.
        **options: As for `TransformerLightningModule`.

    Raises:
        InputError: When an option is wrong.
    """

    def __init__(
        self, *args: Any, sampler: str = "midx", draws: int = 100, refresh_steps: int = 200, **options: Any
    ) -> None:
        check_choice(sampler, "sampler", tuple(SAMPLERS))
        super().__init__(*args, **options)
        self._extra = len(self.item_extra_tokens)
        made: Sampler = SAMPLERS[sampler](self.torch_model.item_model.n_items - self._extra)
        self.sampled_loss = SampledSoftmaxLoss(made, draws=draws, reduction="none")
        self._refresh_steps = check_count(refresh_steps, "refresh_steps")
        self._watch: Watch | None = None

    def on_train_start(self) -> None:
        """Initialise the weights as RecTools does, then refresh the sampler with them."""
        super().on_train_start()
        if self._watch is None:
            sampler, steps = self.sampled_loss.sampler, self._refresh_steps
            self._watch = Watch(Refresher(sampler, self._items, steps=steps, background=False), self.sampled_loss)
        self._watch.refresher.refresh()

    def on_validation_start(self) -> None:
        """Keep the vectors of the items; refresh a sampler without tables, as in the check before training."""
        super().on_validation_start()
        if self.sampled_loss.sampler.tables is None:
            self.sampled_loss.sampler.refresh(self._items())

    def on_train_batch_end(self, *batch: Any, **others: Any) -> None:
        """Report a step to the Refresher."""
        super().on_train_batch_end(*batch, **others)
        if self._watch is not None:
            self._watch.step()

    def _calc_custom_loss(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """RecTools' hook for losses that it does not know."""
        embeddings = self.torch_model.item_model.get_all_embeddings()
        sessions = self.torch_model.encode_sessions(batch, embeddings)
        return self._weighted_loss(sessions, batch["y"], batch["yw"], embeddings)

    def _calc_custom_loss_outputs(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """The same for the validation: the last position of each session."""
        sessions = self.torch_model.encode_sessions(batch, self.item_embs)[:, -1:]
        return {"loss": self._weighted_loss(sessions, batch["y"], batch["yw"], self.item_embs)}

    def _weighted_loss(self, sessions: Tensor, targets: Tensor, weights: Tensor, embeddings: Tensor) -> Tensor:
        """Mean over the positions with a target, each with its weight."""
        queries = self._scaled(self.torch_model.similarity_module.session_tower_forward(sessions)) / self.logits_t
        wanted = targets != PADDING
        classes = torch.where(wanted, targets - self._extra, self.sampled_loss.ignore_index)
        losses = self.sampled_loss(queries, classes, self._tower(embeddings))
        return (losses * weights).sum() / wanted.sum().clamp(min=1)

    def _tower(self, embeddings: Tensor) -> Tensor:
        """Vectors of the items, without those of the extra tokens."""
        return self._scaled(self.torch_model.similarity_module.item_tower_forward(embeddings))[self._extra :]

    def _scaled(self, vectors: Tensor) -> Tensor:
        similarity = self.torch_model.similarity_module
        cosine = getattr(similarity, "distance", None) == type(self).u2i_dist_available[1]
        return functional.normalize(vectors, dim=-1) if cosine else vectors

    @torch.no_grad()
    def _items(self) -> Tensor:
        """The vectors of the items, for the Refresher."""
        return self._tower(self.torch_model.item_model.get_all_embeddings())
