"""How good a sampler is for given queries: its distance from the softmax, and the error of the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softindex.arguments import check_count, check_flag
from softindex.errors import InputError, show
from softindex.progress import reporting
from softindex.train.checks import (
    bias_of,
    check_bias,
    check_choice,
    check_dim,
    check_items,
    check_range,
    flatten_queries,
)
from softindex.train.contract import Negatives, Sampler
from softindex.train.drawing import draw
from softindex.train.loss import CORRECTIONS, Correction, sampled_cross_entropy

__all__ = ["Diagnosis", "diagnose"]

BLOCK = 1 << 23
"""Scores in memory at once."""
DRAWN = 1 << 20
"""Draws in memory at once."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Measurements of a sampler, as means over the queries; print it for a table."""

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
    progress: bool = False,
) -> Diagnosis:
    """Measure how far a sampler is from the softmax, and the error of the gradient of its sampled loss.

    This takes about as long as eight full softmaxes of the queries, for a few passes in float64 over b x num_items
    logits, plus `log_q` of every class and b x draws x repeats draws, which take longer if the sampler is expensive.
    A few hundred queries suffice.

    Args:
        sampler: A refreshed sampler.
        queries: Query vectors, (..., d), other than those that the sampler was refreshed with.
        items: Class vectors, (num_items, d), or the layer that has them as its weight.
        bias: Numbers added to the logits, (num_items,); None uses the bias of the layer, if it has one.
        positives: Targets, (...); None draws them from the softmax.  Queries whose target is -100 are left out.
        draws: Draws per query of the sampled loss.
        repeats: Sets of draws over which the gradient is averaged.
        correction: Which logits are corrected by log q; see `SampledSoftmaxLoss`.
        generator: Source of randomness; None uses torch's global one.
        progress: Show a progress bar on a terminal.

    Returns:
        Distances between the two distributions, and the error of the gradient.

    Raises:
        InputError: When a shape, dtype or class is wrong, or numbers are not finite.
    """
    if not isinstance(sampler, Sampler):
        raise InputError(f"sampler is {show(sampler)}; expected one of the samplers of softindex.train.")
    weight, bias = check_items(items, sampler.num_items), bias_of(items, bias)
    rows, targets = flatten_queries(queries, positives, finite=True)
    check_dim(rows, weight.shape[1])
    check_choice(correction, "correction", CORRECTIONS)
    checked_bias = None if bias is None else check_bias(bias, sampler.num_items)
    if targets is not None:
        check_range(targets, sampler.num_items, "positives")
    work = _Work(
        sampler, weight, checked_bias, check_count(draws, "draws"), check_count(repeats, "repeats"), correction
    )
    step = max(1, BLOCK // sampler.num_items)
    sums = torch.zeros(5, dtype=torch.float64)
    with reporting(check_flag(progress, "progress")) as report, torch.no_grad():
        for begin in range(0, len(rows), step):
            some = slice(begin, begin + step)
            sums += work.measure(rows[some].float(), None if targets is None else targets[some], generator)
            if report is not None:
                report("diagnosing", min(begin + step, len(rows)), len(rows))
    kl, reverse, effective, off_target, square = (sums / len(rows)).tolist()
    return Diagnosis(type(sampler).__name__, len(rows), work.draws, kl, reverse, effective, off_target, square**0.5)


class _Work(NamedTuple):
    """What one block of queries is measured with."""

    sampler: Sampler
    weight: Tensor
    bias: Tensor | None
    draws: int
    repeats: int
    correction: Correction

    def measure(self, rows: Tensor, targets: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Sums over the queries of the three distances and the two errors of the gradient, (5,)."""
        logits = (rows @ self.weight.T).double()
        logits = logits if self.bias is None else logits + self.bias
        if not bool(torch.isfinite(logits.sum())) and not bool(torch.isfinite(logits).all()):
            raise InputError("the products of queries and items overflow float32; scale them down.")
        log_p = torch.log_softmax(logits, 1)
        target = draw(log_p, 1, generator) if targets is None else targets[:, None]
        classes = torch.arange(self.sampler.num_items, device=rows.device)
        distances = _distances(log_p, self.sampler.log_q(rows, classes).double())
        exact = _Gradient(logits, log_p, target)
        log_q = self.sampler.log_q(rows, target) if self.correction == "all" else None
        errors = torch.zeros(2, dtype=torch.float64)
        # A sampler that scores every class does so once for all sets of a call.
        most = max(1, DRAWN // (len(rows) * self.draws)) if self.sampler.independent else 1
        for done in range(0, self.repeats, most):
            sets = min(most, self.repeats - done)
            drawn = self.sampler.sample(rows, sets * self.draws, positives=target[:, 0], generator=generator)
            errors += exact.errors(drawn, sets, self.correction, log_q)
        return torch.cat([distances, errors / self.repeats])


def _distances(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Sums over the queries of KL(p || q), KL(q || p) and the effective share, (3,)."""
    p, q, difference = log_p.exp(), log_q.exp(), log_p - log_q
    ratio = difference.exp()
    if not bool(torch.isfinite(ratio.sum())):
        # Where p or q is zero its terms are zero, whatever the other is.
        kl = torch.where(p > 0, p * difference, 0.0).sum(1)
        reverse = -torch.where(q > 0, q * difference, 0.0).sum(1)
        squares = torch.where(p > 0, p * ratio, 0.0).sum(1)
    else:
        kl, reverse = torch.linalg.vecdot(p, difference), -torch.linalg.vecdot(q, difference)
        squares = torch.linalg.vecdot(p, ratio)
    return torch.stack([kl.sum(), reverse.sum(), (1 / squares).sum()]).cpu()


class _Gradient:
    """The gradient of the full softmax on all logits, compared with that of sets of draws.

    A set touches few classes, so its error is computed on those alone: there are many sets, and far more classes.
    """

    def __init__(self, logits: Tensor, log_p: Tensor, target: Tensor) -> None:
        self._logits, self._log_p, self._target = logits, log_p, target
        on_target = log_p.gather(1, target).exp()
        p = log_p.exp()
        self._squares = torch.linalg.vecdot(p, p)[:, None] - on_target**2 + (on_target - 1) ** 2

    def errors(self, drawn: Negatives, sets: int, correction: Correction, log_q: Tensor | None) -> Tensor:
        """Sums over queries and sets of the error on the target's logit and of the squared error on all logits, (2,).

        drawn: ids (b, sets * draws), one set after the other; log_q: of the targets (b, 1), if it is needed.
        """
        target, ids = self._target.repeat_interleave(sets, 0), self._split(drawn.ids, sets)
        positive = self._logits.gather(1, self._target).repeat_interleave(sets, 0)
        negative = self._split(self._logits.gather(1, drawn.ids), sets)
        of_target = None if log_q is None else log_q.repeat_interleave(sets, 0)
        with torch.inference_mode(False), torch.enable_grad():
            positive, negative = positive.clone().requires_grad_(), negative.clone().requires_grad_()
            losses, _ = sampled_cross_entropy(
                positive,
                negative,
                target,
                Negatives(ids, self._split(drawn.log_q, sets)),
                correction=correction,
                positive_log_q=of_target,
            )
            losses.sum().backward()  # type: ignore[no-untyped-call]
        assert positive.grad is not None
        assert negative.grad is not None
        gradients = torch.cat([positive.grad, negative.grad], 1).double()
        exact = torch.cat(
            [
                self._log_p.gather(1, self._target).repeat_interleave(sets, 0),
                self._split(self._log_p.gather(1, drawn.ids), sets),
            ],
            1,
        ).exp()
        ids = torch.cat([target, ids], 1)
        exact = exact - (ids == target).double()
        # |sampled - exact|^2, where sampled adds the gradients of a class that was drawn several times.
        squared = sets * self._squares.sum() - 2 * (exact * gradients).sum() + (_per_class(ids, gradients) ** 2).sum()
        off_target = torch.where(ids == target, gradients, 0.0).sum() - exact[:, 0].sum()
        return torch.stack([off_target, squared.clamp(min=0.0)]).cpu()

    @staticmethod
    def _split(values: Tensor, sets: int) -> Tensor:
        """Values (b, sets * draws) as (b * sets, draws)."""
        return values.reshape(len(values) * sets, -1)


def _per_class(ids: Tensor, gradients: Tensor) -> Tensor:
    """The sum of the gradients of each different class in a row, (b, m), padded with zeros."""
    ordered, order = ids.sort(1)
    changes = torch.cat([torch.zeros_like(ordered[:, :1]), (ordered[:, 1:] != ordered[:, :-1]).long()], 1)
    return torch.zeros_like(gradients).scatter_add(1, changes.cumsum(1), gradients.gather(1, order))
