"""A TwoLevelSampler draws from its live index, and serialises arrays only on request."""

import io

import pytest
import torch
from made_samplers import N, classes

from softindex import CorruptIndexError, Index
from softindex.train import TwoLevelSampler


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
