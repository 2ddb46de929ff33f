"""Every example runs on what it makes up when it is given no data, and training that is stopped goes on."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
ONE_EPOCH = ("--epochs", "1", "--threads", "1")
ARGUMENTS = {
    "mnist_head.py": ("--epochs", "1", "--queries", "100"),
    "language_model.py": ONE_EPOCH,
    "sequential_recommendation.py": ONE_EPOCH,
    "extreme_classification.py": (*ONE_EPOCH, "--labels", "2"),
}


def run_example(name, *arguments, folder):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(path, tmp_path):
    assert run_example(path.name, *ARGUMENTS.get(path.name, ()), folder=tmp_path)


def test_the_digits_are_classified(tmp_path):
    printed = run_example("mnist_head.py", "--epochs", "1", "--queries", "100", folder=tmp_path)
    rights = [float(line.split("right ")[1].split("%")[0]) for line in printed.splitlines()[1:]]
    assert len(rights) == 3
    assert min(rights) >= 80


def test_every_method_learns_more_of_a_text_than_its_size(tmp_path):
    run_example("language_model.py", "--threads", "1", "--page", "page.md", folder=tmp_path)
    found = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json")]
    perplexities = {run["method"]: run["test"]["perplexity"] for run in found}
    assert len(perplexities) == 6
    # Guessing among all words alike has their number as its perplexity.
    assert max(perplexities.values()) < found[0]["settings"]["words"] / 2
    assert min(perplexities.values()) < found[0]["settings"]["words"] / 6
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    for name in ("full softmax", "uniform", "unigram", "product codes", "residual codes", "weighted"):
        assert sum(name in line.split("|")[1] for line in page.splitlines() if line.startswith("|")) == 1
    assert (tmp_path / "figures" / "language-model.svg").read_text(encoding="utf-8").startswith("<svg")


def test_more_epochs_go_on_from_the_last_one_and_a_finished_run_is_left_alone(tmp_path):
    arguments = ("language_model.py", "--methods", "midx-rq", "--threads", "1", "--epochs")
    run_example(*arguments, "1", folder=tmp_path)
    further = run_example(*arguments, "2", folder=tmp_path)
    assert "goes on at epoch 2" in further
    assert "epoch 1," not in further
    assert "epoch 2" not in run_example(*arguments, "2", folder=tmp_path)
    whole = run_example(*arguments, "2", "--out", "whole", folder=tmp_path)
    assert [line for line in further.splitlines() if "test perplexity" in line] == [
        line for line in whole.splitlines() if "test perplexity" in line
    ]


@pytest.fixture
def shared(monkeypatch):
    """The examples' own package can be imported."""
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("method", ["full", "midx-beyond"])
def test_a_run_stopped_inside_an_epoch_ends_as_one_that_was_not(method, tmp_path, monkeypatch):
    import extreme_classification as example
    from comparing import runs
    from comparing.command import Task

    shown, labels = example.make_up(60, 30, 140, 2)
    parts = [(shown[:100], labels[:100]), (shown[100:120], labels[100:120]), (shown[120:], labels[120:])]
    settings = {"width": 8, "batch": 10, "draws": 5, "rate": 0.1}
    task = Task(
        name="made-up",
        title="Made up",
        settings=settings,
        make=lambda method, seed: example.Learner(parts, 30, 60, settings, method, seed, 4),
        metrics={"precision@1": ("P@1", ".4f")},
        chosen_by="precision@1",
        lower_is_better=False,
    )
    monkeypatch.setattr(runs, "EVERY", 0.0)
    for folder in ("stopped", "whole"):
        (tmp_path / folder).mkdir()
    stopped, whole = (runs.Run(task, method, 3, tmp_path / folder) for folder in ("stopped", "whole"))

    def stop(stage, done, total):
        if stage.endswith("epoch 2") and done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.train(2, stop)
    assert not stopped.finished(2)
    stopped.train(2)
    whole.train(2)
    assert stopped.finished(2)
    ends = [torch.load(run.checkpoint, weights_only=True)["model"] for run in (stopped, whole)]
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=0, atol=0)
    other = Task(**{**vars(task), "settings": settings | {"rate": 0.2}})
    with pytest.raises(SystemExit, match="other settings"):
        runs.Run(other, method, 3, tmp_path / "whole").finished(2)


@pytest.mark.usefixtures("shared")
def test_sasrec_sees_what_came_before_and_nothing_else():
    from comparing.sasrec import PADDING, SASRec

    torch.manual_seed(0)
    model = SASRec(20, width=8, length=6).eval()
    sequences = torch.tensor([[PADDING, PADDING, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]])
    later = sequences.clone()
    later[:, -1] = 7
    earlier = sequences.clone()
    earlier[:, 2] = 8
    found, after, before = model(sequences), model(later), model(earlier)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[:, :-1], after[:, :-1])
    assert (found[:, -1] - after[:, -1]).abs().max() > 1e-3
    assert (found[:, -1] - before[:, -1]).abs().amax(dim=1).min() > 1e-3


@pytest.mark.usefixtures("shared")
def test_a_kept_back_item_is_ranked_among_those_not_taken():
    import sequential_recommendation as example

    taken = [np.array([0, 1, 2, 3, 4]), np.array([5, 6, 7, 8])]
    learner = example.Recommender(taken, 9, example.SMALL, "full", 0, 4)
    with torch.no_grad():
        learner.model.items.weight.zero_()
    # All scores are equal: nothing is ranked above the item.
    assert set(learner.test().values()) == {1.0}
    assert learner.inputs[0].tolist()[-2:] == [0, 1]
    assert learner.targets[0].tolist()[-2:] == [1, 2]


def test_samplers_are_examined_on_the_trained_model(tmp_path):
    arguments = ("language_model.py", "--methods", "full", "--epochs", "1", "--threads", "1")
    run_example(*arguments, folder=tmp_path)
    printed = run_example(*arguments, "--diagnose", "--page", "page.md", folder=tmp_path)
    distance = {row.split("|")[1].strip(): float(row.split("|")[2]) for row in printed.splitlines()[4:]}
    assert distance["MIDX, weighted"] < distance["MIDX, residual codes"] < distance["uniform"]
    assert distance["two-level, sd-2ls"] < distance["uniform"]
    assert "figures/samplers.svg" in (tmp_path / "page.md").read_text(encoding="utf-8")
