"""SampledSoftmaxLoss: cross-entropy over millions of classes from a few draws, each corrected by its log q."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.arguments import check_count, check_flag
from softindex.errors import InputError, MethodError, show
from softindex.train.contract import Negatives, Sampler, check_range, weight_of

__all__ = ["FORMS", "SampledSoftmaxLoss", "sampled_cross_entropy"]

FORMS = ("B", "A")
REDUCTIONS = ("mean", "sum", "none")


class SampledSoftmaxLoss(nn.Module):
    """-log of the softmax of the target, with the sum over all classes estimated from the draws of a sampler.

    form "B": the target's logit as it is, each draw's logit less log(m q); a draw that is a target of the query is
    left out, so that the draws estimate the sum over the other classes without bias.  form "A": every logit, the
    target's too, less log q, and nothing left out, as much published code has it; more biased, and its value is no
    estimate of the cross-entropy.

    shared: one set of draws for the whole batch, which makes the logits one matrix product.
    sparse: sparse gradients of the items, for torch.optim.SparseAdam and the like, so that no step costs all rows; the
    items must then be a parameter itself, and not made from one.  The gradient of a bias is dense: give it another
    optimiser.

    It draws in evaluation too: measure a model with the full softmax.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        draws: int = 100,
        form: str = "B",
        shared: bool = False,
        ignore_index: int = -100,
        reduction: str = "mean",
        sparse: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(sampler, Sampler):
            raise InputError(f"sampler is {show(sampler)}; expected one of the samplers of softindex.train.")
        _check_form(form)
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction is {show(reduction)}; expected one of {', '.join(REDUCTIONS)}.")
        if not isinstance(ignore_index, int) or isinstance(ignore_index, bool):
            raise InputError(f"ignore_index is {show(ignore_index)}; expected an integer.")
        self.sampler = sampler
        self.draws = check_count(draws, "draws")
        self.form, self.shared, self.sparse = form, check_flag(shared, "shared"), check_flag(sparse, "sparse")
        self.ignore_index, self.reduction = ignore_index, reduction
        self.effective: Tensor | None = None
        """What part of the last call's draws counted: (sum of w)^2 / (m sum of w^2) of their weights w, mean over the
        queries, from 1 / m to 1.  One set of draws does not see the classes it missed: with few it says more than
        `Diagnosis.effective`, which is of the whole law.
        """

    def extra_repr(self) -> str:
        """What print(loss) says in the brackets."""
        return f"draws={self.draws}, form={self.form}, shared={self.shared}, sparse={self.sparse}"

    def forward(
        self,
        queries: Tensor,
        positives: Tensor,
        items: Any,
        bias: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss of queries (..., d) whose targets are positives (...), or (..., p) where they have several.

        items (n, d): the vectors of the classes, or the layer that has them as its weight.  bias (n,): added to the
        logits.
        Targets equal to ignore_index are left out, and so are queries without any other.  Several targets of a query
        count alike: the loss is the cross-entropy against the uniform law over them.
        """
        weight = weight_of(items)
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
            return self._nothing(queries, weight, lead)
        layer = _Layer(weight, bias, self.sparse, getattr(items, "padding_idx", None))
        losses = self._losses(rows, _fill(targets, real), real, layer, generator)
        if self.reduction == "none":
            whole = torch.zeros(kept.shape, dtype=losses.dtype, device=losses.device)
            return whole.index_put((kept.nonzero()[:, 0],), losses).view(lead)
        return losses.sum() if self.reduction == "sum" else losses.mean()

    def _nothing(self, queries: Tensor, weight: Tensor, lead: torch.Size) -> Tensor:
        """The loss where no target counts: zero, and so are its gradients."""
        zero = queries.flatten()[:0].sum() + weight[:0].sum()
        zero = zero if zero.dtype == torch.float64 else zero.float()
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
            # One look at the items for both: one gradient, and one pass over it.
            logits = layer.logits(rows, torch.cat([targets, negatives.ids], 1))
            positive_logits, negative_logits = logits[:, : targets.shape[1]], logits[:, targets.shape[1] :]
        log_q = None
        if self.form == "A":
            if self.shared:
                log_q = self.sampler.log_q(rows, targets.flatten(), shared=True).view(targets.shape)
            else:
                log_q = self.sampler.log_q(rows, targets)
        losses, effective = sampled_cross_entropy(
            positive_logits, negative_logits, targets, negatives, form=self.form, positive_log_q=log_q
        )
        self.effective = effective.mean()
        return losses

    def _check(self, queries: Tensor, positives: Tensor, weight: Any, bias: Tensor | None) -> None:
        n = self.sampler.num_items
        for name, tensor in (("queries", queries), ("positives", positives), ("items", weight)):
            if not isinstance(tensor, Tensor):
                raise InputError(f"{name} are {show(tensor)}; expected a tensor.")
        if queries.ndim < 2 or not queries.is_floating_point():
            raise InputError(
                f"queries have shape {tuple(queries.shape)} and dtype {queries.dtype}; expected (b, d) floats."
            )
        if weight.shape != (n, queries.shape[-1]):
            raise InputError(
                f"items have shape {tuple(weight.shape)}; expected {(n, queries.shape[-1])}: "
                f"{n} classes of the sampler, {queries.shape[-1]} dimensions of the queries."
            )
        if positives.is_floating_point() or positives.dtype == torch.bool:
            raise InputError(f"positives are {positives.dtype}; expected integers.")
        lead = queries.shape[:-1]
        if positives.shape != lead and positives.shape[:-1] != lead:
            raise InputError(
                f"positives have shape {tuple(positives.shape)}; expected {tuple(lead)}, "
                "or one axis more for several targets of each query."
            )
        if bias is not None and (not isinstance(bias, Tensor) or bias.shape != (n,)):
            given = tuple(bias.shape) if isinstance(bias, Tensor) else show(bias)
            raise InputError(f"bias has shape {given}; expected a tensor ({n},).")
        for name, tensor in (("positives", positives), ("items", weight), ("bias", bias)):
            if tensor is not None and tensor.device != queries.device:
                raise InputError(
                    f"the queries are on {queries.device} but the {name} on {tensor.device}; move one with .to()."
                )


class _Layer(NamedTuple):
    """The classes as the loss looks at them."""

    weight: Tensor
    bias: Tensor | None
    sparse: bool
    padding: int | None

    def logits(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Logits (b, j) of classes (b, j), each query its own, or (j,), all the same; float32, or float64 if given."""
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
    form: str = "B",
    positive_log_q: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the losses (b,) from logits of any similarity, and what part of the draws counted (b,).

    positive_logits (b, p) of positives (b, p), equal ones counting once; negative_logits (b, m) of negatives, whose ids
    are (b, m) or (m,).  Form "A" needs positive_log_q (b, p).
    """
    _check_form(form)
    if form == "A" and positive_log_q is None:
        raise InputError("form A corrects the targets too; give positive_log_q, as sampler.log_q returns it.")
    _check_logits(positive_logits, negative_logits, positives, negatives)
    m = negative_logits.shape[1]
    corrected = _widen(negative_logits) - negatives.log_q
    right = _widen(positive_logits)
    if form == "A" and positive_log_q is not None:
        right = right - positive_log_q
    else:
        ids = negatives.ids.expand(len(positives), -1)
        hits = (ids[:, :, None] == positives[:, None, :]).any(2) if positives.shape[1] > 1 else ids == positives
        corrected = (corrected - math.log(m)).masked_fill(hits, -math.inf)
    again = _repeats(positives)
    log_z = torch.logsumexp(torch.cat([right.masked_fill(again, -math.inf), corrected], 1), 1)
    share = right.masked_fill(again, 0.0).sum(1) / (~again).sum(1)
    return log_z - share, _effective(corrected.detach())


def _check_logits(right: Tensor, wrong: Tensor, positives: Tensor, negatives: Negatives) -> None:
    for name, tensor in (("positive_logits", right), ("negative_logits", wrong), ("positives", positives)):
        if tensor.ndim != 2:
            raise InputError(f"{name} have shape {tuple(tensor.shape)}; expected two axes, a row for each query.")
    b, m = wrong.shape
    if right.shape != positives.shape or len(right) != b:
        raise InputError(
            f"positive_logits have shape {tuple(right.shape)} and positives {tuple(positives.shape)}; "
            f"expected ({b}, p) for both, as many rows as negative_logits."
        )
    if negatives.ids.shape not in ((b, m), (m,)) or negatives.log_q.shape != negatives.ids.shape:
        raise InputError(
            f"the ids of negatives have shape {tuple(negatives.ids.shape)}; expected {(b, m)} or ({m},), as the logits."
        )


def _widen(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _choose(targets: Tensor, real: Tensor, generator: torch.Generator | None) -> Tensor:
    """One of the targets (b, p) of each row, any of the real ones alike."""
    chances = torch.rand(real.shape, generator=generator, device=real.device).masked_fill(~real, -1.0)
    return targets.gather(1, chances.argmax(1, keepdim=True))[:, 0]


def _effective(log_weights: Tensor) -> Tensor:
    """(sum w)^2 / (m sum w^2) of log-weights (b, m); 0 where there is none."""
    ratio = 2 * torch.logsumexp(log_weights, 1) - torch.logsumexp(2 * log_weights, 1) - math.log(log_weights.shape[1])
    return torch.exp(ratio).nan_to_num(0.0)


def _fill(targets: Tensor, real: Tensor) -> Tensor:
    """Targets (b, p) with one that is real in the place of those that are not."""
    return torch.where(real, targets, targets.gather(1, real.int().argmax(1, keepdim=True)))


def _repeats(positives: Tensor) -> Tensor:
    """Which of the targets (b, p) stand before in their row."""
    if positives.shape[1] == 1:
        return torch.zeros_like(positives, dtype=torch.bool)
    same = positives[:, :, None] == positives[:, None, :]
    return torch.tril(same, diagonal=-1).any(2)


def _check_form(form: str) -> None:
    if form not in FORMS:
        raise MethodError(f"form is {show(form)}; expected one of {', '.join(FORMS)}.")
