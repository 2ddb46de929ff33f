"""Decoder: `generate` of Hugging Face without the product with the output layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from softindex.adaptive.head import Head
from softindex.errors import InputError

__all__ = ["Decoder"]

TEMPERATURE, TOP_K, TOP_P = "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper"
"""Classes of transformers that the options of sampling become; named, as nothing here needs transformers itself."""
TRIED = 8
"""Tokens that a model is tried with."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the loop of `generate` needs of the output layer in a step."""

    keep: int
    """Tokens whose logits it needs, the best; 0 where the head draws the token itself."""
    temperature: float = 1.0
    """Of the draws of the head, like top_p."""
    top_p: float | None = None


class Decoder:
    """Chooses the tokens of `model.generate(..., custom_generate=Decoder(model))` without all logits.

    Greedy decoding returns the tokens that the model returns by itself.  With `top_k`, with or without `top_p`, it
    draws by the same probabilities, and the same tokens for the same seed of torch, up to rounding.  Without `top_k`
    the head draws from the softmax, or its nucleus `top_p`, exactly, with a seed that it takes from torch.  Options
    that need all logits, such as beams and penalties, are refused.

    The loop, the cache, padding and stopping are those of transformers.  It reads its tokens from a tensor of one
    number per word, and gets one: logits of the few tokens that matter, and -inf, which no product has computed.  The
    model itself is not changed: it has its own output layer again when `generate` returns.  Until then other threads
    must not use it.

    Args:
        model: A causal language model of transformers on the CPU, whose logits are its linear head applied to the last
            hidden states.  Its weights are copied in few bits; do not change them afterwards.
        threads: Number of threads; None for all CPUs.

    Raises:
        InputError: When the model computes its logits in another way.
    """

    def __init__(self, model: Any, *, threads: int | None = None) -> None:
        layer = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        if not isinstance(layer, nn.Linear):
            raise InputError(f"{type(model).__name__} has no linear head over the words; expected a causal model.")
        _check_logits(model, layer)
        self.head, self._layer = Head(layer, threads=threads), layer

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **inputs: Any,
    ) -> Any:
        """What `generate` of transformers calls instead of its own decoding method; the result is that of the latter.

        Raises:
            InputError: When an option needs the logits of all words, or the model is not the one the decoder is for.
        """
        layer = model.get_output_embeddings()
        # A layer of the same shape would do, and its tokens would be those of the other model.
        if layer is not self._layer:
            raise InputError("this decoder was made for another model; make one with Decoder(model).")
        plan, left = _plan(logits_processor, generation_config, self.head.out_features)
        kept = type(logits_processor)(left)
        with _replaced(model, layer, _Chosen(self.head, plan)):
            return model._sample(
                input_ids,
                logits_processor=kept,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                **inputs,
            )


class _Chosen(nn.Module):
    """In place of the output layer during one call of `generate`."""

    def __init__(self, head: Head, plan: Plan) -> None:
        super().__init__()
        self.head, self.plan = head, plan

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (b, 1, words) after the last state of (b, length, d): the loop looks at no others."""
        last, plan = hidden[:, -1:], self.plan
        if plan.keep:
            return self.head.logits(last, plan.keep)
        seed = int(torch.randint(2**62, ()))
        drawn = self.head.sample(last, temperature=plan.temperature, top_p=plan.top_p, seed=seed).ids
        logits = last.new_full((*last.shape[:-1], self.head.out_features), -torch.inf)
        # The loop draws from what it gets, and can only draw this one.
        return logits.scatter_(-1, drawn, 0.0)


@contextmanager
def _replaced(model: Any, layer: nn.Module, chosen: nn.Module) -> Iterator[None]:
    model.set_output_embeddings(chosen)
    try:
        yield
    finally:
        model.set_output_embeddings(layer)


def _plan(processors: Sequence[Any], config: Any, words: int) -> tuple[Plan, list[Any]]:
    """What a step needs, and the processors that are left to the loop; InputError for what needs all logits."""
    names = [type(each).__name__ for each in processors]
    allowed = {TEMPERATURE, TOP_K, TOP_P} if config.do_sample else set()
    for name in names:
        if name not in allowed:
            raise _refused(name)
    if (config.num_beams or 1) > 1:
        raise _refused("num_beams")
    if config.return_dict_in_generate and (config.output_scores or config.output_logits):
        raise _refused("output_scores" if config.output_scores else "output_logits")
    if not config.do_sample:
        return Plan(keep=1), []
    values = dict(zip(names, processors, strict=True))
    if TOP_K in values:
        if TOP_P in values and names.index(TOP_P) < names.index(TOP_K):
            raise _refused("top_p before top_k")
        return Plan(keep=min(int(values[TOP_K].top_k), words)), list(processors)
    temperature = float(values[TEMPERATURE].temperature) if TEMPERATURE in values else 1.0
    return Plan(0, temperature, float(values[TOP_P].top_p) if TOP_P in values else None), []


def _refused(what: str) -> InputError:
    return InputError(
        f"{what} needs the logits of all words, which this decoder does not compute; leave it out, or call generate "
        "without custom_generate."
    )


@torch.no_grad()
def _check_logits(model: Any, layer: nn.Linear) -> None:
    """InputError unless the logits of the model are what its output layer returns."""
    found: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _, __, logits: found.append(logits))
    training = model.training
    model.eval()
    try:
        words = torch.arange(min(TRIED, layer.out_features), device=layer.weight.device)[None]
        logits = model(input_ids=words).logits
    finally:
        hook.remove()
        model.train(training)
    if len(found) != 1 or found[0].shape != logits.shape or not torch.allclose(found[0].float(), logits.float()):
        raise InputError(
            f"the logits of {type(model).__name__} are not its head applied to the last hidden states; the tokens of "
            "the head alone would be others."
        )
