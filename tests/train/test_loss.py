"""The sampled loss has the gradient of the full softmax: unbiased where possible, otherwise in the limit."""

import math

import pytest
import torch
from made_losses import B, N, gradients, make_problem
from torch import nn
from torch.nn import functional

from softindex import InputError
from softindex.train import (
    InBatchSampler,
    LogUniformSampler,
    LSHSampler,
    MIDXSampler,
    SampledSoftmaxLoss,
    SphereSampler,
    TwoLevelSampler,
    UniformSampler,
    UnigramSampler,
    diagnose,
    sampled_cross_entropy,
)
from softindex.train.contract import Negatives


@pytest.fixture
def problem():
    return make_problem()


def true_gradients(queries, positives, items, bias=None):
    logits = queries @ items.T if bias is None else queries @ items.T + bias
    wanted = [tensor for tensor in (queries, items, bias) if tensor is not None]
    return gradients(functional.cross_entropy(logits, positives), *wanted)


class Softmax(UniformSampler):
    """The softmax itself as the proposal."""

    def __init__(self, items, bias):
        super().__init__(len(items))
        self.items, self.bias = items.detach(), bias.detach()

    def _draw(self, queries, m, positives, generator):
        log_p = torch.log_softmax(queries @ self.items.T + self.bias, 1)
        ids = torch.multinomial(log_p.exp(), m, replacement=True, generator=generator)
        return ids, log_p.gather(1, ids)

    def _log_q(self, queries, ids):
        return torch.log_softmax(queries @ self.items.T + self.bias, 1).gather(1, ids)


@pytest.mark.parametrize("draws", [1, 3, 20])
def test_the_gradient_is_unbiased_on_the_target_when_the_proposal_is_the_softmax_of_the_others(problem, draws):
    """Draws of the softmax without the target weigh the same: the sum is exact in every single set of draws."""
    queries, positives, items, bias = problem
    logits = queries @ items.T + bias
    others = logits.scatter(1, positives[:, None], -math.inf)
    log_q = torch.log_softmax(others, 1).detach()
    ids = torch.multinomial(log_q.exp(), draws, replacement=True, generator=torch.Generator().manual_seed(1))
    drawn = Negatives(ids, log_q.gather(1, ids))
    losses, effective = sampled_cross_entropy(
        logits.gather(1, positives[:, None]), logits.gather(1, ids), positives[:, None], drawn
    )
    torch.testing.assert_close(losses, functional.cross_entropy(logits, positives, reduction="none"))
    torch.testing.assert_close(effective, torch.ones(B))


def test_the_gradient_is_unbiased_when_the_proposal_is_the_softmax(problem):
    queries, positives, items, bias = problem
    sampler, random = Softmax(items, bias), torch.Generator().manual_seed(2)
    loss = SampledSoftmaxLoss(sampler, draws=20)
    runs = [gradients(loss(queries, positives, items, bias, generator=random), queries) for _ in range(1500)]
    found = torch.stack([run[0] for run in runs])
    true = true_gradients(queries, positives, items, bias)[0]
    # Leaving out hits makes the sum over the others a little noisy, and its inverse a little large: below one percent.
    noise = found.std(0) / math.sqrt(len(runs))
    assert bool(((found.mean(0) - true).abs() <= 5 * noise + 0.01 * true.abs().max()).all())


def test_the_sum_over_the_other_classes_is_unbiased_for_any_sampler(problem):
    queries, positives, items, bias = problem
    logits = (queries @ items.T + bias).detach().double()
    wanted = logits.exp().sum(1) - logits.gather(1, positives[:, None]).exp()[:, 0]
    sampler = MIDXSampler(N, codewords=4)
    sampler.refresh(items)
    m, repeats = 8, 20_000
    drawn = sampler.sample(queries, m * repeats, generator=torch.Generator().manual_seed(3))
    terms = torch.exp(logits.gather(1, drawn.ids) - drawn.log_q) / m
    terms = torch.where(drawn.ids == positives[:, None], 0.0, terms)
    total = terms.view(B, repeats, m).sum(2)
    assert bool(((total.mean(1) - wanted).abs() <= 5 * total.std(1) / math.sqrt(repeats)).all())


