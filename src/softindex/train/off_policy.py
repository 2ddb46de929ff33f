"""OffPolicyLoss: learn a better policy from logged decisions, each weighted by how probable it was."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from softindex.arguments import check_count, check_positive
from softindex.errors import InputError, show
from softindex.train.checks import check_choice

__all__ = ["OffPolicyLoss", "Weighting"]

Weighting = Literal["policy", "logged"]
WEIGHTINGS: tuple[str, ...] = get_args(Weighting)


class OffPolicyLoss(nn.Module):
    """Loss of logged decisions: rewards times importance weights times the cross-entropy of the items that were shown.

    Let pi be the policy that is learned, beta the policy that was logged, and L = -log pi(a) the loss of an item a.

    - weighting="policy": mean of reward * lambda * (pi(a) / beta(a)) * L, with no gradient through the weights.  Its
      gradient is that of the estimated value of the policy.  For slates of K items, `slate=K` is the top-K correction
      of Chen et al. (2019), lambda = K (1 - pi(a))^(K - 1): an item then counts as shown if any of K draws is that
      item, so one that is already probable enough is not pushed further.
    - weighting="logged": mean of reward / beta(a) * L, the weighted log-likelihood.  It is convex in the logits if no
      reward is negative, and learns steadily from a policy that is far from the best.  `slate` must be 1.

    Args:
        loss: Cross-entropy of items, one number per query: a `SampledSoftmaxLoss` with reduction="none", or any module
            with its arguments.
        weighting: See above.
        slate: Items that the policy will show at once, K.
        limit: Largest importance weight; None: no limit.  A limit of 10 or so adds some bias and removes much variance.
    """

    def __init__(
        self, loss: nn.Module, *, weighting: Weighting = "policy", slate: int = 1, limit: float | None = None
    ) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module) or getattr(loss, "reduction", "none") != "none":
            raise InputError(f'loss is {show(loss)}; expected one with reduction="none", a number for each query.')
        check_choice(weighting, "weighting", WEIGHTINGS)
        self.loss, self.weighting, self.slate = loss, weighting, check_count(slate, "slate")
        self.limit = None if limit is None else check_positive(limit, "limit", 10.0)
        if self.weighting == "logged" and self.slate > 1:
            raise InputError('slate is for weighting="policy" only; leave it out.')
        self.weights: Tensor | None = None
        """(b,) importance weights of the last call, after the limit."""

    def extra_repr(self) -> str:
        """The text between the brackets of repr(loss)."""
        return f"weighting={self.weighting}, slate={self.slate}, limit={self.limit}"

    def forward(
        self,
        queries: Tensor,
        shown: Tensor,
        items: Any,
        bias: Tensor | None = None,
        *,
        rewards: Tensor,
        log_prob: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss of logged decisions, a scalar.

        Args:
            queries: (b, d), already divided by the temperature of the policy.
            shown: (b,) numbers of the items that were shown.
            items: As for `SampledSoftmaxLoss`, like `bias` and `generator`.
            rewards: (b,); subtract a baseline if most are far from 0.
            log_prob: (b,) log-probability of each item when it was drawn.
        """
        for name, tensor in (("rewards", rewards), ("log_prob", log_prob)):
            if not isinstance(tensor, Tensor) or tensor.shape != shown.shape:
                raise InputError(f"{name} must be a tensor {tuple(shown.shape)}, one number per decision.")
        if shown.ndim != 1:
            raise InputError(f"shown has shape {tuple(shown.shape)}; pass the items of slates one by one, (b,).")
        losses: Tensor = self.loss(queries, shown, items, bias, generator=generator)
        # A probability that is estimated by a sampled softmax may exceed one.
        log_policy = (-losses.detach()).clamp(max=0.0)
        weights = torch.exp((log_policy if self.weighting == "policy" else 0.0) - log_prob.to(losses))
        if self.limit is not None:
            weights = weights.clamp(max=self.limit)
        self.weights = weights
        if self.slate > 1:
            weights = weights * self.slate * (1 - log_policy.exp()) ** (self.slate - 1)
        return (rewards.to(losses) * weights * losses).mean()
