"""Indexes of several sizes, and codebooks that learn."""

from argparse import Namespace

import pytest
import torch

from experiments.codewords import METHODS, task_of


@pytest.mark.parametrize("method", ["rq-8", "weighted-16", "rq-3x16", "weighted-4x8", "learned-64"])
def test_a_method_trains_an_index_of_its_size(method):
    torch.manual_seed(0)
    trainer = task_of(Namespace(data=None)).make(method, 0)
    losses = [trainer.step(0, place) for place in range(2)]
    assert all(loss > 0 for loss in losses)
    sampler = trainer.objective.sampled.sampler
    books, _, words = method.split("-")[1].rpartition("x")
    assert (sampler.codebooks, sampler.codewords) == (int(books or 2), int(words))
    learns = bool(list(trainer.objective.parameters()))
    assert learns == method.startswith("learned")
    if learns:
        before = sampler.first.detach().clone()
        trainer.step(0, 2)
        assert not torch.equal(before, sampler.first)


def test_every_size_of_the_publication_is_there():
    assert all(f"rq-{size}" in METHODS for size in (8, 16, 32, 64, 128))