def every_sampler():
    return {
        "uniform": UniformSampler(N),
        "log-uniform": LogUniformSampler(N),
        "unigram": UnigramSampler(N, power=0.5),
        "sphere": SphereSampler(N),
        "lsh": LSHSampler(N, tables=4, bits=3),
        "s-2ls": TwoLevelSampler(N, method="s-2ls"),
        "sd-2ls": TwoLevelSampler(N, method="sd-2ls"),
        **{
            f"midx {residual}": MIDXSampler(N, codewords=4, residual=residual)
            for residual in ("uniform", "weighted", "exact", "oracle")
        },
        "midx pq": MIDXSampler(N, codewords=4, quantizer="pq", unigram_mix=0.1),
    }


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("correction", ["negatives", "all"])
@pytest.mark.parametrize("name", every_sampler())
def test_the_gradient_tends_to_that_of_the_full_softmax(problem, name, correction, shared):
    queries, positives, items, bias = problem
    sampler = every_sampler()[name]
    sampler.refresh(items, frequencies=torch.arange(1, N + 1), queries=queries)
    errors = []
    for draws in (30, 3000, 100_000):
        loss = SampledSoftmaxLoss(sampler, draws=draws, correction=correction, shared=shared)
        found = gradients(loss(queries, positives, items, bias, generator=torch.Generator().manual_seed(4)), queries)[0]
        errors.append(float((found - true_gradients(queries, positives, items, bias)[0]).norm()))
    if correction == "negatives":
        assert errors[2] < 0.02
        assert errors[2] < errors[0]
    else:
        # "all" counts the target beside the draws that already stand for it: it tends to the same, more slowly.
        assert errors[2] < errors[0]
        assert errors[2] < 0.05


def test_correcting_only_the_negatives_is_less_biased(problem):
    queries, positives, items, _ = problem
    sampler = MIDXSampler(N, codewords=4)
    sampler.refresh(items)
    found = {
        correction: diagnose(
            sampler,
            queries,
            items,
            positives=positives,
            correction=correction,
            repeats=400,
            generator=torch.Generator().manual_seed(5),
        )
        for correction in ("negatives", "all")
    }
    assert abs(found["negatives"].gradient_bias) < abs(found["all"].gradient_bias)


