"""How good a sampler is for given queries: its distance from the softmax, and the error of the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softindex.arguments import check_count
from softindex.errors import InputError
from softindex.train.checks import check_choice, check_dim, check_items, check_range, check_rows, check_vector
from softindex.train.contract import Negatives, Sampler
from softindex.train.drawing import draw
from softindex.train.loss import CORRECTIONS, Correction, sampled_cross_entropy

__all__ = ["Diagnosis", "diagnose"]

BLOCK = 1 << 23
"""Scores in memory at once."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Means over the queries; print it for a table."""

    sampler: str
    """Class name of the sampler."""
    queries: int
    """Number of queries."""
    draws: int
    """Draws per query."""
    kl: float
    """KL(softmax || q) in nats."""
    kl_reverse: float
    """KL(q || softmax) in nats."""
    effective: float
    """Effective sample size of many draws, as a share of their number: 1 / (sum of p^2 / q); 1 if q is the softmax."""
    gradient_bias: float
    """Mean gradient on the target's logit, minus that of the full softmax."""
    gradient_rmse: float
    """Root mean square distance between the gradients on all logits."""

    def __str__(self) -> str:
        return (
            f"{self.sampler}: {self.queries} queries, {self.draws} draws each\n"
            f"  KL(softmax || q)   {self.kl:.4f}\n"
            f"  KL(q || softmax)   {self.kl_reverse:.4f}\n"
            f"  effective draws    {self.effective:.1%}\n"
            f"  gradient bias      {self.gradient_bias:+.4f} on the target's logit\n"
            f"  gradient RMSE      {self.gradient_rmse:.4f}"
        )


def diagnose(
    sampler: Sampler,
    queries: Any,
    items: Any,
    *,
    bias: Any = None,
    positives: Any = None,
    draws: int = 20,
    repeats: int = 32,
    correction: Correction = "negatives",
    generator: torch.Generator | None = None,
) -> Diagnosis:
    """Compare a sampler with the full softmax.

    The cost: about ten passes over all b x num_items logits in float64, which is several times the full softmax itself,
    plus `log_q` of every class and `repeats` calls of `sample`, which are the larger part for an expensive sampler.  A
    few hundred queries suffice.

    Args:
        sampler: A refreshed sampler.
        queries: Query vectors, (b, d); use others than the sampler was refreshed with.
        items: Class vectors, (num_items, d), or the layer that has them as its weight.
        bias: Numbers added to the logits, (num_items,).
        positives: Targets, (b,); None draws them from the softmax.
        draws: Draws per query of the sampled loss.
        repeats: Sets of draws over which the gradient is averaged.
        correction: Which logits are corrected by log q; see `SampledSoftmaxLoss`.
        generator: Source of randomness; None uses torch's global one.

    Returns:
        Distances between the two distributions, and the error of the gradient.

    Raises:
        InputError: When a shape, dtype or class is wrong, or numbers are not finite.
    """
    rows, weight = check_rows(queries, "queries", finite=True).float(), check_items(items, sampler.num_items)
    check_dim(rows, weight.shape[1])
    n, times = check_count(draws, "draws"), check_count(repeats, "repeats")
    check_choice(correction, "correction", CORRECTIONS)
    checked_bias = None if bias is None else check_vector(bias, sampler.num_items, "bias")
    targets = None if positives is None else _check_positives(positives, len(rows), sampler.num_items)
    step = max(1, BLOCK // sampler.num_items)
    sums = torch.zeros(5, dtype=torch.float64)
    classes = torch.arange(sampler.num_items, device=rows.device)
    for begin in range(0, len(rows), step):
        some = rows[begin : begin + step]
        logits = (some @ weight.T).double()
        logits = logits if checked_bias is None else logits + checked_bias
        log_p = torch.log_softmax(logits, 1)
        target = draw(log_p, 1, generator) if targets is None else targets[begin : begin + step, None]
        sums[:3] += _distances(log_p, sampler.log_q(some, classes).double())
        exact = _Gradient(logits, log_p, target)
        for _ in range(times):
            drawn = sampler.sample(some, n, positives=target[:, 0], generator=generator)
            log_q = sampler.log_q(some, target) if correction == "all" else None
            sums[3:] += exact.errors(drawn, correction, log_q) / times
    kl, reverse, effective, off_target, square = (sums / len(rows)).tolist()
    return Diagnosis(type(sampler).__name__, len(rows), n, kl, reverse, effective, off_target, math.sqrt(square))


def _check_positives(positives: Any, b: int, num_items: int) -> Tensor:
    targets = torch.as_tensor(positives)
    if targets.shape != (b,) or targets.is_floating_point():
        raise InputError(f"positives are {targets.dtype} of shape {tuple(targets.shape)}; expected ({b},) integers.")
    check_range(targets, num_items, "positives")
    return targets


def _distances(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Sums over the queries of KL(p || q), KL(q || p) and the effective share, (3,)."""
    effective = torch.exp(-torch.logsumexp(2 * log_p - log_q, 1))
    return torch.stack([part.sum() for part in (_kl(log_p, log_q), _kl(log_q, log_p), effective)]).cpu()


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    # Where p is zero the term is zero, whatever q is.
    return torch.where(log_p > -math.inf, log_p.exp() * (log_p - log_q), 0.0).sum(1)


class _Gradient:
    """The gradient of the full softmax on all logits, compared with that of sets of draws.

    Sets touch few classes: their errors are computed on these alone, as there are many sets and far more classes.
    """

    def __init__(self, logits: Tensor, log_p: Tensor, target: Tensor) -> None:
        self._logits, self._log_p, self._target = logits, log_p, target
        on_target = log_p.gather(1, target).exp()
        self._squares = (2 * log_p).exp().sum(1, keepdim=True) - on_target**2 + (on_target - 1) ** 2

    def errors(self, drawn: Negatives, correction: Correction, log_q: Tensor | None) -> Tensor:
        """Sums over the queries of the error on the target's logit and of the squared error on all logits, (2,)."""
        with torch.inference_mode(False), torch.enable_grad():
            positive = self._logits.gather(1, self._target).clone().requires_grad_()
            negative = self._logits.gather(1, drawn.ids).clone().requires_grad_()
            losses, _ = sampled_cross_entropy(
                positive, negative, self._target, drawn, correction=correction, positive_log_q=log_q
            )
            losses.sum().backward()  # type: ignore[no-untyped-call]
        assert positive.grad is not None
        assert negative.grad is not None
        ids = torch.cat([self._target, drawn.ids], 1)
        gradients = torch.cat([positive.grad, negative.grad], 1).double()
        exact = self._log_p.gather(1, ids).exp() - (ids == self._target).double()
        # |sampled - exact|^2, where sampled adds the gradients of a class that was drawn several times.
        squared = self._squares.sum() - 2 * (exact * gradients).sum() + (_per_class(ids, gradients) ** 2).sum()
        off_target = torch.where(ids == self._target, gradients, 0.0).sum() - exact[:, 0].sum()
        return torch.stack([off_target, squared.clamp(min=0.0)]).cpu()


def _per_class(ids: Tensor, gradients: Tensor) -> Tensor:
    """The sum of the gradients of each class in a row, (b, m); zero where a class was counted before."""
    ordered, order = ids.sort(1)
    changes = torch.cat([torch.zeros_like(ordered[:, :1]), (ordered[:, 1:] != ordered[:, :-1]).long()], 1)
    return torch.zeros_like(gradients).scatter_add(1, changes.cumsum(1), gradients.gather(1, order))
