"""What every plug-in builds on: a Refresher learns of the steps of somebody else's training loop."""

import re
import subprocess
import sys

import pytest
import torch

from softindex.errors import InputError
from softindex.train import MIDXSampler, Refresher, SampledSoftmaxLoss, UniformSampler
from softindex.train.plugins.watching import Watch

CLASSES, DIM = 200, 8
LIBRARIES = ("lightning", "pytorch_lightning", "transformers", "sentence_transformers", "rectools")


def watched(**when):
    torch.manual_seed(0)
    layer = torch.nn.Linear(DIM, CLASSES)
    loss = SampledSoftmaxLoss(MIDXSampler(CLASSES, codewords=8, residual="weighted"), draws=10, ignore_index=-1)
    return layer, loss, Watch(Refresher(loss.sampler, layer, background=False, **(when or {"steps": 3})), loss)


def call(loss, layer, targets=None):
    return loss(torch.randn(6, DIM), torch.arange(6) if targets is None else targets, layer)


def test_the_first_step_finds_tables():
    layer, loss, watch = watched()
    watch.begin()
    assert watch.refresher.refreshes == 1
    assert torch.isfinite(call(loss, layer))


def test_tables_of_a_checkpoint_are_kept():
    layer, loss, watch = watched()
    loss.sampler.refresh(layer)
    watch.begin()
    assert watch.refresher.refreshes == 0


def test_a_refresh_gets_the_queries_of_the_steps(monkeypatch):
    layer, loss, watch = watched()
    watch.begin()
    given = []
    fit = loss.sampler.fit
    monkeypatch.setattr(loss.sampler, "fit", lambda items, **data: given.append(data["queries"]) or fit(items, **data))
    for _ in range(3):
        # Of six queries two do not count: their target is the one that the loss ignores.
        call(loss, layer, torch.tensor([0, 1, -1, 3, -1, 5]))
        watch.step()
    assert [len(queries) for queries in given] == [3 * 4]


def test_calls_in_evaluation_mode_are_no_steps():
    layer, loss, watch = watched(effective=0.5)
    watch.begin()
    call(loss.eval(), layer)
    with pytest.raises(InputError, match="effective sample size"):
        watch.step()
    call(loss.train(), layer)
    watch.step()


def test_several_targets_and_keywords_are_understood():
    layer, loss, watch = watched(steps=1)
    watch.begin()
    loss(queries=torch.randn(4, DIM), positives=torch.randint(CLASSES, (4, 2)), items=layer)
    watch.step()
    assert watch.refresher.refreshes == 2


def test_a_loss_of_another_sampler_is_refused():
    sampler, other = UniformSampler(5), SampledSoftmaxLoss(UniformSampler(5))
    with pytest.raises(InputError, match="another sampler"):
        Watch(Refresher(sampler, steps=1), other)
    with pytest.raises(InputError, match=r"expected a softindex\.train\.Refresher"):
        Watch(sampler)
    with pytest.raises(InputError, match=r"expected a softindex\.train\.SampledSoftmaxLoss"):
        Watch(Refresher(sampler, steps=1), torch.nn.CrossEntropyLoss())


def test_without_its_library_a_plug_in_names_the_pip_line():
    lines = [
        "import importlib, sys",
        "from softindex.errors import MissingDependencyError",
        f"for name in {LIBRARIES}:",
        "    sys.modules[name] = None",
        "    try: importlib.import_module(f'softindex.train.plugins.{name}')",
        "    except MissingDependencyError as error: print(error)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == len(LIBRARIES)
    for line in done.stdout.splitlines():
        assert re.fullmatch(r"this plug-in needs .*; run pip install .*\.", line)
