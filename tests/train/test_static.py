"""Samplers that ignore the query draw from the distribution they document."""

import math

import numpy as np
import pytest
import torch
from made_samplers import fits

from softindex import InputError
from softindex.train import InBatchSampler, LogUniformSampler, UniformSampler, UnigramSampler


def test_more_than_two_to_the_24_classes():
    n = 2**24 + 1000
    for sampler in (UniformSampler(n), LogUniformSampler(n)):
        drawn = sampler.sample(torch.zeros(1, 1), 200_000)
        assert int(drawn.ids.max()) < n
        assert bool((drawn.ids % 2 == 1).any())
    assert int(UniformSampler(n).sample(torch.zeros(1, 1), 400_000).ids.max()) > 2**24 - 1000
    last = LogUniformSampler(n).log_q(torch.zeros(1, 1), torch.tensor([n - 1]))
    assert float(last) == pytest.approx(math.log(math.log1p(1 / n) / math.log(n + 1)), abs=1e-5)
    frequencies = torch.ones(n)
    frequencies[-1] = n
    unigram = UnigramSampler(n)
    unigram.refresh(frequencies=frequencies)
    drawn = unigram.sample(torch.zeros(1, 1), 1000)
    assert 400 < int((drawn.ids == n - 1).sum()) < 600


def test_targets_of_the_batch_are_drawn_as_often_as_they_occur():
    random = torch.Generator().manual_seed(0)
    frequencies = torch.rand(20, generator=random) + 0.05
    sampler = InBatchSampler(20)
    sampler.refresh(frequencies=frequencies)
    counts, shared = torch.zeros(20), torch.zeros(20)
    law = sampler.log_q(torch.zeros(1, 1), torch.arange(20))[0].exp()
    torch.testing.assert_close(law, frequencies / frequencies.sum())
    for _ in range(500):
        positives = torch.multinomial(frequencies, 16, replacement=True, generator=random)
        drawn = sampler.sample(torch.zeros(16, 1), 4, positives=positives, generator=random)
        # One row of each batch: draws of several rows share targets and are no independent ones.
        counts += torch.bincount(drawn.ids[0], minlength=20)
        together = sampler.sample(torch.zeros(16, 1), 16, shared=True, positives=positives, generator=random)
        shared += torch.bincount(together.ids, minlength=20)
    assert fits(counts.double().numpy(), (law * counts.sum()).double().numpy())
    assert fits(shared.double().numpy(), (law * shared.sum()).double().numpy())


def test_a_class_never_seen_can_still_be_drawn():
    sampler = UnigramSampler(3)
    sampler.refresh(frequencies=torch.tensor([0.0, 5.0, 2.0]))
    torch.testing.assert_close(sampler.log_q(torch.zeros(1, 1), torch.arange(3))[0].exp(), torch.tensor([2, 5, 2]) / 9)


def test_targets_are_needed_to_draw_from_them():
    sampler = InBatchSampler(5)
    sampler.refresh(frequencies=torch.ones(5))
    for positives, words in (
        (None, "positives"),
        (torch.tensor([1]), "shape"),
        (torch.tensor([1, 5]), "class 5"),
    ):
        with pytest.raises(InputError, match=words):
            sampler.sample(torch.zeros(2, 1), 1, positives=positives)


def test_a_target_of_frequency_zero_is_refused():
    sampler = InBatchSampler(4)
    sampler.refresh(frequencies=torch.tensor([2.0, 0.0, 1.0, 1.0]))
    for shared in (False, True):
        with pytest.raises(InputError, match=r"class 1 .* frequency is 0"):
            sampler.sample(torch.zeros(3, 1), 2, shared=shared, positives=torch.tensor([0, 1, 2]))
        sampler.sample(torch.zeros(3, 1), 2, shared=shared, positives=torch.tensor([0, 3, 2]))


def test_a_query_alone_in_its_batch_gets_draws_by_frequency():
    frequencies = torch.tensor([1.0, 0.0, 3.0])
    sampler = InBatchSampler(3)
    sampler.refresh(frequencies=frequencies)
    for shared in (False, True):
        drawn = sampler.sample(torch.zeros(1, 1), 4000, shared=shared, positives=torch.tensor([2]))
        counts = torch.bincount(drawn.ids.flatten(), minlength=3).double().numpy()
        assert counts[1] == 0
        assert fits(counts[[0, 2]], np.array([1000.0, 3000.0]))
