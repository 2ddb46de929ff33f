"""Every sampler draws from the distribution that its log_q reports."""

import copy
import math

import numpy as np
import pytest
import torch
from made_samplers import MAKERS, B, N, classes, divergence, fits, refreshed

from softindex import InputError

TAKES_BIAS = ("midx", "two-level")


@pytest.mark.parametrize("name", MAKERS)
def test_log_q_sums_to_one(name):
    sampler, queries = refreshed(name)
    log_q = sampler.log_q(queries, torch.arange(N))
    assert log_q.shape == (B, N)
    torch.testing.assert_close(log_q.double().exp().sum(1), torch.ones(B, dtype=torch.float64), atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", MAKERS)
def test_draws_are_as_frequent_as_log_q_says(name):
    sampler, queries = refreshed(name)
    draws = 30_000
    drawn = sampler.sample(queries, draws, generator=torch.Generator().manual_seed(1))
    assert drawn.ids.shape == drawn.log_q.shape == (B, draws)
    log_q = sampler.log_q(queries, torch.arange(N))
    torch.testing.assert_close(drawn.log_q, log_q.gather(1, drawn.ids), atol=2e-5, rtol=0)
    for row in range(B):
        counts = torch.bincount(drawn.ids[row], minlength=N).double().numpy()
        assert fits(counts, log_q[row].double().exp().numpy() * draws)


def test_a_wrong_law_does_not_fit():
    counts = np.random.default_rng(0).multinomial(30_000, np.full(300, 1 / 300))
    assert fits(counts, np.full(300, 100.0))
    assert not fits(counts, np.linspace(80, 120, 300))


@pytest.mark.parametrize("name", MAKERS)
def test_shared_draws_are_from_the_mean_of_the_laws(name):
    sampler, queries = refreshed(name)
    draws = 30_000
    drawn = sampler.sample(queries, draws, shared=True, generator=torch.Generator().manual_seed(2))
    assert drawn.ids.shape == drawn.log_q.shape == (draws,)
    log_q = sampler.log_q(queries, torch.arange(N), shared=True)
    mixture = torch.logsumexp(sampler.log_q(queries, torch.arange(N)), 0) - math.log(B)
    torch.testing.assert_close(log_q, mixture, atol=2e-5, rtol=0)
    torch.testing.assert_close(drawn.log_q, log_q[drawn.ids], atol=2e-5, rtol=0)
    assert fits(torch.bincount(drawn.ids, minlength=N).double().numpy(), log_q.double().exp().numpy() * draws)


@pytest.mark.parametrize("name", MAKERS)
def test_a_saved_state_gives_the_same_law(name):
    sampler, queries = refreshed(name)
    other = MAKERS[name](N)
    other.load_state_dict(sampler.state_dict())
    assert torch.equal(other.log_q(queries, torch.arange(N)), sampler.log_q(queries, torch.arange(N)))
    first, second = (one.sample(queries, 50, generator=torch.Generator().manual_seed(3)) for one in (sampler, other))
    assert torch.equal(first.ids, second.ids)
    wrong = MAKERS[name](N + 1)
    with pytest.raises(InputError, match="num_items"):
        wrong.load_state_dict(sampler.state_dict())


@pytest.mark.parametrize("name", [name for name in MAKERS if not name.startswith("learnable")])
def test_casting_the_module_does_not_touch_the_law(name):
    """Only codebooks that are learned follow the dtype of the model, as parameters do."""
    sampler, queries = refreshed(name)
    before = sampler.log_q(queries, torch.arange(N))
    assert torch.equal(sampler.half().log_q(queries, torch.arange(N)), before)


@pytest.mark.parametrize("name", [name for name in MAKERS if name.startswith(TAKES_BIAS)])
def test_a_bias_changes_the_law_towards_the_softmax(name):
    items, _, bias, queries = classes()
    log_p = torch.log_softmax(queries @ items.T + 2 * bias, 1)
    sampler = MAKERS[name](N)
    _, frequencies, _, _ = classes()
    sampler.refresh(items, frequencies=frequencies)
    without = divergence(log_p, sampler.log_q(queries, torch.arange(N)))
    sampler.refresh(items, frequencies=frequencies, bias=2 * bias)
    assert divergence(log_p, sampler.log_q(queries, torch.arange(N))) < 0.9 * without


def test_autocast_does_not_round_the_law():
    sampler, queries = refreshed("midx rq uniform 0.0")
    before = sampler.log_q(queries, torch.arange(N))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sampler.log_q(queries, torch.arange(N)), before)


@pytest.mark.parametrize("name", MAKERS)
def test_a_copy_draws_the_same(name):
    sampler, queries = refreshed(name)
    first = sampler.sample(queries, 20, generator=torch.Generator().manual_seed(1))
    second = copy.deepcopy(sampler).sample(queries, 20, generator=torch.Generator().manual_seed(1))
    assert torch.equal(first.ids, second.ids)


@pytest.mark.parametrize("name", ["learnable rq", "lsh", "midx rq weighted 0.0"])
def test_other_dtypes_of_the_module_and_of_torch(name):
    items, frequencies, _, queries = classes()
    try:
        torch.set_default_dtype(torch.float64)
        sampler = MAKERS[name](N)
        sampler.refresh(items, frequencies=frequencies, queries=queries)
        for dtype in (torch.float64, torch.bfloat16):
            log_q = sampler.to(dtype).log_q(queries, torch.arange(N)).double()
            torch.testing.assert_close(log_q.exp().sum(1), torch.ones(B), atol=1e-5, rtol=0)
    finally:
        torch.set_default_dtype(torch.float32)
