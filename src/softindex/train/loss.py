"""SampledSoftmaxLoss: cross-entropy over millions of classes from a few draws, each corrected by its log q."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from softindex.errors import InputError, MethodError, show
from softindex.train.contract import Negatives, Sampler, check_range
from softindex.vectors import check_count, check_flag

__all__ = ["FORMS", "SampledSoftmaxLoss", "sampled_cross_entropy"]

FORMS = ("B", "A")
REDUCTIONS = ("mean", "sum", "none")


class SampledSoftmaxLoss(nn.Module):
    """-log of the softmax of the target, with the sum over all classes estimated from the draws of a sampler.

    form "B": the target's logit as it is, each draw's logit less log(m q); a draw that is a target of the query is
    left out, so that the draws estimate the sum over the other classes without bias.  form "A": every logit, the
    target's too, less log q, and nothing left out, as much published code has it; more biased.

    shared: one set of draws for the whole batch, which makes the logits one matrix product.
    sparse: sparse gradients of the items, for torch.optim.SparseAdam and the like, so that no step costs all rows.
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
        """What part of the last call's draws counted, up to 1, mean over its queries; 1 where q is the softmax."""

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

        items (n, d): the vectors of the classes, or the nn.Embedding that holds them.  bias (n,): added to the logits.
        Targets equal to ignore_index are left out, and so are queries without any other.  Several targets of a query
        count alike: the loss is the cross-entropy against the uniform law over them.
        """
        weight = items.weight if isinstance(items, nn.Embedding) else items
        self._check(queries, positives, weight, bias)
        shape = queries.shape[:-1]
        rows = queries.flatten(0, -2) if queries.ndim > 2 else queries.view(-1, queries.shape[-1])
        targets = positives.long().reshape(len(rows), -1)
        real = targets != self.ignore_index
        check_range(targets[real], self.sampler.num_items, "positives")
        kept = real.any(1)
        if not bool(kept.all()):
            rows, targets, real = rows[kept], targets[kept], real[kept]
        losses = torch.zeros(len(kept), device=rows.device) + 0.0 * queries.sum()
        if len(rows):
            found = self._losses(rows, _fill(targets, real), weight, bias, generator)
            losses = found if len(found) == len(kept) else losses.index_put((kept.nonzero()[:, 0],), found)
        if self.reduction == "none":
            return losses.view(shape)
        return losses.sum() if self.reduction == "sum" else losses.sum() / max(1, len(rows))

    def _losses(
        self, rows: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        negatives = self.sampler.sample(
            rows, self.draws, shared=self.shared, positives=targets[:, 0], generator=generator
        )
        if self.shared:
            positive_logits = self._logits(rows, targets, weight, bias)
            negative_logits = self._logits(rows, negatives.ids, weight, bias)
        else:
            # One look at the items for both: one gradient, and one pass over it.
            logits = self._logits(rows, torch.cat([targets, negatives.ids], 1), weight, bias)
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

    def _logits(self, rows: Tensor, ids: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Logits (b, j) of classes (b, j), each query its own, or (j,), all the same."""
        vectors = functional.embedding(ids, weight, sparse=self.sparse)
        common = torch.promote_types(vectors.dtype, rows.dtype)
        vectors, wide = vectors.to(common), rows.to(common)
        logits = wide @ vectors.T if ids.ndim == 1 else torch.matmul(vectors, wide[:, :, None])[:, :, 0]
        return logits.float() if bias is None else logits.float() + bias[ids].float()

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
                f"positives have shape {tuple(positives.shape)}; "
                f"expected {tuple(lead)}, or {(*lead, 'p')} for several targets of each query."
            )
        if bias is not None and bias.shape != (n,):
            raise InputError(f"bias has shape {tuple(bias.shape)}; expected ({n},).")
        for name, tensor in (("positives", positives), ("items", weight), ("bias", bias)):
            if tensor is not None and tensor.device != queries.device:
                raise InputError(
                    f"the queries are on {queries.device} but the {name} on {tensor.device}; move one with .to()."
                )


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
    m = negative_logits.shape[1]
    corrected = negative_logits.float() - negatives.log_q
    right = positive_logits.float()
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
