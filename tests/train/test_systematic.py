"""Systematic draws each follow q, cover it evenly together, and estimate with the same mean and less variance."""

import math

import numpy as np
import pytest
import torch
from made_samplers import N, classes, fits, midx

from softindex.errors import MethodError
from softindex.train import SampledSoftmaxLoss, diagnose
from softindex.train.drawing import find_rest, spread_uniforms

RESIDUALS = ("uniform", "weighted", "exact", "oracle")


def pair(**options):
    """The same sampler with independent and with systematic draws, and queries."""
    items, frequencies, bias, queries = classes()
    made = [midx(drawing=drawing, **options) for drawing in ("independent", "systematic")]
    for sampler in made:
        sampler.refresh(items, frequencies=frequencies, queries=queries, bias=bias)
    return *made, queries


def reference(sampler, queries, uniforms):
    """The inverse of the cumulative distribution in float64, with the classes cluster by cluster."""
    order = sampler.tables["order"].numpy()
    q = np.exp(sampler.log_q(queries, torch.arange(N)).double().numpy())[:, order]
    sums = np.cumsum(q, axis=1)
    places = [
        np.searchsorted(row / row[-1], some, side="right") for row, some in zip(sums, uniforms.numpy(), strict=True)
    ]
    return order[np.array(places)]


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("quantizer", ["rq", "pq"])
def test_a_number_selects_the_class_at_its_place_in_the_cumulative_distribution(residual, quantizer):
    _, sampler, queries = pair(residual=residual, quantizer=quantizer)
    uniforms = torch.rand(len(queries), 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = sampler._law(queries).find(uniforms).numpy()
    # log_q is float32: a number within rounding of a border may select the neighbour.
    assert (found == reference(sampler, queries, uniforms)).mean() > 0.998


def test_every_interval_holds_its_share_of_the_numbers():
    uniforms = spread_uniforms(1000, 7, torch.Generator().manual_seed(0))
    assert float(uniforms.min()) >= 0
    assert float(uniforms.max()) < 1
    for low, high in ((0.0, 0.3), (0.25, 0.9), (0.5, 0.51)):
        inside = ((uniforms >= low) & (uniforms < high)).sum(1)
        assert int(inside.min()) >= math.floor(7 * (high - low))
        assert int(inside.max()) <= math.ceil(7 * (high - low))


def test_what_is_left_of_a_number_is_uniform_again():
    cumulative = torch.tensor([[0.0, 0.2, 0.2, 0.9, 1.0]], dtype=torch.float64)
    positions, rest = find_rest(cumulative, torch.tensor([[0.0, 0.1, 0.2, 0.55, 0.95]], dtype=torch.float64))
    assert positions.tolist() == [[1, 1, 3, 3, 4]]
    torch.testing.assert_close(rest, torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.5]], dtype=torch.float64))


@pytest.mark.parametrize("residual", RESIDUALS)
def test_every_class_is_drawn_as_often_as_expected_rounded_up_or_down(residual):
    _, sampler, queries = pair(residual=residual)
    drawn = sampler.sample(queries, 50, generator=torch.Generator().manual_seed(1))
    expected = 50 * sampler.log_q(queries, torch.arange(N)).double().exp()
    counts = torch.zeros_like(expected).scatter_add_(1, drawn.ids, torch.ones_like(drawn.ids, dtype=torch.float64))
    assert bool((counts >= torch.floor(expected - 1e-3)).all())
    assert bool((counts <= torch.ceil(expected + 1e-3)).all())


@pytest.mark.parametrize("mix", [0.0, 0.2])
@pytest.mark.parametrize("n", [1, 5])
def test_each_draw_by_itself_follows_q(n, mix):
    """With n = 1 this is a plain draw."""
    _, sampler, queries = pair(residual="weighted", unigram_mix=mix)
    drawn = sampler.sample(queries[:1].expand(20_000, -1), n, generator=torch.Generator().manual_seed(2))
    expected = sampler.log_q(queries[:1], torch.arange(N))[0].double().exp().numpy() * 20_000
    for place in range(n):
        assert fits(torch.bincount(drawn.ids[:, place], minlength=N).numpy().astype(float), expected)


def estimates(sampler, query, n, repeats=4000):
    """Estimates (repeats,) of Z of other logits than the sampler's, and (repeats, d) of the sum of their gradients."""
    items, _, bias, _ = classes()
    moved = items + 0.1 * torch.randn(items.shape, generator=torch.Generator().manual_seed(8))
    drawn = sampler.sample(query.expand(repeats, -1), n, generator=torch.Generator().manual_seed(3))
    logits = query[0] @ moved.T + bias
    weights = torch.exp(logits[drawn.ids].double() - drawn.log_q) / n
    exact = torch.exp(logits.double())
    return weights.sum(1), torch.einsum("rn,rnd->rd", weights, moved[drawn.ids].double()), exact, moved.double()


@pytest.mark.parametrize("residual", ["uniform", "weighted", "oracle"])
def test_sums_over_the_draws_are_unbiased_with_less_variance(residual):
    plain, systematic, queries = pair(residual=residual)
    spread = []
    for sampler in (plain, systematic):
        z, gradient, exact, moved = estimates(sampler, queries[:1], 20)
        # Five standard errors: a false alarm in a million.
        assert abs(float(z.mean() - exact.sum())) < 5 * float(z.std()) / 4000**0.5
        off = (gradient.mean(0) - exact @ moved).abs() / (gradient.std(0) / 4000**0.5)
        assert float(off.max()) < 5
        spread.append((float(z.var()), float(gradient.var(0).sum())))
    assert spread[1][0] < 0.9 * spread[0][0]
    assert spread[1][1] < 0.9 * spread[0][1]


def test_the_gradient_of_the_loss_has_less_error():
    plain, systematic, queries = pair(residual="weighted")
    items, _, bias, _ = classes()
    errors = [
        diagnose(one, queries, items, bias=bias, draws=20, repeats=200, generator=torch.Generator().manual_seed(0))
        for one in (plain, systematic)
    ]
    assert errors[0].kl == errors[1].kl
    assert errors[1].gradient_rmse < errors[0].gradient_rmse
    loss = SampledSoftmaxLoss(systematic, draws=20)
    assert math.isfinite(float(loss(queries, torch.arange(len(queries)), items, bias)))


def test_an_unknown_way_to_draw_is_refused():
    with pytest.raises(MethodError, match="drawing is 'stratified'"):
        midx(drawing="stratified")
