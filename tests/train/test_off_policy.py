"""The loss for logged decisions has the gradient of the estimated value, for one item and for slates."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import softindex
from softindex.train import OffPolicyLoss, SampledSoftmaxLoss, UniformSampler

B, N, D = 64, 20, 5


class FullLoss(nn.Module):
    """The cross-entropy of the full softmax, with the arguments of a sampled one."""

    def forward(self, queries, shown, items, bias=None, *, generator=None):
        logits = queries @ items.T if bias is None else queries @ items.T + bias
        return functional.cross_entropy(logits, shown, reduction="none")


@pytest.fixture
def logged():
    torch.manual_seed(0)
    queries, items = torch.randn(B, D, dtype=torch.float64), torch.randn(N, D, dtype=torch.float64)
    shown, log_prob = torch.randint(N, (B,)), torch.log(torch.rand(B, dtype=torch.float64) * 0.5 + 0.01)
    return queries, items, shown, torch.rand(B, dtype=torch.float64), log_prob


def gradient(value, items):
    return torch.autograd.grad(value, items)[0]


@pytest.mark.parametrize("slate", [1, 2, 16])
def test_the_gradient_is_that_of_the_estimated_value(logged, slate):
    """An item is in a slate of K draws with probability 1 - (1 - pi)^K; the value of that is what is climbed."""
    queries, items, shown, rewards, log_prob = logged
    items.requires_grad_()
    loss = OffPolicyLoss(FullLoss(), slate=slate)(queries, shown, items, rewards=rewards, log_prob=log_prob)
    policy = functional.softmax(queries @ items.T, dim=1)[torch.arange(B), shown]
    value = (rewards / log_prob.exp() * (1 - (1 - policy) ** slate)).mean()
    torch.testing.assert_close(gradient(loss, items), -gradient(value, items), rtol=1e-9, atol=1e-12)


def test_the_weighted_likelihood_is_its_definition(logged):
    queries, items, shown, rewards, log_prob = logged
    loss = OffPolicyLoss(FullLoss(), weighting="logged")
    found = loss(queries, shown, items, rewards=rewards, log_prob=log_prob)
    each = functional.cross_entropy(queries @ items.T, shown, reduction="none")
    torch.testing.assert_close(found, (rewards / log_prob.exp() * each).mean())
    limited = OffPolicyLoss(FullLoss(), weighting="logged", limit=3.0)
    found = limited(queries, shown, items, rewards=rewards, log_prob=log_prob)
    torch.testing.assert_close(found, (rewards * (1 / log_prob.exp()).clamp(max=3.0) * each).mean())
    assert limited.weights.max() <= 3.0


def test_a_sampled_softmax_comes_near_the_full_one(logged):
    """4,000 draws for 20 classes: the mean of 64 losses is within 5 %; false alarm below 1e-6."""
    queries, items, shown, rewards, log_prob = logged
    sampled = OffPolicyLoss(SampledSoftmaxLoss(UniformSampler(N), draws=4000, reduction="none"), limit=5.0)
    full = OffPolicyLoss(FullLoss(), limit=5.0)
    options = {"rewards": rewards, "log_prob": log_prob}
    found = sampled(queries, shown, items, generator=torch.Generator().manual_seed(0), **options)
    torch.testing.assert_close(found, full(queries, shown, items, **options), rtol=0.05, atol=0)


@pytest.mark.parametrize("weighting", ["policy", "logged"])
def test_learning_from_logs_finds_the_better_items(weighting):
    """Item 3 earns most and was shown rarely: from 4,000 uniform decisions the policy learns to show it."""
    torch.manual_seed(1)
    shown, table = torch.randint(10, (4000,)), torch.linspace(0.1, 0.2, 10).roll(4)
    rewards = (torch.rand(4000) < table[shown]).float()
    bias = torch.zeros(10, requires_grad=True)
    queries, items = torch.zeros(4000, 1), torch.zeros(10, 1)
    optimiser = torch.optim.Adam([bias], lr=0.05)
    loss = OffPolicyLoss(FullLoss(), weighting=weighting)
    log_prob = torch.full((4000,), 0.1).log()
    for _ in range(300):
        optimiser.zero_grad()
        # Without a baseline every item that was shown is pushed up; with one, only those that earn more.
        value = loss(queries, shown, items, bias, rewards=rewards, log_prob=log_prob)
        value.backward()
        optimiser.step()
    assert float(functional.softmax(bias.detach(), dim=0) @ table) > float(table.mean()) + 0.003


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OffPolicyLoss(SampledSoftmaxLoss(UniformSampler(5))), "reduction"),
        (lambda: OffPolicyLoss(3), "loss is 3"),
        (lambda: OffPolicyLoss(FullLoss(), weighting="best"), "weighting is 'best'"),
        (lambda: OffPolicyLoss(FullLoss(), weighting="logged", slate=3), "slate is for"),
        (lambda: OffPolicyLoss(FullLoss(), limit=0.0), "limit is 0.0"),
        (lambda: OffPolicyLoss(FullLoss(), slate=0), "slate is 0"),
    ],
)
def test_what_makes_no_loss_is_refused(make, message):
    with pytest.raises(softindex.InputError, match=message):
        make()


def test_rewards_and_propensities_must_fit(logged):
    queries, items, shown, rewards, log_prob = logged
    with pytest.raises(softindex.InputError, match="rewards must be a tensor"):
        OffPolicyLoss(FullLoss())(queries, shown, items, rewards=rewards[:3], log_prob=log_prob)
