"""SampledTrainer and RefreshCallback: train a causal language model of Hugging Face with a sampled softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from softindex.errors import InputError, show
from softindex.train.loss import SampledSoftmaxLoss
from softindex.train.plugins.watching import Watch, missing
from softindex.train.refresh import Refresher

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise missing("transformers and accelerate", '"transformers[torch]"', error) from error

__all__ = ["RefreshCallback", "SampledTrainer"]

IGNORED = -100
"""Label that does not count."""


class RefreshCallback(TrainerCallback):
    """Refreshes the sampler before training if it has no tables, then whenever the Refresher finds it due.

    Args:
        refresher: Refreshes the sampler; its steps are those of the optimiser.
        loss: The loss of the Trainer, which hands its queries to the Refresher; None if there is none.
    """

    def __init__(self, refresher: Refresher, loss: SampledSoftmaxLoss | None = None) -> None:
        self._watch = Watch(refresher, loss)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Refresh a sampler without tables."""
        self._watch.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Report a step."""
        self._watch.step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Report an epoch."""
        self._watch.epoch()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Install the tables of the last refresh."""
        self._watch.end()


class SampledTrainer(Trainer):
    """A Trainer for causal language models whose training steps never compute the logits of all words.

    A training step runs the model without its head, and `sampled_loss` with the weight and bias of the head, on each
    position and the label of the next one.  Evaluation is that of the Trainer, with the full softmax.

    The logits of the model must be its head applied to its last hidden states; this is checked.  Training is on one
    device: a wrapped model would not synchronise its gradients.

    Args:
        *args: As for `transformers.Trainer`.
        sampled_loss: The loss; its sampler has a class for each row of the head, and its reduction is "mean".
        **options: As for `transformers.Trainer`.

    Raises:
        InputError: When the loss does not fit the model, or the model computes its logits in another way.
    """

    def __init__(self, *args: Any, sampled_loss: SampledSoftmaxLoss, **options: Any) -> None:
        if not isinstance(sampled_loss, SampledSoftmaxLoss) or sampled_loss.reduction != "mean":
            raise InputError(
                f'sampled_loss is {show(sampled_loss)}; expected a SampledSoftmaxLoss that returns "mean".'
            )
        super().__init__(*args, **options)
        # A mean over the labels of a batch: the Trainer divides it by the number of batches per step.
        self.loss_is_scaled_for_ga = False
        self.model_accepts_loss_kwargs = False
        self.sampled_loss = sampled_loss.to(self.args.device)
        _check_head(self.model, sampled_loss.sampler.num_items)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **others: Any
    ) -> Tensor | tuple[Tensor, Any]:
        """Return the sampled loss in training, and what the Trainer returns in evaluation."""
        if not model.training or "labels" not in inputs:
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **others)
        if self.accelerator.unwrap_model(model) is not model:
            raise InputError("SampledTrainer trains on one device; start it without a distributed launcher.")
        others = {name: value for name, value in inputs.items() if name != "labels"}
        outputs = _backbone(model)(**others)
        hidden, labels = outputs.last_hidden_state[:, :-1], inputs["labels"][:, 1:]
        labels = labels.masked_fill(labels == IGNORED, self.sampled_loss.ignore_index)
        loss = self.sampled_loss(hidden, labels, model.get_output_embeddings())
        return (loss, outputs) if return_outputs else loss


def _backbone(model: Any) -> Any:
    """The model without its head."""
    return model.base_model


@torch.no_grad()
def _check_head(model: Any, classes: int) -> None:
    """InputError unless the logits are the head applied to the last hidden states, with this many classes."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(head, nn.Linear) or _backbone(model) is model:
        raise InputError(f"{type(model).__name__} has no linear head over the words; expected a causal language model.")
    if len(head.weight) != classes:
        raise InputError(f"the head has {len(head.weight)} rows but the sampler {classes} classes; make them the same.")
    training, words = model.training, torch.arange(min(8, classes), device=head.weight.device)[None]
    model.eval()
    logits, states = model(input_ids=words).logits, _backbone(model)(input_ids=words).last_hidden_state
    model.train(training)
    if (logits - head(states)).abs().max() > 1e-3 * logits.abs().max():
        raise InputError(
            f"the logits of {type(model).__name__} are not its head applied to the last hidden states; "
            "a sampled softmax of the head would train another model."
        )
