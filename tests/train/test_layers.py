"""A layer stands for its weight and its bias, and queries come in every shape, wherever classes are expected."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from softindex import InputError
from softindex.train import (
    LearnableMIDXSampler,
    MIDXSampler,
    Refresher,
    SampledSoftmaxLoss,
    Sampler,
    SphereSampler,
    TwoLevelSampler,
    UniformSampler,
    diagnose,
)

N, D, B = 40, 6, 5


class EveryClass(Sampler):
    """Draws each class once, so that the sampled loss is the full one."""

    needs_refresh = False

    def _draw(self, queries, n, positives, generator):
        ids = torch.arange(self.num_items).expand(len(queries), -1)
        return ids, self._log_q(queries, ids)

    def _log_q(self, queries, ids):
        return torch.full(ids.shape, -float(torch.log(torch.tensor(self.num_items))))


@pytest.fixture
def problem():
    random = torch.Generator().manual_seed(0)
    layer = nn.Linear(D, N)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(N, D, generator=random))
        layer.bias.copy_(2 * torch.randn(N, generator=random))
    return layer, torch.randn(B, D, generator=random), torch.randint(N, (B,), generator=random)


def log_softmax(layer, queries):
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    return torch.log_softmax(functional.linear(queries.double(), weight, bias), 1)


@pytest.mark.parametrize("shared", [False, True])
def test_the_loss_is_that_of_the_layer_with_its_bias(problem, shared):
    layer, queries, positives = problem
    loss = SampledSoftmaxLoss(EveryClass(N), draws=N)
    if shared:
        loss = SampledSoftmaxLoss(MIDXSampler(N, codewords=4, residual="oracle"), draws=200_000, shared=True)
        loss.sampler.refresh(layer)
    full = functional.cross_entropy(layer.double()(queries.double()), positives)
    exact = torch.autograd.grad(full, [layer.weight, layer.bias])
    layer.float()
    sampled = loss(queries, positives, layer, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(sampled, [layer.weight, layer.bias])
    # 200,000 shared draws have a standard error near 0.003; the seed is fixed.
    tolerance = 0.03 if shared else 1e-5
    torch.testing.assert_close(sampled.double(), full, atol=tolerance, rtol=0)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=0)


def test_a_bias_that_is_passed_takes_the_place_of_the_layer_s(problem):
    layer, queries, positives = problem
    loss, other = SampledSoftmaxLoss(EveryClass(N), draws=N), torch.linspace(-1, 1, N)
    full = functional.cross_entropy(queries @ layer.weight.T + other, positives)
    torch.testing.assert_close(loss(queries, positives, layer, other), full)
    torch.testing.assert_close(loss(queries, positives, layer, layer.bias), loss(queries, positives, layer))


def test_no_target_that_counts_gives_the_bias_a_zero_gradient(problem):
    layer, queries, positives = problem
    loss = SampledSoftmaxLoss(EveryClass(N), draws=N)
    loss(queries, torch.full_like(positives, -100), layer).backward()
    assert bool((layer.bias.grad == 0).all())


@pytest.mark.parametrize("background", [False, True])
def test_refreshes_use_the_bias_of_the_layer(problem, background):
    layer, queries, _ = problem
    ids, wanted = torch.arange(N), log_softmax(layer, queries)
    sampler = MIDXSampler(N, codewords=4, residual="oracle")
    sampler.refresh(layer)
    torch.testing.assert_close(sampler.log_q(queries, ids).double(), wanted, atol=1e-5, rtol=0)
    for source in (layer, lambda: layer):
        other = MIDXSampler(N, codewords=4, residual="oracle")
        with Refresher(other, source, steps=1, background=background) as refresher:
            refresher.step()
        torch.testing.assert_close(other.log_q(queries, ids).double(), wanted, atol=1e-5, rtol=0)


def test_every_sampler_of_logits_counts_the_bias(problem):
    layer, queries, _ = problem
    ids, p = torch.arange(N), log_softmax(layer, queries).exp()
    sphere = SphereSampler(N, alpha=3.0)
    sphere.refresh(layer)
    weights = 3 * layer.double()(queries.double()).detach() ** 2 + 1
    torch.testing.assert_close(sphere.log_q(queries, ids).exp().double(), weights / weights.sum(1, keepdim=True))
    layer.float()
    two_level = TwoLevelSampler(N, clusters=N)
    two_level.refresh(layer)
    torch.testing.assert_close(two_level.log_q(queries, ids).exp().double(), p, atol=1e-5, rtol=0)
    learned = LearnableMIDXSampler(N, D, codewords=4)
    with pytest.raises(InputError, match="without its bias"):
        learned.refresh(layer)


def test_a_diagnosis_is_that_of_the_layer_with_its_bias(problem):
    layer, queries, positives = problem
    p = log_softmax(layer, queries).exp()
    found = diagnose(UniformSampler(N), queries, layer, positives=positives, repeats=1)
    assert found.kl == pytest.approx(float((p * (p * N).log()).sum(1).mean()), rel=1e-5)


def test_padded_queries_do_not_count_in_refreshes_and_diagnoses(problem):
    layer, queries, positives = problem
    padded = torch.full((2, 4, D), 1e6)
    targets = torch.full((2, 4), -100)
    where = (torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 2, 0, 1, 3]))
    padded[where], targets[where] = queries, positives
    ids = torch.arange(N)

    def law(**data):
        sampler = MIDXSampler(N, codewords=4, residual="weighted")
        sampler.refresh(layer, **data)
        return sampler.log_q(queries, ids)

    assert torch.equal(law(queries=padded, positives=targets), law(queries=queries))
    flat = queries[None].expand(3, -1, -1)
    torch.testing.assert_close(law(queries=flat), law(queries=flat.flatten(0, 1)))
    one, other = (
        diagnose(UniformSampler(N), rows, layer, positives=wanted, generator=torch.Generator().manual_seed(2))
        for rows, wanted in ((padded, targets), (queries, positives))
    )
    assert one == other
    sampler = MIDXSampler(N, codewords=4, residual="weighted")
    with Refresher(sampler, layer, steps=1, background=False) as refresher:
        refresher.step(padded, positives=targets)
    torch.testing.assert_close(sampler.log_q(queries, ids), law(queries=queries))


def test_a_module_without_a_weight_raises_a_sentence(problem):
    layer, queries, positives = problem
    wrong = nn.Sequential(layer)
    sampler = MIDXSampler(N, codewords=4)
    for call in (
        lambda: SampledSoftmaxLoss(UniformSampler(N))(queries, positives, wrong),
        lambda: sampler.refresh(wrong),
        lambda: diagnose(UniformSampler(N), queries, wrong),
        lambda: Refresher(sampler, wrong, steps=1, background=False).refresh(),
    ):
        with pytest.raises(InputError, match="Sequential, a module without a weight"):
            call()
    for call, words in (
        (lambda: sampler.refresh(layer, bias=wrong), "bias"),
        (lambda: sampler.refresh(layer, frequencies=wrong), "frequencies"),
        (lambda: sampler.refresh(layer, queries=wrong), "queries"),
        (lambda: sampler.refresh(layer, positives=positives), "no queries"),
        (lambda: sampler.refresh(layer, queries=queries, positives=positives[:2]), "positives"),
        (lambda: sampler.refresh(layer, queries=queries, positives=torch.full((B,), -100)), "at least one target"),
        (lambda: SampledSoftmaxLoss(UniformSampler(N))(queries, positives, layer, wrong), "bias"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_classes_that_are_never_drawn_have_an_infinite_distance(problem):
    """Zero probabilities count as zero in the sums, and a class the sampler never draws makes KL(p || q) infinite."""

    class Half(UniformSampler):
        def _log_q(self, queries, ids):
            return torch.where(ids < N // 2, -float(torch.log(torch.tensor(N // 2))), -torch.inf)

    layer, queries, positives = problem
    found = diagnose(Half(N), queries, layer, positives=positives, repeats=1)
    p = log_softmax(layer, queries).exp()[:, : N // 2]
    assert found.kl == float("inf")
    assert found.effective == 0
    assert found.kl_reverse == pytest.approx(float(-(p * N / 2).log().mean()), rel=1e-5)
