"""The sampled loss takes every shape, dtype and padding that cross_entropy takes, and refuses the rest."""

import math

import pytest
import torch
from made_losses import B, D, N, gradients, make_problem
from torch import nn

from softindex import InputError, MethodError
from softindex.train import (
    InBatchSampler,
    MIDXSampler,
    SampledSoftmaxLoss,
    UniformSampler,
    sampled_cross_entropy,
)


@pytest.fixture
def problem():
    return make_problem()


def test_ignored_targets_do_not_count(problem):
    queries, positives, items, _ = problem
    loss = SampledSoftmaxLoss(UniformSampler(N), draws=50, reduction="none", ignore_index=0)
    targets = positives.clone()
    targets[[1, 4]] = 0
    losses = loss(queries, targets, items)
    assert losses.shape == (B,)
    assert bool((losses[[1, 4]] == 0).all())
    assert bool((losses[[0, 2, 3, 5]] > 0).all())
    (grad,) = gradients(losses.sum(), queries)
    assert bool((grad[[1, 4]] == 0).all())
    mean = SampledSoftmaxLoss(UniformSampler(N), draws=50, ignore_index=0)
    first, second = (one(queries, targets, items, generator=torch.Generator().manual_seed(1)) for one in (loss, mean))
    torch.testing.assert_close(first.sum() / 4, second)
    nothing = mean(queries, torch.zeros_like(targets), items)
    assert nothing.item() == 0
    assert bool((gradients(nothing, queries)[0] == 0).all())


def test_any_leading_shape(problem):
    queries, positives, items, bias = problem
    loss = SampledSoftmaxLoss(UniformSampler(N), draws=50, reduction="none")
    flat = loss(queries, positives, items, bias, generator=torch.Generator().manual_seed(1))
    deep = loss(queries.view(2, 3, D), positives.view(2, 3), items, bias, generator=torch.Generator().manual_seed(1))
    assert torch.equal(deep, flat.view(2, 3))


def test_ignored_queries_may_contain_anything(problem):
    queries, positives, items, _ = problem
    loss = SampledSoftmaxLoss(UniformSampler(N), draws=50)
    targets = positives.clone()
    targets[2] = -100
    rows = queries.detach().clone()
    rows[2] = math.nan
    rows.requires_grad_()
    value = loss(rows, targets, items)
    assert bool(torch.isfinite(value))
    assert bool(torch.isfinite(gradients(value, items)[0]).all())
    large = torch.full((4096, D), 60.0, dtype=torch.float16)
    many = torch.zeros(4096, dtype=torch.long)
    many[0] = -100
    assert bool(torch.isfinite(loss(large, many, items.half())))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_query_at_all(problem, reduction):
    queries, positives, items, _ = problem
    loss = SampledSoftmaxLoss(UniformSampler(N), reduction=reduction)
    value = loss(queries[:0], positives[:0], items)
    assert value.sum().item() == 0
    ignored = loss(queries.detach(), torch.full_like(positives, -100), items)
    assert bool((gradients(ignored.sum(), items)[0] == 0).all())


def test_the_effective_share_is_that_of_the_last_call(problem):
    """NaN where no target counted: nothing was drawn, and the share of an earlier call would be wrong."""
    queries, positives, items, _ = problem
    loss = SampledSoftmaxLoss(UniformSampler(N), draws=50)
    assert loss.effective is None
    for part in (torch.full_like(positives, -100), positives, torch.full_like(positives, -100)):
        loss(queries, part, items)
        assert bool(torch.isnan(loss.effective)) == bool((part == -100).all())
        assert loss.effective.shape == ()
        assert not loss.effective.requires_grad
    loss(queries.double()[:0], positives[:0], items.double())
    assert math.isnan(loss.effective)


def test_doubles_stay_doubles(problem):
    queries, positives, items, bias = (part.double() if part.is_floating_point() else part for part in problem)
    leaves = [part.detach().requires_grad_() for part in (queries, items, bias)]
    loss = SampledSoftmaxLoss(UniformSampler(N), draws=5)

    def value(queries, items, bias):
        return loss(queries, positives, items, bias, generator=torch.Generator().manual_seed(1))

    assert value(*leaves).dtype == torch.float64
    assert torch.autograd.gradcheck(value, leaves)


def test_padding_of_an_embedding_gets_no_gradient(problem):
    queries, positives, _, _ = problem
    embedding = nn.Embedding(N, D, padding_idx=0)
    loss = SampledSoftmaxLoss(UniformSampler(N), draws=500, ignore_index=0)
    (grad,) = torch.autograd.grad(loss(queries, positives + (positives == 0), embedding), embedding.weight)
    assert bool((grad[0] == 0).all())
    assert bool((grad[1:] != 0).any(1).all())


def test_any_target_of_a_query_may_be_drawn_for_the_others():
    sampler = InBatchSampler(4)
    sampler.refresh(frequencies=torch.ones(4))
    seen = []

    class Watched(InBatchSampler):
        def _draw(self, queries, m, positives, generator):
            seen.append(positives)
            return super()._draw(queries, m, positives, generator)

    watched = Watched(4)
    watched.refresh(frequencies=torch.ones(4))
    loss = SampledSoftmaxLoss(watched, draws=2)
    targets = torch.tensor([[0, 1, -100], [2, 3, -100], [1, -100, -100]])
    for _ in range(50):
        loss(torch.ones(3, 2), targets, torch.ones(4, 2))
    rows = [set(column.tolist()) for column in torch.stack(seen).T]
    assert rows == [{0, 1}, {2, 3}, {1}]


