"""MIDX draws from the softmax of quantised classes, and comes closer to the softmax with what it is given."""

import math

import pytest
import torch
from made_samplers import B, D, N, classes, divergence, fits, midx

from softindex.train import MIDXSampler


def test_the_weighted_law_has_the_bias_exactly():
    items, _, bias, queries = classes()
    plain, biased = midx(residual="weighted"), midx(residual="weighted")
    plain.refresh(items)
    biased.refresh(items, bias=bias)
    difference = biased.log_q(queries, torch.arange(N)) - plain.log_q(queries, torch.arange(N)) - bias
    torch.testing.assert_close(difference, difference[:, :1].expand_as(difference), atol=1e-5, rtol=0)


@pytest.mark.parametrize("quantizer", ["rq", "pq"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_oracle_is_the_softmax(quantizer, with_bias):
    items, _, bias, queries = classes()
    sampler = midx(quantizer=quantizer, residual="oracle")
    sampler.refresh(items, bias=bias if with_bias else None)
    log_p = torch.log_softmax(queries @ items.T + (bias if with_bias else 0.0), 1)
    torch.testing.assert_close(sampler.log_q(queries, torch.arange(N)), log_p, atol=1e-5, rtol=0)


@pytest.mark.parametrize("quantizer", ["rq", "pq"])
def test_the_uniform_law_is_the_softmax_of_the_codewords(quantizer):
    items, _, _, queries = classes()
    sampler = midx(quantizer=quantizer)
    sampler.refresh(items)
    tables = sampler.tables
    near = tables["first"][tables["cluster"] // 6] + tables["second"][tables["cluster"] % 6]
    log_q = torch.log_softmax(queries @ near.T, 1)
    torch.testing.assert_close(sampler.log_q(queries, torch.arange(N)), log_q, atol=1e-5, rtol=0)
    # Theorem 5 of the paper: no log-probability is off by more than twice the largest product with a residual.
    log_p = torch.log_softmax(queries @ items.T, 1)
    residual = (queries @ (items - near).T).abs().amax(1)
    assert bool(((log_p - log_q).abs().amax(1) <= 2 * residual + 1e-5).all())
    assert bool(((log_p.exp() * (log_p - log_q)).sum(1) <= 2 * residual + 1e-5).all())


def test_a_product_quantizer_splits_the_coordinates():
    items, _, _, _ = classes()
    sampler = midx(quantizer="pq")
    sampler.refresh(items)
    assert bool((sampler.tables["first"][:, 4:] == 0).all())
    assert bool((sampler.tables["second"][:, :4] == 0).all())


def skewed(n=2000, d=16):
    """Classes whose frequency shows in the vectors, as in a trained model, and queries that see few directions."""
    random = torch.Generator().manual_seed(5)
    scale = torch.linspace(2.0, 0.05, d)
    queries = torch.randn(256, d, generator=random) * scale
    queries[:, 0] = 2.0
    items = torch.randn(n, d, generator=random)
    items[:, 0] = -torch.log1p(torch.arange(n)) / 2 + 0.1 * items[:, 0]
    frequencies = torch.softmax(queries @ items.T, 1).mean(0) * 1e6
    return items, frequencies, queries


def test_frequencies_queries_and_weights_each_come_closer_to_the_softmax():
    items, frequencies, queries = skewed()
    log_p = torch.log_softmax(queries @ items.T, 1)
    found = []
    for residual, given in (
        ("uniform", {}),
        ("uniform", {"frequencies": frequencies}),
        ("uniform", {"frequencies": frequencies, "queries": queries}),
        ("weighted", {"frequencies": frequencies, "queries": queries}),
    ):
        sampler = MIDXSampler(2000, codewords=16, residual=residual)
        sampler.refresh(items, **given)
        found.append(divergence(log_p, sampler.log_q(queries, torch.arange(2000))))
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] / 3


def test_fitted_weights_draw_each_class_as_often_as_the_softmax():
    items, frequencies, queries = skewed()
    sampler = MIDXSampler(2000, codewords=16, residual="weighted")
    sampler.refresh(items, frequencies=frequencies, queries=queries)
    drawn = sampler.log_q(queries, torch.arange(2000)).double().exp().mean(0)
    wanted = torch.softmax((queries @ items.T).double(), 1).mean(0)
    assert float((drawn - wanted).abs().sum()) / 2 < 0.01


@pytest.mark.parametrize(
    ("n", "d", "codewords"),
    [(1, 5, 8), (2, 1, 8), (3, 3, 64), (50, 1, 4), (50, 2, 200), (7, 7, 7)],
)
@pytest.mark.parametrize("quantizer", ["rq", "pq"])
@pytest.mark.parametrize("residual", ["uniform", "weighted", "exact", "oracle"])
def test_few_classes_many_codewords_odd_dimensions(n, d, codewords, quantizer, residual):
    items, frequencies, _, queries = classes(n, d)
    sampler = MIDXSampler(n, codewords=codewords, quantizer=quantizer, residual=residual)
    sampler.refresh(items, frequencies=frequencies, queries=queries)
    log_q = sampler.log_q(queries, torch.arange(n)).double()
    torch.testing.assert_close(log_q.exp().sum(1), torch.ones(B, dtype=torch.float64), atol=2e-6, rtol=0)
    drawn = sampler.sample(queries, 2000, generator=torch.Generator().manual_seed(0))
    for row in range(B):
        counts = torch.bincount(drawn.ids[row], minlength=n).double().numpy()
        assert fits(counts, log_q[row].exp().numpy() * 2000)


@pytest.mark.parametrize("residual", ["uniform", "weighted", "exact", "oracle"])
@pytest.mark.parametrize("scale", [1e-6, 300.0, 3e4])
def test_tiny_and_huge_logits(residual, scale):
    items, frequencies, _, queries = classes()
    sampler = midx(residual=residual)
    sampler.refresh(items, frequencies=frequencies, queries=queries * scale)
    log_q = sampler.log_q(queries * scale, torch.arange(N)).double()
    torch.testing.assert_close(log_q.exp().sum(1), torch.ones(B, dtype=torch.float64), atol=1e-3, rtol=0)
    drawn = sampler.sample(queries * scale, 100)
    assert bool(torch.isfinite(drawn.log_q).all())


def test_equal_classes_are_equally_likely():
    sampler = midx(50)
    sampler.refresh(torch.ones(50, D))
    log_q = sampler.log_q(torch.ones(1, D), torch.arange(50))
    torch.testing.assert_close(log_q, torch.full((1, 50), -math.log(50)), atol=1e-5, rtol=0)


def test_a_refresh_starts_from_the_last_codebooks():
    items, _, _, _ = classes()
    sampler = midx()
    sampler.refresh(items)
    codes = sampler.tables["cluster"].clone()
    sampler.refresh(items + 1e-4)
    assert float((sampler.tables["cluster"] == codes).float().mean()) > 0.6


def test_a_stale_index_weights_its_draws_correctly():
    items, _, _, queries = classes()
    sampler = midx()
    sampler.refresh(items)
    moved = items + 0.5 * torch.randn(N, D, generator=torch.Generator().manual_seed(9))
    drawn = sampler.sample(queries, 200_000, generator=torch.Generator().manual_seed(4))
    logits = queries @ moved.T
    estimate = torch.logsumexp(logits.gather(1, drawn.ids) - drawn.log_q, 1) - math.log(200_000)
    torch.testing.assert_close(estimate, torch.logsumexp(logits, 1), atol=0.03, rtol=0)


@pytest.mark.parametrize("shift", [-1e6, 1e6])
def test_a_bias_far_from_zero_keeps_the_law_normalised(shift):
    items, _, bias, queries = classes()
    sampler = midx(residual="weighted")
    sampler.refresh(items, bias=bias.double() + shift)
    total = sampler.log_q(queries, torch.arange(N)).double().exp().sum(1)
    torch.testing.assert_close(total, torch.ones(B, dtype=torch.float64), atol=1e-4, rtol=0)


def test_frequencies_of_any_size():
    items, _, _, _ = classes()
    frequencies = torch.logspace(-300, 300, N, dtype=torch.float64)
    for power in (0.5, 2.0):
        midx(frequency_power=power).refresh(items, frequencies=frequencies)


def test_scoring_all_classes_at_once_changes_nothing(monkeypatch):
    """Where many classes are scored, one matrix product takes the place of single scores."""
    items, _, _, queries = classes()
    sampler = midx(residual="exact")
    sampler.refresh(items)
    found = []
    for many in (0, 1 << 40):
        monkeypatch.setattr("softindex.train.codeword_law.MANY", many)
        ids = sampler.sample(queries, 50, generator=torch.Generator().manual_seed(1)).ids
        found.append((ids, sampler.log_q(queries, torch.arange(N))))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


def test_a_layer_stands_for_its_weight_and_bias():
    items, _, _, queries = classes()
    layer = torch.nn.Linear(D, N)
    with torch.no_grad():
        layer.weight.copy_(items)
    first, second = midx(), midx()
    first.refresh(layer)
    second.refresh(items, bias=layer.bias)
    assert torch.equal(first.log_q(queries, torch.arange(N)), second.log_q(queries, torch.arange(N)))


def test_one_iteration_of_kmeans_is_enough_to_follow_classes_that_move():
    items, frequencies, queries = skewed()
    moved = items + 0.3 * torch.randn(items.shape, generator=torch.Generator().manual_seed(6))
    log_p = torch.log_softmax(queries @ moved.T, 1)
    sampler = MIDXSampler(2000, codewords=16, residual="weighted", warm_iterations=1)
    sampler.refresh(items, frequencies=frequencies, queries=queries)
    before = divergence(log_p, sampler.log_q(queries, torch.arange(2000)))
    sampler.refresh(moved, frequencies=frequencies, queries=queries)
    after = divergence(log_p, sampler.log_q(queries, torch.arange(2000)))
    longer = MIDXSampler(2000, codewords=16, residual="weighted")
    longer.refresh(moved, frequencies=frequencies, queries=queries)
    assert after < 0.8 * before
    assert after < 1.1 * divergence(log_p, longer.log_q(queries, torch.arange(2000)))
