"""Trained codebooks come closer to the softmax."""

import pytest
import torch

from softindex import InputError
from softindex.train import LearnableMIDXSampler, MIDXSampler

N, D, K = 400, 6, 8


def problem():
    random = torch.Generator().manual_seed(0)
    items = torch.randn(N, D, generator=random)
    # Queries that see two directions much more than the others, which k-means on the items cannot know.
    queries = torch.randn(64, D, generator=random) * torch.tensor([3.0, 0.1, 0.1, 3.0, 0.1, 0.1])
    return items, queries


def divergence(log_p, log_q):
    return float((log_p.exp() * (log_p - log_q)).sum(1).mean())


@pytest.mark.parametrize(("quantizer", "part"), [("rq", 0.75), ("pq", 0.97)])
def test_training_the_codebooks_lowers_the_divergence(quantizer, part):
    items, queries = problem()
    torch.manual_seed(0)
    sampler = LearnableMIDXSampler(N, D, codewords=K, quantizer=quantizer)
    optimiser = torch.optim.Adam(sampler.parameters(), lr=0.02)
    sampler.refresh(items)
    log_p = torch.log_softmax(queries @ items.T, 1)
    start = divergence(sampler.log_q(queries, torch.arange(N)), log_p)
    for step in range(150):
        if step % 50 == 49:
            sampler.refresh(items, queries=queries)
        optimiser.zero_grad()
        found = sampler.codebook_loss(queries, items, 40)
        (found.kl + 0.01 * found.reconstruction).backward()
        optimiser.step()
    assert divergence(sampler.log_q(queries, torch.arange(N)), log_p) < part * start


def test_the_estimated_divergence_has_the_value_and_gradient_of_the_true_one():
    items, queries = problem()
    sampler = LearnableMIDXSampler(N, D, codewords=K)
    sampler.refresh(items)
    rows = queries[:4]
    found = sampler.codebook_loss(rows, items, 60_000, generator=torch.Generator().manual_seed(1))
    (estimate,) = torch.autograd.grad(found.kl, sampler.first, retain_graph=True)
    log_p = torch.log_softmax((rows @ items.T).double(), 1)
    law = sampler._law(rows)
    log_q = law.log_q(torch.arange(N).expand(4, -1))
    true = (log_q.exp() * (log_q - log_p)).sum(1).mean()
    (wanted,) = torch.autograd.grad(true, sampler.first)
    assert found.kl.item() == pytest.approx(true.item(), abs=0.05)
    assert float((estimate - wanted).norm()) < 0.05 * float(wanted.norm())


def test_a_bias_belongs_to_the_softmax_that_is_learned():
    items, queries = problem()
    bias = 2 * torch.randn(N, generator=torch.Generator().manual_seed(2))
    sampler = LearnableMIDXSampler(N, D, codewords=K, residual="weighted")
    sampler.refresh(items, bias=bias)
    # The standard deviation of this estimate is 0.012.
    found = sampler.codebook_loss(queries[:4], items, 200_000, bias=bias).kl.item()
    log_q = sampler.log_q(queries[:4], torch.arange(N))
    assert found == pytest.approx(divergence(log_q, torch.log_softmax(queries[:4] @ items.T + bias, 1)), abs=0.05)


def test_a_first_refresh_is_k_means_and_later_ones_keep_the_codebooks():
    items, queries = problem()
    sampler, plain = LearnableMIDXSampler(N, D, codewords=K), MIDXSampler(N, codewords=K)
    sampler.refresh(items)
    plain.refresh(items)
    assert torch.equal(sampler.first.detach(), plain.tables["first"])
    torch.testing.assert_close(sampler.log_q(queries, torch.arange(N)), plain.log_q(queries, torch.arange(N)))
    with torch.no_grad():
        sampler.first.add_(0.1)
    kept = sampler.first.detach().clone()
    sampler.refresh(items)
    assert torch.equal(sampler.first.detach(), kept)
    far = items - kept[sampler.tables["cluster"] // K]
    nearest = torch.cdist(items, kept).amin(1)
    torch.testing.assert_close(far.norm(dim=1), nearest, atol=1e-4, rtol=0)


def test_queries_and_items_get_no_gradient_from_the_codebooks():
    items, queries = problem()
    sampler = LearnableMIDXSampler(N, D, codewords=K)
    sampler.refresh(items)
    items.requires_grad_()
    queries.requires_grad_()
    found = sampler.codebook_loss(queries, items)
    (found.kl + found.reconstruction).backward()
    assert items.grad is None
    assert queries.grad is None
    assert sampler.first.grad is not None


def test_wrong_input_raises_a_sentence():
    items, queries = problem()
    sampler = LearnableMIDXSampler(N, D, codewords=K)
    with pytest.raises(InputError, match="bias"):
        sampler.refresh(items, bias=torch.zeros(N))
    with pytest.raises(InputError, match="dimensions"):
        sampler.refresh(items[:, :4])
    sampler.refresh(items)
    with pytest.raises(InputError, match="two draws"):
        sampler.codebook_loss(queries, items, 1)
    with pytest.raises(InputError, match="items have shape"):
        sampler.codebook_loss(queries, items[:3])