@pytest.mark.parametrize("shared", [False, True])
def test_sparse_gradients_are_the_dense_ones(problem, shared):
    queries, positives, _, bias = problem
    embedding = nn.Embedding(N, D)
    found = []
    for sparse in (False, True):
        loss = SampledSoftmaxLoss(UniformSampler(N), draws=10, sparse=sparse, shared=shared)
        value = loss(queries, positives, embedding, bias, generator=torch.Generator().manual_seed(1))
        grads = torch.autograd.grad(value, [embedding.weight, bias])
        assert grads[0].is_sparse == sparse
        found.append([grad.to_dense() for grad in grads])
    for dense, sparse in zip(*found, strict=True):
        torch.testing.assert_close(dense, sparse)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(problem, dtype):
    queries, positives, items, bias = problem
    loss = SampledSoftmaxLoss(MIDXSampler(N, codewords=4), draws=2000)
    loss.sampler.refresh(items)
    wanted = loss(queries, positives, items, bias, generator=torch.Generator().manual_seed(1)).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(queries, positives, items, bias, generator=torch.Generator().manual_seed(1))
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(wanted, abs=0.05)
    narrow = loss(queries.to(dtype), positives, items.to(dtype), bias, generator=torch.Generator().manual_seed(1))
    assert narrow.dtype == torch.float32
    assert narrow.item() == pytest.approx(wanted, abs=0.05)
    mixed = loss(queries.to(dtype), positives, items, bias, generator=torch.Generator().manual_seed(1))
    assert mixed.item() == pytest.approx(wanted, abs=0.05)


def test_a_query_all_of_whose_draws_are_its_target():
    loss = SampledSoftmaxLoss(UniformSampler(1), draws=5)
    queries, items = torch.ones(2, 3, requires_grad=True), torch.ones(1, 3, requires_grad=True)
    value = loss(queries, torch.zeros(2, dtype=torch.long), items)
    assert value.item() == 0
    assert bool(torch.isfinite(gradients(value, queries)[0]).all())


def test_more_than_two_to_the_24_classes():
    n = 2**24 + 5
    items = torch.zeros(n, 1)
    items[n - 2] = 1.0
    items.requires_grad_()
    loss = SampledSoftmaxLoss(UniformSampler(n), draws=100, sparse=True)
    value = loss(torch.full((2, 1), 20.0), torch.tensor([n - 2, n - 1]), items)
    (grad,) = torch.autograd.grad(value, items)
    assert {n - 2, n - 1} <= set(grad.coalesce().indices()[0].tolist())
    assert value.item() == pytest.approx((0 + math.log(n)) / 2, abs=1.0)


def test_wrong_input_raises_a_sentence(problem):
    queries, positives, items, bias = problem
    loss = SampledSoftmaxLoss(UniformSampler(N))
    for call, words in (
        (lambda: loss(queries, positives + N, items), "class"),
        (lambda: loss(queries, positives.float(), items), "integers"),
        (lambda: loss(queries, positives[:-1], items), "positives have shape"),
        (lambda: loss(queries[0], positives[:1], items), "queries have shape"),
        (lambda: loss(queries, positives, items[:-1]), "items have shape"),
        (lambda: loss(queries[:, :2], positives, items), "items have shape"),
        (lambda: loss(queries, positives, items, bias[:-1]), "bias has shape"),
        (lambda: loss(queries, positives, items, bias.detach().numpy()), "expected a tensor"),
        (lambda: loss(queries, positives, items.to("meta")), "meta"),
        (lambda: loss(queries, positives.tolist(), items), "expected a tensor"),
        (lambda: SampledSoftmaxLoss(UniformSampler(N), draws=0), "draws is 0"),
        (lambda: SampledSoftmaxLoss("uniform"), "samplers"),
        (lambda: SampledSoftmaxLoss(UniformSampler(N), reduction="max"), "reduction"),
        (lambda: SampledSoftmaxLoss(UniformSampler(N), ignore_index=None), "ignore_index"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    with pytest.raises(MethodError, match="correction"):
        SampledSoftmaxLoss(UniformSampler(N), correction="none")
    drawn = loss.sampler.sample(queries, 3)
    for right, targets in ((torch.zeros(B), positives[:, None]), (torch.zeros(B, 1), positives)):
        with pytest.raises(InputError, match="shape"):
            sampled_cross_entropy(right, torch.zeros(B, 3), targets, drawn)
    with pytest.raises(InputError, match="ids"):
        sampled_cross_entropy(torch.zeros(B, 1), torch.zeros(B, 4), positives[:, None], drawn)
    with pytest.raises(InputError, match="positive_log_q"):
        sampled_cross_entropy(torch.zeros(B, 1), torch.zeros(B, 3), positives[:, None], drawn, correction="all")
