"""Head: the output layer of a language model at inference, without a product with all of its rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from softindex.adaptive.softmax import AdaptiveSoftmax, Guarantee
from softindex.arguments import check_count
from softindex.errors import InputError, show
from softindex.temperatures import Temperature

__all__ = ["Head", "Tokens"]


class Tokens(NamedTuple):
    """Token numbers and their log-probabilities, (..., k) each, most probable first where they are the best."""

    ids: Tensor
    """int64; -1 fills up the rows of nuclei that are smaller than the largest."""
    log_prob: Tensor
    """float64; -inf where the id is -1."""


class Head(nn.Module):
    """What `torch.nn.Linear` computes over a vocabulary, as far as decoding needs it.

    `head.top_k`, `head.nucleus` and `head.sample` return tokens with their log-probabilities; the logits of all tokens
    are never computed.  `head(hidden)` is for code that insists on logits, such as `generate` of Hugging Face: a tensor
    with the logits of the `keep` best tokens, and -inf for all others.  Greedy decoding, and sampling among the `keep`
    best, are then what they are with the layer itself.

    The weights are copied in few bits when the head is made.  It has no parameters, and gradients stop here.

    Args:
        layer: The output layer, on the CPU: float32, float16 or bfloat16, with or without a bias.
        keep: Tokens that `head(hidden)` gives logits for.
        guarantee: As for `AdaptiveSoftmax.top_k`; `nucleus` and `sample` are always proven.
        epsilon: Relative error allowed in probabilities; tokens, and their order, are right whatever it is.
        confidence: Probability with which "pac" and "calibrated" hold.
        threads: Number of threads; None for all CPUs.
    """

    def __init__(
        self,
        layer: nn.Linear,
        *,
        keep: int = 1,
        guarantee: Guarantee = "deterministic",
        epsilon: float = 0.3,
        confidence: float = 0.95,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(layer, nn.Linear):
            raise InputError(f"layer is {show(layer)}; expected a torch.nn.Linear.")
        bias = None if layer.bias is None else layer.bias.detach().float().cpu().numpy()
        self.softmax = AdaptiveSoftmax(_array(layer.weight), bias)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.keep = check_count(keep, "keep", layer.out_features)
        self._best: dict[str, Any] = {
            "guarantee": guarantee,
            "epsilon": epsilon,
            "confidence": confidence,
            "threads": threads,
        }
        self.threads = threads

    def extra_repr(self) -> str:
        """The text between the brackets of repr(head)."""
        return f"in_features={self.in_features}, out_features={self.out_features}, keep={self.keep}"

    def top_k(self, hidden: Tensor, k: int = 1, *, temperature: Temperature = 1.0) -> Tokens:
        """The k most probable tokens of each state (..., in_features)."""
        found = self.softmax.top_k(_queries(hidden), k, temperature=temperature, **self._best)
        return _tokens(hidden, found.ids, found.log_prob)

    def nucleus(self, hidden: Tensor, top_p: float, *, temperature: Temperature = 1.0) -> Tokens:
        """The fewest most probable tokens that together have probability top_p."""
        found = self.softmax.nucleus(_queries(hidden), top_p, temperature=temperature, threads=self.threads)
        return _tokens(hidden, found.ids, found.log_prob)

    def sample(
        self,
        hidden: Tensor,
        n: int = 1,
        *,
        temperature: Temperature = 1.0,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Tokens:
        """n draws from the softmax itself, or from its nucleus; seed as for `AdaptiveSoftmax.sample`.

        Each draw of a loop needs a seed of its own, or None: equal states and seeds give equal draws.
        """
        # Z is not needed to draw; its error is that of log_prob alone.
        epsilon = None if top_p is not None else 0.3
        found = self.softmax.sample(
            _queries(hidden), n, temperature=temperature, top_p=top_p, epsilon=epsilon, seed=seed, threads=self.threads
        )
        return _tokens(hidden, found.ids, found.log_prob)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (..., out_features) of the `keep` best tokens of each state, -inf for all others."""
        return self.logits(hidden, self.keep)

    def logits(self, hidden: Tensor, keep: int) -> Tensor:
        """The same for any number of tokens."""
        queries = _queries(hidden)
        found = self.softmax.top_k(queries, keep, temperature=1.0, **self._best)
        logits = hidden.new_full((len(queries), self.out_features), -torch.inf)
        logits.scatter_(1, torch.from_numpy(found.ids), torch.from_numpy(np.asarray(found.scores)).to(logits.dtype))
        return logits.view(*hidden.shape[:-1], self.out_features)


def _array(weight: Tensor) -> NDArray[Any]:
    """The weights as NumPy has them: bfloat16 as uint16, without a copy where they are on the CPU."""
    given = weight.detach().cpu()
    return given.contiguous().view(torch.uint16).numpy() if given.dtype == torch.bfloat16 else given.numpy()


def _queries(hidden: Tensor) -> NDArray[np.float32]:
    """States (..., d) as (b, d)."""
    if not isinstance(hidden, Tensor) or not hidden.is_floating_point():
        raise InputError(f"hidden is {show(hidden)}; expected a tensor of floating-point numbers.")
    if hidden.ndim == 0:
        raise InputError("hidden is a single number; expected states with the numbers on the last axis.")
    return hidden.detach().float().cpu().reshape(-1, hidden.shape[-1]).numpy()


def _tokens(hidden: Tensor, ids: Any, log_prob: Any) -> Tokens:
    shape = (*hidden.shape[:-1], ids.shape[-1])
    return Tokens(*(torch.from_numpy(np.asarray(part)).view(shape) for part in (ids, log_prob)))
