"""Samplers refuse wrong input in one sentence, and stay as they were."""

import math

import pytest
import torch
from made_samplers import MAKERS, B, D, N, classes, midx, refreshed

from softindex import InputError, MethodError
from softindex.train import (
    InBatchSampler,
    LearnableMIDXSampler,
    LSHSampler,
    MIDXSampler,
    NotRefreshedError,
    SphereSampler,
    TwoLevelSampler,
    UnigramSampler,
)


@pytest.mark.parametrize("name", [name for name in MAKERS if "uniform" not in name.split() or "midx" in name])
def test_use_before_refresh(name):
    sampler = MAKERS[name](N)
    if not sampler.needs_refresh:
        return
    with pytest.raises(NotRefreshedError, match="refresh"):
        sampler.sample(torch.zeros(1, D), 3)
    with pytest.raises(NotRefreshedError, match="refresh"):
        sampler.log_q(torch.zeros(1, D), torch.arange(3))


@pytest.mark.parametrize("name", MAKERS)
def test_nan_at_refresh_leaves_the_old_tables_in_use(name):
    sampler, queries = refreshed(name)
    before = sampler.log_q(queries, torch.arange(N))
    items, frequencies, _, _ = classes()
    items[17, 3] = math.nan
    with pytest.raises(InputError, match="row 17"):
        sampler.refresh(items, frequencies=frequencies)
    assert torch.equal(sampler.log_q(queries, torch.arange(N)), before)


def test_wrong_input_raises_a_sentence():
    sampler, queries = refreshed("midx rq uniform 0.0")
    items, frequencies, bias, _ = classes()
    for call, words in (
        (lambda: sampler.sample(queries, 0), "n is 0"),
        (lambda: sampler.sample(queries[0], 3), r"shape \(7,\)"),
        (lambda: sampler.sample(queries[:, :3], 3), "3 dimensions"),
        (lambda: sampler.sample(queries.long(), 3), "floating-point"),
        (lambda: sampler.log_q(queries, torch.tensor([N])), f"class {N}"),
        (lambda: sampler.log_q(queries, torch.tensor([-1])), "class -1"),
        (lambda: sampler.log_q(queries, torch.tensor([1.0])), "integers"),
        (lambda: sampler.log_q(queries, torch.zeros(B + 1, 2, dtype=torch.long)), "expected"),
        (lambda: sampler.log_q(queries, torch.zeros(B, 2, dtype=torch.long), shared=True), r"\(j,\)"),
        (lambda: sampler.sample(queries.to("meta"), 3), "meta"),
        (lambda: sampler.refresh(items[:-1]), "299 items"),
        (lambda: sampler.refresh(), "vectors"),
        (lambda: sampler.refresh(items, queries=queries[:, :2]), "2 dimensions"),
        (lambda: sampler.refresh(items, queries=queries * math.nan), "queries contain NaN"),
        (lambda: sampler.refresh(items * 2e37, queries=queries * 1e37), "too large"),
        (lambda: sampler.refresh(object()), "expected a tensor"),
        (lambda: MIDXSampler(N, unigram_mix="a"), "unigram_mix"),
        (lambda: sampler.refresh(items, frequencies=frequencies[:-1]), "frequencies"),
        (lambda: sampler.refresh(items, frequencies=-frequencies), "negative"),
        (lambda: sampler.refresh(items, frequencies=0 * frequencies), "all 0"),
        (lambda: sampler.refresh(items, bias=bias / 0), "infinity"),
        (lambda: UnigramSampler(N).refresh(items), "frequenc"),
        (lambda: UnigramSampler(N, power=math.nan), "power"),
        (lambda: InBatchSampler(N).refresh(items), "frequenc"),
        (lambda: MIDXSampler(0), "num_items"),
        (lambda: MIDXSampler(N, codewords=0), "codewords"),
        (lambda: MIDXSampler(N, unigram_mix=1.0), "unigram_mix"),
        (lambda: midx(unigram_mix=0.1).refresh(items), "frequenc"),
        (lambda: LSHSampler(N, bits=40), "bits"),
        (lambda: SphereSampler(N, alpha=-1), "alpha"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    for call, words in (
        (lambda: MIDXSampler(N, quantizer="opq"), "rq, pq"),
        (lambda: MIDXSampler(N, residual="none"), "uniform, weighted"),
        (lambda: TwoLevelSampler(N, method="exact"), "s-2ls"),
        (lambda: LearnableMIDXSampler(N, D, residual="exact"), "weighted"),
    ):
        with pytest.raises(MethodError, match=words):
            call()


def test_a_state_of_other_arguments_is_refused():
    sampler, _ = refreshed("midx rq uniform 0.0")
    others = {
        "codewords": midx(codewords=7),
        "quantizer": midx(quantizer="pq"),
        "residual": midx(residual="weighted"),
        "unigram_mix": midx(unigram_mix=0.1),
        "sampler": LearnableMIDXSampler(N, D, codewords=6),
    }
    for name, other in others.items():
        for strict in (True, False):
            with pytest.raises(InputError, match=name):
                other.load_state_dict(sampler.state_dict(), strict=strict)
        assert other.tables is None