def test_draws_of_the_batch_estimate_the_softmax():
    """Over many batches the sum over the other classes comes out right, own targets being no draws."""
    random = torch.Generator().manual_seed(6)
    frequencies = torch.rand(N, generator=random) + 0.1
    sampler = InBatchSampler(N)
    sampler.refresh(frequencies=frequencies)
    weights = torch.rand(N, generator=random)
    b, batches, own = 8, 6_000, 3
    for shared in (False, True):
        sums = []
        for _ in range(batches // 200):
            positives = torch.multinomial(frequencies, b * 200, replacement=True, generator=random).view(200, b)
            positives[:, 0] = own
            for targets in positives:
                drawn = sampler.sample(
                    torch.zeros(b, 1), b if shared else 4, shared=shared, positives=targets, generator=random
                )
                ids, log_q = (drawn.ids, drawn.log_q) if shared else (drawn.ids[0], drawn.log_q[0])
                terms = weights[ids] / log_q.exp() / len(ids)
                sums.append(float(terms[ids != own].sum()))
        found = torch.tensor(sums)
        wanted = float(weights.sum() - weights[own])
        assert abs(float(found.mean()) - wanted) < 5 * float(found.std()) / math.sqrt(len(sums))


def test_several_targets_are_the_cross_entropy_against_all_of_them(problem):
    queries, _, items, bias = problem
    targets = torch.tensor([[1, 2, 3], [4, 4, -100], [5, -100, -100], [6, 7, 6], [8, 9, 10], [-100, 11, 12]])
    soft = torch.zeros(B, N)
    for row, found in enumerate(targets):
        for target in {int(one) for one in found if one >= 0}:
            soft[row, target] = 1
    soft /= soft.sum(1, keepdim=True)
    wanted = functional.cross_entropy(queries @ items.T + bias, soft)
    loss = SampledSoftmaxLoss(MIDXSampler(N, codewords=4, residual="oracle"), draws=200_000)
    loss.sampler.refresh(items, bias=bias)
    torch.testing.assert_close(loss(queries, targets, items, bias), wanted, atol=0.01, rtol=0)


def test_training_with_a_sampled_loss_reaches_the_full_softmax():
    random = torch.Generator().manual_seed(7)
    classes, features = 200, 400
    truth = torch.randn(classes, 8, generator=random) * 1.5
    inputs = torch.randn(features, 8, generator=random)
    targets = torch.multinomial(torch.softmax(inputs @ truth.T, 1), 1, generator=random)[:, 0]
    ends = {}
    for name in ("full", "sampled"):
        torch.manual_seed(0)
        items = nn.Parameter(torch.zeros(classes, 8))
        optimiser = torch.optim.Adam([items], lr=0.1)
        sampler = MIDXSampler(classes, codewords=8)
        loss = SampledSoftmaxLoss(sampler, draws=50)
        for step in range(60):
            if step % 10 == 0:
                sampler.refresh(items)
            optimiser.zero_grad()
            value = (
                functional.cross_entropy(inputs @ items.T, targets) if name == "full" else loss(inputs, targets, items)
            )
            value.backward()
            optimiser.step()
        ends[name] = functional.cross_entropy(inputs @ items.T, targets).item()
    assert ends["sampled"] == pytest.approx(ends["full"], abs=0.1)


def test_the_weighted_correction_is_its_formula_and_has_the_gradient_of_the_default():
    """(1 - p) (log S - o) with the weight held constant, in float64; draws of the target do not count in S."""
    random = torch.Generator().manual_seed(0)
    target, draws = (torch.randn(8, count, generator=random, dtype=torch.float64) for count in (1, 30))
    positives = torch.randint(12, (8, 1), generator=random)
    drawn = UniformSampler(12).sample(torch.randn(8, 3, generator=random), 30, generator=random)
    found = {}
    for correction in ("negatives", "weighted"):
        leaves = [target.clone().requires_grad_(), draws.clone().requires_grad_()]
        losses, _ = sampled_cross_entropy(*leaves, positives, drawn, correction=correction)
        found[correction] = losses.detach(), torch.autograd.grad(losses.sum(), leaves)
    log_sum = draws - drawn.log_q.double() - math.log(30)
    log_sum = log_sum.masked_fill(drawn.ids == positives, -math.inf).logsumexp(1)
    p = target[:, 0].exp() / (target[:, 0].exp() + log_sum.exp())
    torch.testing.assert_close(found["weighted"][0], (1 - p) * (log_sum - target[:, 0]), atol=1e-6, rtol=0)
    for one, other in zip(found["weighted"][1], found["negatives"][1], strict=True):
        torch.testing.assert_close(one, other)
    only = Negatives(positives.expand(-1, 30), drawn.log_q)
    leaves = [target.clone().requires_grad_(), draws.clone().requires_grad_()]
    losses, _ = sampled_cross_entropy(*leaves, positives, only, correction="weighted")
    assert bool((losses == 0).all())
    assert all(bool((grad == 0).all()) for grad in torch.autograd.grad(losses.sum(), leaves))
    with pytest.raises(InputError, match="one target"):
        sampled_cross_entropy(target.expand(-1, 2), draws, positives.expand(-1, 2), drawn, correction="weighted")
