"""How good a sampler is for given queries: its distance from the softmax, and what that does to the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softindex.arguments import check_count
from softindex.errors import InputError
from softindex.train.contract import Negatives, Sampler, check_dim, check_items, check_range, check_rows, check_vector
from softindex.train.drawing import draw
from softindex.train.loss import sampled_cross_entropy

__all__ = ["Diagnosis", "diagnose"]

BLOCK = 1 << 23


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Means over the queries; print it for a table."""

    sampler: str
    queries: int
    draws: int
    kl: float
    """KL(softmax || q): what the law of the draws lacks, in nats."""
    kl_reverse: float
    """KL(q || softmax)."""
    effective: float
    """The part of the draws that counts, of many: 1 / (sum of p^2 / q); 1 where q is the softmax."""
    gradient_bias: float
    """Mean of the gradient on the target's logit less that of the full softmax."""
    gradient_rmse: float
    """Root mean square of the distance between the gradients on all logits."""

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
    form: str = "B",
    generator: torch.Generator | None = None,
) -> Diagnosis:
    """Compare a sampler with the full softmax of items (n, d) on queries (b, d); costs as much as the full softmax.

    positives (b,): the targets; drawn from the softmax when None.  The gradient is that of the sampled loss in each of
    `repeats` sets of draws.
    """
    rows, weight = check_rows(queries, "queries", finite=True).float(), check_items(items, sampler.num_items)
    check_dim(rows, weight.shape[1])
    m, times = check_count(draws, "draws"), check_count(repeats, "repeats")
    added = None if bias is None else check_vector(bias, sampler.num_items, "bias")
    targets = None if positives is None else torch.as_tensor(positives)
    if targets is not None:
        if targets.shape != (len(rows),) or targets.is_floating_point():
            raise InputError(
                f"positives are {targets.dtype} of shape {tuple(targets.shape)}; expected ({len(rows)},) integers."
            )
        check_range(targets, sampler.num_items, "positives")
    step = max(1, BLOCK // sampler.num_items)
    sums = torch.zeros(5, dtype=torch.float64)
    every = torch.arange(sampler.num_items, device=rows.device)
    for begin in range(0, len(rows), step):
        some = rows[begin : begin + step]
        logits = (some @ weight.T).double()
        logits = logits if added is None else logits + added
        log_p = torch.log_softmax(logits, 1)
        log_q = sampler.log_q(some, every).double()
        right = draw(log_p, 1, generator) if targets is None else targets[begin : begin + step, None]
        sums[0] += _divergence(log_p, log_q).sum().cpu()
        sums[1] += _divergence(log_q, log_p).sum().cpu()
        sums[2] += torch.exp(-torch.logsumexp(2 * log_p - log_q, 1)).sum().cpu()
        for _ in range(times):
            drawn = sampler.sample(some, m, positives=right[:, 0], generator=generator)
            off, square = _gradient_errors(sampler, some, logits, log_p, right, drawn, form)
            sums[3] += off.sum().cpu() / times
            sums[4] += square.sum().cpu() / times
    kl, reverse, effective, off_target, square = (sums / len(rows)).tolist()
    name = type(sampler).__name__
    return Diagnosis(name, len(rows), m, kl, reverse, effective, off_target, math.sqrt(square))


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    # Where p is zero nothing is lost, whatever q is.
    return torch.where(log_p > -math.inf, log_p.exp() * (log_p - log_q), 0.0).sum(1)


def _gradient_errors(
    sampler: Sampler, queries: Tensor, logits: Tensor, log_p: Tensor, right: Tensor, drawn: Negatives, form: str
) -> tuple[Tensor, Tensor]:
    """The gradient on the target's logit less the true one, and the squared distance of the whole gradient, (b,)."""
    log_q = sampler.log_q(queries, right) if form == "A" else None
    with torch.inference_mode(False), torch.enable_grad():
        positive = logits.gather(1, right).clone().requires_grad_()
        negative = logits.gather(1, drawn.ids).clone().requires_grad_()
        losses, _ = sampled_cross_entropy(positive, negative, right, drawn, form=form, positive_log_q=log_q)
        losses.sum().backward()  # type: ignore[no-untyped-call]
    assert positive.grad is not None
    assert negative.grad is not None
    true = log_p.exp().scatter_add(1, right, -torch.ones_like(right, dtype=torch.float64))
    found = torch.zeros_like(true).scatter_add(1, right, positive.grad.double())
    found = found.scatter_add(1, drawn.ids, negative.grad.double())
    error = found - true
    return error.gather(1, right)[:, 0], (error**2).sum(1)
