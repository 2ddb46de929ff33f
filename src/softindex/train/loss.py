"""SampledSoftmaxLoss: cross-entropy over millions of classes from a few draws, each corrected by its log q."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_count, check_flag
from softindex.errors import InputError, show
from softindex.train.checks import IGNORED, bias_of, check_choice, check_range, weight_of
from softindex.train.contract import Negatives, Sampler

__all__ = ["CORRECTIONS", "Correction", "SampledSoftmaxLoss", "sampled_cross_entropy"]

Correction = Literal["negatives", "weighted", "all"]
CORRECTIONS: tuple[str, ...] = get_args(Correction)
Reduction = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)


class SampledSoftmaxLoss(nn.Module):
    """Cross-entropy of the softmax, with the sum over all classes estimated from the draws of a sampler.

    The loss also draws in evaluation mode: measure a model with the full softmax.  After a call, `effective` is the
    effective sample size as a share of the draws, which `Refresher.step` takes; NaN if no target counted.

    Args:
        sampler: Sampler of negatives.
        draws: Draws n per query, or per batch if shared.
        correction: Which logits are corrected by log q.

            - "negatives": the target keeps its logit, each draw gets its logit minus
              log(n q), and draws that are targets of the query are dropped.  The draws then estimate the sum over the
              other classes without bias.
            - "weighted": as in "Correcting the LogQ Correction" (Khrylchenko et al., 2025): the loss of the target
              against the draws alone, times the estimated probability 1 - p of the other classes, which gets no
              gradient.  Its gradient is that of "negatives", and its value is not the cross-entropy.  One target per
              query.
            - "all": every logit, including the target's, minus log q; nothing is dropped.  Much published
              code does this.  It is more biased, and its value does not estimate the cross-entropy.
        shared: Use one set of draws for the entire batch, which makes the logits one matrix product.
        ignore_index: Targets with this value do not count.
        reduction: "mean", "sum" or "none".
        sparse: Give the items sparse gradients, for torch.optim.SparseAdam and similar, so that no step touches all
            rows.  The items must then be a parameter, not computed from one.  The gradient of a bias is dense and
            needs another optimiser.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        draws: int = 100,
        correction: Correction = "negatives",
        shared: bool = False,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        sparse: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(sampler, Sampler):
            raise InputError(f"sampler is {show(sampler)}; expected one of the samplers of softindex.train.")
        check_choice(correction, "correction", CORRECTIONS)
        check_choice(reduction, "reduction", REDUCTIONS)
        if not isinstance(ignore_index, int) or isinstance(ignore_index, bool):
            raise InputError(f"ignore_index is {show(ignore_index)}; expected an integer.")
        self.sampler = sampler
        self.draws = check_count(draws, "draws")
        self.shared, self.sparse = check_flag(shared, "shared"), check_flag(sparse, "sparse")
        self.correction, self.ignore_index, self.reduction = correction, ignore_index, reduction
        self.effective: Tensor | None = None
        """Effective sample size of the last call as a share of its draws: (sum w)^2 / (n sum w^2) of the draws'
        weights w, mean over the queries, from 1 / n to 1.  One set of draws knows nothing of the classes it missed, so
        with few draws this is larger than `Diagnosis.effective`, which covers the full distribution.  None before the
        first call, and NaN after a call in which no target counted: nothing was drawn.
        """

    def extra_repr(self) -> str:
        """The text between the brackets of repr(loss)."""
        return f"draws={self.draws}, correction={self.correction}, shared={self.shared}, sparse={self.sparse}"

    def forward(
        self,
        queries: Tensor,
        positives: Tensor,
        items: Any,
        bias: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss of queries with given targets.

        Several targets of a query have equal weight: the loss is the cross-entropy against the uniform distribution
        over them.

        Args:
            queries: Query vectors, (..., d).
            positives: Targets, (...), or (..., p) for several per query.  Targets equal to `ignore_index` do not
                count, nor do queries without any other target.
            items: Class vectors, (num_items, d), or the layer that has them as its weight.
            bias: Numbers added to the logits, (num_items,); None uses the bias of the layer, if it has one.
            generator: Source of randomness; None uses torch's global one.

        Returns:
            A scalar, or (...) if `reduction` is "none"; float64 for float64 input, float32 otherwise.

        Raises:
            InputError: When a shape, dtype, device or class is wrong.
        """
        weight, bias = weight_of(items), bias_of(items, bias)
        self._check(queries, positives, weight, bias)
        lead = queries.shape[:-1]
        rows = queries.reshape(-1, queries.shape[-1])
        targets = positives.long().reshape(len(rows), 1 if positives.shape == lead else positives.shape[-1])
        real = targets != self.ignore_index
        check_range(targets[real], self.sampler.num_items, "positives")
        kept = real.any(1)
        if not bool(kept.all()):
            rows, targets, real = rows[kept], targets[kept], real[kept]
        if not len(rows):
            return self._nothing(queries, weight, bias, lead)
        layer = _Layer(weight, bias, self.sparse, getattr(items, "padding_idx", None))
        losses = self._losses(rows, _fill(targets, real), real, layer, generator)
        if self.reduction == "none":
            every = torch.zeros(kept.shape, dtype=losses.dtype, device=losses.device)
            return every.index_put((kept.nonzero()[:, 0],), losses).view(lead)
        return losses.sum() if self.reduction == "sum" else losses.mean()

    def _nothing(self, queries: Tensor, weight: Tensor, bias: Tensor | None, lead: torch.Size) -> Tensor:
        """The loss where no target counts: zero, with zero gradients, from no draws."""
        zero = queries.flatten()[:0].sum() + weight[:0].sum()
        zero = zero if bias is None else zero + bias[:0].sum()
        zero = zero if zero.dtype == torch.float64 else zero.float()
        self.effective = torch.full_like(zero, math.nan)
        return zero.expand(lead).clone() if self.reduction == "none" else zero

    def _losses(
        self, rows: Tensor, targets: Tensor, real: Tensor, layer: _Layer, generator: torch.Generator | None
    ) -> Tensor:
        one_each = targets[:, 0] if targets.shape[1] == 1 else _choose(targets, real, generator)
        negatives = self.sampler.sample(rows, self.draws, shared=self.shared, positives=one_each, generator=generator)
        if self.shared:
            positive_logits = layer.logits(rows, targets)
            negative_logits = layer.logits(rows, negatives.ids)
        else:
            # Read the items once for both: one gradient, and one pass over it.
            logits = layer.logits(rows, torch.cat([targets, negatives.ids], 1))
            positive_logits, negative_logits = logits[:, : targets.shape[1]], logits[:, targets.shape[1] :]
        log_q = self._target_log_q(rows, targets) if self.correction == "all" else None
        losses, effective = sampled_cross_entropy(
            positive_logits, negative_logits, targets, negatives, correction=self.correction, positive_log_q=log_q
        )
        self.effective = effective.mean()
        return losses

    def _target_log_q(self, rows: Tensor, targets: Tensor) -> Tensor:
        if self.shared:
            return self.sampler.log_q(rows, targets.flatten(), shared=True).view(targets.shape)
        return self.sampler.log_q(rows, targets)

    def _check(self, queries: Tensor, positives: Tensor, weight: Any, bias: Tensor | None) -> None:
        for name, tensor in (("queries", queries), ("positives", positives), ("items", weight)):
            if not isinstance(tensor, Tensor):
                raise InputError(f"{name} are {show(tensor)}; expected a tensor.")
        _check_shapes(queries, positives, weight, bias, self.sampler.num_items)
        for name, other in (("positives", positives), ("items", weight), ("bias", bias)):
            if other is not None and other.device != queries.device:
                raise InputError(
                    f"the queries are on {queries.device} but the {name} on {other.device}; move one with .to()."
                )


def _check_shapes(queries: Tensor, positives: Tensor, weight: Tensor, bias: Any, num_items: int) -> None:
    if queries.ndim < 2 or not queries.is_floating_point():
        raise InputError(
            f"queries have shape {tuple(queries.shape)} and dtype {queries.dtype}; expected (b, d) floats."
        )
    if weight.shape != (num_items, queries.shape[-1]):
        raise InputError(
            f"items have shape {tuple(weight.shape)}; expected {(num_items, queries.shape[-1])}: "
            f"{num_items} classes of the sampler, {queries.shape[-1]} dimensions of the queries."
        )
    if positives.is_floating_point() or positives.dtype == torch.bool:
        raise InputError(f"positives are {positives.dtype}; expected integers.")
    lead = queries.shape[:-1]
    if positives.shape != lead and positives.shape[:-1] != lead:
        raise InputError(
            f"positives have shape {tuple(positives.shape)}; expected {tuple(lead)}, "
            "or one more axis for several targets per query."
        )
    if bias is not None and (not isinstance(bias, Tensor) or bias.shape != (num_items,)):
        given = tuple(bias.shape) if isinstance(bias, Tensor) else show(bias)
        raise InputError(f"bias has shape {given}; expected a tensor ({num_items},).")


class _Layer(NamedTuple):
    """The output layer: weight, bias, and how its gradient is formed."""

    weight: Tensor
    bias: Tensor | None
    sparse: bool
    padding: int | None

    def logits(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Logits (b, j) of classes (b, j), or (j,) for all queries; float64 for float64 input, float32 otherwise."""
        vectors = functional.embedding(ids, self.weight, padding_idx=self.padding, sparse=self.sparse)
        common = torch.promote_types(vectors.dtype, rows.dtype)
        vectors, wide = vectors.to(common), rows.to(common)
        logits = wide @ vectors.T if ids.ndim == 1 else torch.matmul(vectors, wide[:, :, None])[:, :, 0]
        logits = _widen(logits)
        return logits if self.bias is None else logits + self.bias[ids].to(logits.dtype)


def sampled_cross_entropy(
    positive_logits: Tensor,
    negative_logits: Tensor,
    positives: Tensor,
    negatives: Negatives,
    *,
    correction: Correction = "negatives",
    positive_log_q: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the losses computed from logits of any similarity.

    Args:
        positive_logits: Logits of the targets, (..., p).
        negative_logits: Logits of the draws, (..., n).
        positives: Targets, (..., p); equal targets of a query count once, and targets of -100 do not count.
        negatives: The draws, with ids (..., n) or (n,).
        correction: Which logits are corrected by log q; see `SampledSoftmaxLoss`.
        positive_log_q: log q of the targets, (..., p); needed for "all".

    Returns:
        The losses (...), and the effective sample size as a share of the draws (...).  Both are 0 for a query without a
        target that counts.

    Raises:
        InputError: When shapes do not agree, or `positive_log_q` is missing.
    """
    check_choice(correction, "correction", CORRECTIONS)
    if correction == "all" and positive_log_q is None:
        raise InputError('correction="all" needs the log q of the targets; pass positive_log_q=sampler.log_q(...).')
    if positives.ndim > 2 or (positives.ndim == 2 and bool((positives == IGNORED).any())):
        return _rows_that_count(
            positive_logits, negative_logits, positives, negatives, correction=correction, positive_log_q=positive_log_q
        )
    _check_logits(positive_logits, negative_logits, positives, negatives)
    n = negative_logits.shape[1]
    corrected = _widen(negative_logits) - negatives.log_q
    targets = _widen(positive_logits)
    if correction == "all" and positive_log_q is not None:
        targets = targets - positive_log_q
    else:
        ids = negatives.ids.expand(len(positives), -1)
        hits = (ids[:, :, None] == positives[:, None, :]).any(2) if positives.shape[1] > 1 else ids == positives
        corrected = (corrected - math.log(n)).masked_fill(hits, -math.inf)
    if correction == "weighted":
        return _weighted(targets, corrected), _effective(corrected.detach())
    repeated = _repeats(positives)
    log_z = torch.logsumexp(torch.cat([targets.masked_fill(repeated, -math.inf), corrected], 1), 1)
    mean_target = targets.masked_fill(repeated, 0.0).sum(1) / (~repeated).sum(1)
    return log_z - mean_target, _effective(corrected.detach())


def _weighted(targets: Tensor, corrected: Tensor) -> Tensor:
    """(1 - p) (log S - target) for targets (b, 1) and corrected draws (b, n), S the sum over the other classes.

    p = exp(target) / (exp(target) + S) counts as a constant.
    """
    if targets.shape[1] > 1:
        raise InputError(f'correction="weighted" needs one target per query but there are {targets.shape[1]}.')
    log_sum, target = torch.logsumexp(corrected, 1), targets[:, 0]
    # Where all draws were dropped nothing is left to compare with: no loss, and no gradient.
    compared = torch.isfinite(log_sum)
    difference = torch.where(compared, log_sum, target) - target
    return torch.where(compared, torch.sigmoid(difference).detach() * difference, 0.0 * difference)


def _rows_that_count(
    positive_logits: Tensor,
    negative_logits: Tensor,
    positives: Tensor,
    negatives: Negatives,
    *,
    correction: Correction,
    positive_log_q: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The losses (...) of queries with any leading axes, zero where no target counts."""
    lead = positives.shape[:-1]
    if positive_logits.shape != positives.shape or negative_logits.shape[:-1] != lead:
        raise InputError(
            f"positive_logits have shape {tuple(positive_logits.shape)}, negative_logits "
            f"{tuple(negative_logits.shape)} and positives {tuple(positives.shape)}; expected the same leading axes."
        )
    real = (positives != IGNORED).flatten(0, -2)
    kept = real.any(1)
    real, first = real[kept], real[kept].int().argmax(1, keepdim=True)

    def some(values: Tensor) -> Tensor:
        return values if values.ndim == 1 else values.flatten(0, -2)[kept]

    def filled(values: Tensor) -> Tensor:
        return torch.where(real, some(values), some(values).gather(1, first))

    losses, effective = sampled_cross_entropy(
        filled(positive_logits),
        some(negative_logits),
        filled(positives),
        Negatives(some(negatives.ids), some(negatives.log_q)),
        correction=correction,
        positive_log_q=None if positive_log_q is None else filled(positive_log_q),
    )
    where = (kept.nonzero()[:, 0],)
    every = torch.zeros(kept.shape, dtype=losses.dtype, device=losses.device)
    return every.index_put(where, losses).view(lead), every.index_put(where, effective.to(every)).view(lead)


def _check_logits(positive: Tensor, negative: Tensor, positives: Tensor, negatives: Negatives) -> None:
    for name, tensor in (("positive_logits", positive), ("negative_logits", negative), ("positives", positives)):
        if tensor.ndim != 2:
            raise InputError(f"{name} have shape {tuple(tensor.shape)}; expected two axes, one row per query.")
    b, n = negative.shape
    if positive.shape != positives.shape or len(positive) != b:
        raise InputError(
            f"positive_logits have shape {tuple(positive.shape)} and positives {tuple(positives.shape)}; "
            f"expected ({b}, p) for both, the same number of rows as negative_logits."
        )
    if negatives.ids.shape not in ((b, n), (n,)) or negatives.log_q.shape != negatives.ids.shape:
        raise InputError(
            f"the ids of negatives have shape {tuple(negatives.ids.shape)}; expected {(b, n)}, like the logits, "
            f"or ({n},)."
        )


def _widen(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _choose(targets: Tensor, real: Tensor, generator: torch.Generator | None) -> Tensor:
    """One of the real targets (b, p) of each row, all equally likely."""
    keys = torch.rand(real.shape, generator=generator, device=real.device).masked_fill(~real, -1.0)
    return targets.gather(1, keys.argmax(1, keepdim=True))[:, 0]


def _effective(log_weights: Tensor) -> Tensor:
    """(sum w)^2 / (n sum w^2) of log-weights (b, n); 0 where all draws were dropped."""
    ratio = 2 * torch.logsumexp(log_weights, 1) - torch.logsumexp(2 * log_weights, 1) - math.log(log_weights.shape[1])
    return torch.exp(ratio).nan_to_num(0.0)


def _fill(targets: Tensor, real: Tensor) -> Tensor:
    """Targets (b, p) in which a real target of the row replaces the ignored ones."""
    return torch.where(real, targets, targets.gather(1, real.int().argmax(1, keepdim=True)))


def _repeats(positives: Tensor) -> Tensor:
    """Which targets (b, p) already occurred in their row."""
    if positives.shape[1] == 1:
        return torch.zeros_like(positives, dtype=torch.bool)
    same = positives[:, :, None] == positives[:, None, :]
    return torch.tril(same, diagonal=-1).any(2)
