"""Numbers at the edge of what samplers can hold, states that do not fit, and layers that jump."""

import pytest
import torch

from softindex import InputError
from softindex.train import (
    LearnableMIDXSampler,
    MIDXSampler,
    SampledSoftmaxLoss,
    SphereSampler,
    TwoLevelSampler,
    UnigramSampler,
    diagnose,
)

N, D = 40, 6


def vectors(n=N, d=D, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("residual", ["uniform", "weighted"])
def test_a_query_that_overflowed_gives_nan_and_disturbs_no_other(residual, value):
    items, queries = vectors(), vectors(3)
    sampler = MIDXSampler(N, codewords=4, residual=residual, drawing="systematic", threads=1)
    sampler.refresh(items)
    queries[1, 2] = value
    losses = SampledSoftmaxLoss(sampler, draws=3, reduction="none")(queries, torch.tensor([0, 1, 2]), items)
    assert torch.isfinite(losses).tolist() == [True, False, True]


def test_numbers_too_large_for_float32_are_refused():
    for call, words in (
        (lambda: SphereSampler(3).refresh(torch.full((3, 2), 1e39, dtype=torch.float64)), "items .* too large"),
        (lambda: SphereSampler(3).refresh(torch.ones(3, 2), bias=torch.full((3,), 1e160, dtype=torch.float64)), "bias"),
        (lambda: MIDXSampler(N).refresh(vectors(), queries=1e300 * vectors(5).double()), "queries .* too large"),
        (lambda: MIDXSampler(N).refresh(vectors(), bias=torch.ones(N, dtype=torch.complex64)), "real numbers"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    sampler = MIDXSampler(N, codewords=4, threads=1)
    sampler.refresh(vectors())
    for queries, positives in ((torch.zeros(2, 3, 0), torch.zeros(2, 3)), (vectors(1)[0], torch.tensor(1)), (1.0, 1)):
        with pytest.raises(InputError, match="queries have shape"):
            sampler.refresh(vectors(), queries=queries, positives=positives)
    with pytest.raises(InputError, match="overflow"):
        diagnose(sampler, 1e20 * vectors(4), 1e20 * vectors())


@pytest.mark.parametrize("codebooks", [2, 3])
@pytest.mark.parametrize("quantizer", ["rq", "pq"])
def test_a_refresh_follows_classes_that_shrink_or_grow_by_any_factor(codebooks, quantizer):
    sampler = MIDXSampler(N, codewords=4, codebooks=codebooks, quantizer=quantizer, threads=1)
    for scale in (1.0, 1e-20, 1e-30, 1e10, 1.0):
        sampler.refresh(scale * vectors())
        total = sampler.log_q(vectors(2) / scale, torch.arange(N)).double().exp().sum(1)
        torch.testing.assert_close(total, torch.ones(2).double(), rtol=0, atol=1e-5)


def test_a_state_of_other_codebooks_or_dimensions_changes_nothing():
    three = MIDXSampler(N, codewords=4, codebooks=3, threads=1)
    three.refresh(vectors())
    two = MIDXSampler(N, codewords=4, threads=1)
    with pytest.raises(InputError, match="codebooks 3 but this one has 2"):
        two.load_state_dict(three.state_dict())
    wide = LearnableMIDXSampler(N, D, codewords=4, threads=1)
    wide.refresh(vectors())
    narrow = LearnableMIDXSampler(N, 4, codewords=4, threads=1)
    narrow.refresh(vectors(d=4))
    before = narrow.log_q(vectors(2, 4), torch.arange(N))
    with pytest.raises(InputError, match="dim 6 but this one has 4"):
        narrow.load_state_dict(wide.state_dict())
    assert torch.equal(narrow.log_q(vectors(2, 4), torch.arange(N)), before)


def test_a_state_from_before_three_codebooks_still_loads():
    sampler = MIDXSampler(N, codewords=4, threads=1)
    sampler.refresh(vectors())
    state = sampler.state_dict()
    about = bytes(state["tables.about"].tolist()).replace(b'"codebooks": 2, ', b"")
    assert len(about) < len(state["tables.about"])
    state["tables.about"] = torch.tensor(list(about), dtype=torch.uint8)
    other = MIDXSampler(N, codewords=4)
    other.load_state_dict(state)
    assert torch.equal(other.log_q(vectors(2), torch.arange(N)), sampler.log_q(vectors(2), torch.arange(N)))


@pytest.mark.parametrize(
    ("make", "table"),
    [(TwoLevelSampler, "offsets"), (MIDXSampler, "order"), (MIDXSampler, "log_mass"), (UnigramSampler, "log_p")],
)
def test_a_state_without_one_of_its_tables_is_refused_and_changes_nothing(make, table):
    sampler = make(N)
    sampler.refresh(vectors(), frequencies=torch.arange(1, N + 1))
    state = sampler.state_dict()
    del state[f"tables.{table}"]
    other = make(N)
    other.refresh(vectors(seed=1), frequencies=torch.ones(N))
    before = other.log_q(vectors(2), torch.arange(N))
    with pytest.raises(InputError, match="not intact"):
        other.load_state_dict(state)
    assert torch.equal(other.log_q(vectors(2), torch.arange(N)), before)


def test_the_number_of_clusters_that_was_asked_for_stays():
    sampler = TwoLevelSampler(10, clusters=8, probes=6, threads=1)
    for _ in range(3):
        sampler.refresh(vectors(10))
        assert sampler.index.clusters == 8
        assert sampler.sample(vectors(2), 3).ids.shape == (2, 3)
    other = TwoLevelSampler(10, clusters=4, threads=1)
    other.load_state_dict(sampler.state_dict())
    other.refresh(vectors(10))
    assert other.index.clusters == 4


@pytest.mark.parametrize("steps", [1, 20])
def test_clusters_follow_a_layer_from_its_initialisation(steps):
    random = torch.Generator().manual_seed(1)
    centres = 1.5 * torch.randn(60, 16, generator=random)
    items = centres[torch.randint(60, (2000,), generator=random)] + 0.3 * torch.randn(2000, 16, generator=random)
    first, queries = 0.02 * torch.randn(2000, 16, generator=random), torch.randn(64, 16, generator=random)
    followed, new = (TwoLevelSampler(2000, method="s-2ls", threads=1) for _ in range(2))
    for step in range(steps + 1):
        followed.refresh(first + (items - first) * step / steps)
    new.refresh(items)
    late, early = (diagnose(one, queries, items, draws=5, generator=random).kl for one in (followed, new))
    assert late < 2.5 * early
