"""Samplers stay close to the model while it trains, and training does not wait for them."""

import math
import threading

import pytest
import torch
from torch import nn

from softindex import InputError
from softindex.train import MIDXSampler, Refresher, SampledSoftmaxLoss, UniformSampler

N, D = 40, 3


def sampler_and_items():
    torch.manual_seed(0)
    items = nn.Parameter(torch.randn(N, D))
    sampler = MIDXSampler(N, codewords=4)
    sampler.refresh(items)
    return sampler, items


class Slow(MIDXSampler):
    """A sampler whose refresh waits to be let go on."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.go = threading.Event()

    def _fit(self, given):
        assert self.go.wait(30)
        return super()._fit(given)


def test_refreshes_after_a_number_of_steps():
    sampler, items = sampler_and_items()
    with Refresher(sampler, items, steps=3, background=False) as refresher:
        for step in range(1, 10):
            refresher.step()
            assert refresher.refreshes == step // 3


def test_refreshes_after_a_number_of_epochs():
    sampler, items = sampler_and_items()
    refresher = Refresher(sampler, items, epochs=2, background=False)
    for epoch in range(1, 7):
        refresher.step()
        refresher.epoch()
        assert refresher.refreshes == epoch // 2


def test_refreshes_when_the_effective_share_falls():
    sampler, items = sampler_and_items()
    refresher = Refresher(sampler, items, effective=0.5, background=False)
    for _ in range(50):
        refresher.step(effective=0.8)
    assert refresher.refreshes == 0
    for _ in range(50):
        refresher.step(effective=torch.tensor(0.1))
    # The next refresh waits until it has fallen again from what it was then.
    assert refresher.refreshes == 1
    with pytest.raises(InputError, match="effective"):
        refresher.step()


def test_noise_in_the_effective_share_is_not_a_fall():
    sampler, items = sampler_and_items()
    refresher = Refresher(sampler, items, effective=0.8, background=False)
    noise = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    for value in noise:
        refresher.step(effective=0.4 + 0.2 * value)
    assert refresher.refreshes == 0


def test_training_goes_on_while_tables_are_made():
    items = nn.Parameter(torch.randn(N, D))
    sampler = Slow(N, codewords=4)
    sampler.go.set()
    sampler.refresh(items)
    sampler.go.clear()
    old, queries = sampler.tables, torch.randn(2, D)
    with Refresher(sampler, items, steps=1) as refresher:
        before = sampler.log_q(queries, torch.arange(N))
        refresher.step()
        with torch.no_grad():
            items.mul_(math.nan)
        for _ in range(5):
            refresher.step()
            assert sampler.tables is old
            assert torch.equal(sampler.log_q(queries, torch.arange(N)), before)
        sampler.go.set()
        refresher.wait()
        # What it looked at is what the items were when it was due, not what they became meanwhile.
        assert refresher.refreshes == 1
        assert sampler.tables is not old
        assert bool(torch.isfinite(sampler.log_q(queries, torch.arange(N))).all())


@pytest.mark.parametrize("background", [False, True])
def test_nan_raises_and_the_old_tables_stay(background):
    sampler, items = sampler_and_items()
    old = sampler.tables
    with Refresher(sampler, items, steps=1, background=background) as refresher:
        good = items.detach().clone()
        with torch.no_grad():
            items[5] = math.nan
        with pytest.raises(InputError, match="row 5"):
            step_and_wait(refresher)
        assert sampler.tables is old
        with torch.no_grad():
            items.copy_(good)
        step_and_wait(refresher)
        assert sampler.tables is not old


def step_and_wait(refresher):
    refresher.step()
    refresher.wait()


def test_a_refresh_by_hand_is_not_replaced_by_an_older_one():
    items = nn.Parameter(torch.randn(N, D))
    sampler = Slow(N, codewords=4)
    sampler.go.set()
    sampler.refresh(items)
    sampler.go.clear()
    with Refresher(sampler, items, steps=1) as refresher:
        refresher.step()
        tables = MIDXSampler(N, codewords=4).fit(items * 2)
        sampler.install(tables)
        sampler.go.set()
        refresher.wait()
        assert sampler.tables is tables


def test_a_block_waits_for_a_running_refresh():
    sampler, items = sampler_and_items()
    old = sampler.tables
    with Refresher(sampler, items, steps=1) as refresher:
        refresher.step()
    assert sampler.tables is not old
    refresher.close()


@pytest.mark.parametrize("background", [False, True])
def test_a_closed_refresher_takes_no_more_reports(background):
    sampler, items = sampler_and_items()
    refresher = Refresher(sampler, items, steps=5, background=background)
    refresher.close()
    for report in (refresher.step, refresher.epoch, refresher.refresh):
        with pytest.raises(InputError, match="closed"):
            report()
    # Nothing is left to wait for, so the end of a block does not raise.
    with refresher:
        refresher.wait()


def test_steps_without_targets_do_not_count_for_the_effective_share():
    sampler, items = sampler_and_items()
    refresher = Refresher(sampler, items, effective=0.5, background=False)
    loss, queries = SampledSoftmaxLoss(sampler, draws=5), torch.randn(4, D)
    ignored = torch.full((4,), -100)
    for _ in range(50):
        loss(queries, ignored, items)
        refresher.step(queries, loss.effective, positives=ignored)
    for effective in (0.8, 0.1):
        for _ in range(50):
            refresher.step(effective=math.nan)
            refresher.step(effective=effective)
        assert refresher.refreshes == (effective == 0.1)


def test_queries_that_overflowed_are_forgotten():
    sampler, items = sampler_and_items()
    with Refresher(sampler, items, steps=1, background=False) as refresher:
        refresher.step(queries=torch.full((3, D), math.nan))
        refresher.step(queries=torch.tensor([[1.0, 2.0, 3.0], [1.0, math.inf, 3.0]]))
        assert refresher.refreshes == 2


def test_recent_queries_reach_the_sampler():
    seen = []

    class Asks(UniformSampler):
        def _fit(self, given):
            seen.append(given)
            return super()._fit(given)

    bias = nn.Parameter(torch.zeros(N))
    embedding = nn.Embedding(N, D)
    refresher = Refresher(
        Asks(N), embedding, frequencies=torch.ones(N), bias=lambda: bias * 2, steps=40, background=False
    )
    for step in range(40):
        refresher.step(queries=torch.full((10, 10, D), float(step)))
    items, frequencies, queries, given = seen[0]
    assert torch.equal(items, embedding.weight)
    assert items.data_ptr() != embedding.weight.data_ptr()
    assert bool((frequencies == 1).all())
    assert given.shape == (N,)
    assert queries.shape == (1024, D)
    assert float(queries.min()) > 20
    assert float(queries.max()) == 39


def test_queries_may_be_few_or_none():
    sampler, items = sampler_and_items()
    with Refresher(sampler, items, steps=1, background=False) as refresher:
        refresher.step(torch.zeros(0, D))
        refresher.step(torch.ones(2, 2, D), positives=torch.full((2, 2), -100))
        refresher.step(torch.ones(D), positives=torch.tensor(3))
        assert refresher.refreshes == 3


def test_a_wrong_step_raises_a_sentence_and_does_not_count():
    sampler, items = sampler_and_items()
    refresher = Refresher(sampler, items, steps=2, background=False)
    refresher.step()
    queries, positives = torch.randn(4, D), torch.tensor([0, -100, 2, 3])
    for given, words in (
        ({"queries": queries.numpy()}, "queries: got .*; expected a tensor"),
        ({"queries": torch.tensor(1.0)}, r"shape \(\); expected floats \(\.\.\., d\)"),
        ({"queries": queries[:, :0]}, r"shape \(4, 0\); expected floats"),
        ({"queries": queries.long()}, "queries are torch.int64"),
        ({"queries": queries, "positives": positives[:3]}, r"shape \(3,\); expected integers of shape \(4,\)"),
        ({"queries": queries, "positives": torch.zeros(4, 2).long()}, r"shape \(4, 2\); expected integers"),
        ({"queries": queries, "positives": positives.float()}, "positives are torch.float32"),
        ({"queries": queries, "positives": positives.tolist()}, "positives: got .*; expected a tensor"),
        ({"positives": positives}, "pass both or neither"),
        ({"effective": "x"}, "effective is 'x'; expected one number"),
        ({"effective": torch.ones(2)}, "effective is .*; expected one number"),
        ({"effective": True}, "effective is True"),
    ):
        with pytest.raises(InputError, match=words):
            refresher.step(**given)
    assert refresher.refreshes == 0
    refresher.step(queries, torch.tensor(0.5), positives=positives)
    assert refresher.refreshes == 1


def test_wrong_sources_raise_a_sentence():
    sampler, items = sampler_and_items()
    for given, words in (
        (("x", items), "sampler is 'x'; expected one of the samplers"),
        ((sampler, "x"), "items: got 'x'; expected a tensor"),
        ((sampler, nn.Sequential(nn.Linear(D, N))), "a module without a weight"),
    ):
        with pytest.raises(InputError, match=words):
            Refresher(*given, steps=1)
    with pytest.raises(InputError, match="bias: got 'x'; expected a tensor"):
        Refresher(sampler, items, bias="x", steps=1)
    with pytest.raises(InputError, match="items: got 'x'; expected a tensor"):
        Refresher(sampler, lambda: "x", steps=1, background=False).step()


def test_wrong_input_raises_a_sentence():
    sampler, items = sampler_and_items()
    for options, words in (({}, "when to refresh"), ({"steps": 0}, "steps"), ({"effective": 2.0}, "effective")):
        with pytest.raises(InputError, match=words):
            Refresher(sampler, items, **options)
