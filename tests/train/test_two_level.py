"""A TwoLevelSampler draws from its live index, and serialises arrays only on request."""

import io

import pytest
import torch
from made_samplers import N, classes

from softindex import CorruptIndexError, Index, InputError
from softindex.train import TwoLevelSampler, diagnose


@pytest.fixture
def sampler():
    items, _, bias, _ = classes()
    sampler = TwoLevelSampler(N, clusters=9)
    sampler.refresh(items, bias=bias)
    return sampler


def test_the_index_is_live(sampler):
    assert isinstance(sampler.index, Index)
    assert sampler.index is sampler.index
    assert sampler.index.clusters == 9
    # Only the label: the index is not stored a second time as bytes.
    assert list(dict(sampler.tables.named_buffers())) == ["about"]


def test_a_state_dict_is_flat_and_loads_into_a_new_index(sampler):
    state = sampler.state_dict()
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other = TwoLevelSampler(N)
    other.load_state_dict(loaded)
    # The new index does not share memory with the state.
    for tensor in loaded.values():
        tensor.zero_()
    assert other.index is not sampler.index
    _, _, _, queries = classes()
    assert torch.equal(other.log_q(queries, torch.arange(N)), sampler.log_q(queries, torch.arange(N)))
    assert torch.equal(other.state_dict()["tables.about"], sampler.state_dict()["tables.about"])


def test_a_damaged_state_changes_nothing(sampler):
    state = sampler.state_dict()
    state["tables.offsets"] = state["tables.offsets"].clone().fill_(255)
    before = sampler.index
    with pytest.raises(CorruptIndexError):
        sampler.load_state_dict(state)
    assert sampler.index is before


def test_a_model_that_contains_it_is_saved_and_loaded(sampler):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), sampler)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)[1]
    _, _, _, queries = classes()
    assert torch.equal(other.log_q(queries, torch.arange(N)), sampler.log_q(queries, torch.arange(N)))


def spread_classes(n=2000, d=12):
    random = torch.Generator().manual_seed(3)
    centres = torch.randn(40, d, generator=random)
    items = centres[torch.randint(40, (n,), generator=random)] + 0.3 * torch.randn(n, d, generator=random)
    return items, torch.randn(64, d, generator=random), random


@pytest.mark.parametrize("method", ["s-2ls", "sd-2ls"])
def test_later_refreshes_stay_as_close_to_the_softmax_as_first_ones(method):
    items, queries, random = spread_classes()
    moving = TwoLevelSampler(len(items), method=method, threads=1)
    for _ in range(10):
        moving.refresh(items)
        items = items + 0.1 * torch.randn(items.shape, generator=random)
    moving.refresh(items)
    new = TwoLevelSampler(len(items), method=method, threads=1)
    new.refresh(items)
    assert moving.index.clusters == new.index.clusters
    later, first = (diagnose(one, queries, items, draws=5, generator=random).kl for one in (moving, new))
    assert later < 1.5 * first + 0.01
    total = torch.logsumexp(moving.log_q(queries, torch.arange(len(items))).double(), 1)
    torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-5)


def test_a_refresh_follows_classes_that_meet_in_one_point_and_part_again():
    items, queries, _ = spread_classes(300)
    softmax = torch.log_softmax(queries.double() @ items.double().T, 1)
    sampler, distances = TwoLevelSampler(len(items), threads=1), []
    for weights in (items, torch.zeros_like(items), items, items):
        sampler.refresh(weights)
        law = sampler.log_q(queries, torch.arange(len(items))).double()
        torch.testing.assert_close(law.exp().sum(1), torch.ones(len(queries)).double(), rtol=0, atol=1e-5)
        distances.append((softmax.exp() * (softmax - law)).sum(1).mean())
    first, apart, _, again = distances
    assert again < 2 * first < apart


def test_a_refresh_after_loading_starts_from_the_loaded_clusters(sampler):
    items, _, bias, queries = classes()
    other = TwoLevelSampler(N)
    other.load_state_dict(sampler.state_dict())
    for one in (sampler, other):
        one.refresh(1.1 * items, bias=bias)
    assert other.index.clusters == 9
    assert torch.equal(other.log_q(queries, torch.arange(N)), sampler.log_q(queries, torch.arange(N)))


def test_other_dimensions_get_new_clusters(sampler):
    items, _, _, queries = classes()
    sampler.refresh(items[:, :3])
    assert sampler.index.dim == 3
    assert sampler.log_q(queries[:, :3], torch.arange(N)).shape == (len(queries), N)


def test_a_bias_out_of_range_is_refused_by_its_own_name(sampler):
    items, _, bias, _ = classes()
    before = sampler.index
    with pytest.raises(InputError, match=r"^bias of class 0 is"):
        sampler.refresh(items, bias=bias - 1e9)
    assert sampler.index is before
