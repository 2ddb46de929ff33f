"""Every experiment runs on synthetic data, and an interrupted run continues."""

import json

import numpy as np
import pytest
import torch
from running import run_experiment

from experiments import extreme_classification, sequential_recommendation
from experiments.harness import runs
from experiments.harness.command import Task
from experiments.harness.methods import METHODS

ONE_EPOCH = ("--epochs", "1", "--threads", "1")
ARGUMENTS = {
    "language_model": ONE_EPOCH,
    "language_head": ONE_EPOCH,
    "digit_head": ("--epochs", "1", "--queries", "20", "--page", "page.md"),
    "table_age": ("--after", "5", "--threads", "1", "--page", "page.md"),
    "sequential_recommendation": ONE_EPOCH,
    "extreme_classification": (*ONE_EPOCH, "--labels", "2"),
    "simulated_shop": ("--repetitions", "2", "--decisions", "500", "--learning", "1000", "--epochs", "1"),
    "learned_similarity": (*ONE_EPOCH, "--methods", "sasrec-cosine,hstu-dot,sasrec-mol-plain,hstu-mol-tied"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_experiment_runs(name, tmp_path):
    assert run_experiment(name, *ARGUMENTS[name], folder=tmp_path)


def test_guarantees_are_measured_on_a_trained_head(tmp_path):
    run_experiment("language_head", *ONE_EPOCH, folder=tmp_path)
    measured = ("--measure", "--states", "8", "--page", "page.md")
    run_experiment("language_head", *measured, folder=tmp_path)
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("|")}
    for kind in ("deterministic", "exact"):
        assert rows[kind].count("100.0%") == 2
    # Guessing all 300 words with equal probability has their number as perplexity.
    assert float(page.split("perplexity ")[1].split(" ")[0]) < 150


def test_every_method_learns_more_of_a_text_than_its_size(tmp_path):
    every = ",".join(METHODS)
    run_experiment("language_model", "--methods", every, "--threads", "1", "--page", "page.md", folder=tmp_path)
    found = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json")]
    perplexities = {run["method"]: run["test"]["perplexity"] for run in found}
    assert perplexities.keys() == METHODS.keys()
    # Guessing all words with equal probability has their number as perplexity.
    assert max(perplexities.values()) < found[0]["settings"]["words"] / 2
    assert min(perplexities.values()) < found[0]["settings"]["words"] / 6
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    titles = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")]
    assert [titles.count(title) for title in METHODS.values()] == [1] * len(METHODS)
    assert (tmp_path / "figures" / "language-model.svg").read_text(encoding="utf-8").startswith("<svg")


def test_costs_are_measured_for_every_method(tmp_path):
    arguments = ("--costs", "--threads", "1", "--methods", "full,uniform,lsh,learned", "--page", "page.md")
    run_experiment("sequential_recommendation", *arguments, folder=tmp_path)
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("|")][2:]
    assert [row[0].strip() for row in rows] == ["full softmax", "uniform", "LSH", "MIDX, learned codebooks"]
    assert all(float(row[1]) > 0 and float(row[4]) > 0 for row in rows)


def test_rare_words_of_a_text_are_classes(tmp_path):
    words = np.random.default_rng(0).zipf(1.2, 60_000) % 4000
    for part, some in zip(("train", "valid", "test"), np.split(words, [50_000, 55_000]), strict=True):
        (tmp_path / f"{part}.txt").write_text(" ".join(map(str, some)), encoding="utf-8")
    arguments = (*ONE_EPOCH, "--data", ".", "--examples", "2000", "--methods", "unigram,full", "--page", "page.md")
    run_experiment("extreme_classification", *arguments, folder=tmp_path)
    runs_of = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("rare-words-*.json")]
    assert {run["method"] for run in runs_of} == {"unigram", "full"}
    assert all(run["settings"]["examples"] == 2000 and run["memory"] > 0 for run in runs_of)


def test_more_epochs_continue_and_a_finished_run_is_not_repeated(tmp_path):
    arguments = ("language_model", "--methods", "midx-rq", "--threads", "1", "--epochs")
    run_experiment(*arguments, "1", folder=tmp_path)
    further = run_experiment(*arguments, "2", folder=tmp_path)
    assert "continues at epoch 2" in further
    assert "epoch 1," not in further
    assert "epoch 2" not in run_experiment(*arguments, "2", folder=tmp_path)
    uninterrupted = run_experiment(*arguments, "2", "--out", "uninterrupted", folder=tmp_path)
    assert [line for line in further.splitlines() if "test perplexity" in line] == [
        line for line in uninterrupted.splitlines() if "test perplexity" in line
    ]


@pytest.mark.parametrize("method", ["full", "midx-beyond"])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(method, tmp_path, monkeypatch):
    shown, labels = extreme_classification.synthetic(60, 30, 140, 2)
    parts = [(shown[:100], labels[:100]), (shown[100:120], labels[100:120]), (shown[120:], labels[120:])]
    settings = {"width": 8, "batch": 10, "draws": 5, "rate": 0.1, "refresh": 10}
    task = Task(
        name="synthetic",
        title="Synthetic",
        settings=settings,
        make=lambda method, seed: extreme_classification.ClassifierTrainer(parts, 30, 60, settings, method, seed, 4),
        metrics={"precision@1": ("P@1", ".4f")},
        chosen_by="precision@1",
        lower_is_better=False,
    )
    monkeypatch.setattr(runs, "EVERY", 0.0)
    for folder in ("interrupted", "uninterrupted"):
        (tmp_path / folder).mkdir()
    interrupted, uninterrupted = (
        runs.Run(task, method, 3, tmp_path / folder) for folder in ("interrupted", "uninterrupted")
    )

    def stop(stage, done, total):
        if stage.endswith("epoch 2") and done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted.train(2, stop)
    assert not interrupted.finished(2)
    interrupted.train(2)
    uninterrupted.train(2)
    assert interrupted.finished(2)
    ends = [torch.load(run.checkpoint, weights_only=True)["model"] for run in (interrupted, uninterrupted)]
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=0, atol=0)
    other = Task(**{**vars(task), "settings": settings | {"rate": 0.2}})
    with pytest.raises(SystemExit, match="other settings"):
        runs.Run(other, method, 3, tmp_path / "uninterrupted").finished(2)


def test_a_kept_back_item_is_ranked_among_those_not_taken():
    taken = [np.array([0, 1, 2, 3, 4]), np.array([5, 6, 7, 8])]
    trainer = sequential_recommendation.Recommender(taken, 9, sequential_recommendation.SMALL, "full", 0, codewords=4)
    with torch.no_grad():
        trainer.model.items.weight.zero_()
    # All scores are equal: nothing is ranked above the item.
    assert set(trainer.test().values()) == {1.0}
    assert trainer.inputs[0].tolist()[-2:] == [0, 1]
    assert trainer.targets[0].tolist()[-2:] == [1, 2]


def test_samplers_are_diagnosed_on_the_trained_model(tmp_path):
    arguments = ("language_model", "--methods", "full", "--epochs", "1", "--threads", "1")
    run_experiment(*arguments, folder=tmp_path)
    printed = run_experiment(*arguments, "--diagnose", "--page", "page.md", folder=tmp_path)
    rows = [row.split("|") for row in printed.splitlines() if row.startswith("|")][2:]
    distance = {row[1].strip(): float(row[2]) for row in rows}
    assert distance["MIDX, weighted"] < distance["MIDX, residual codes"] < distance["uniform"]
    assert distance["two-level, sd-2ls"] < distance["uniform"]
    assert "figures/language-model-samplers.svg" in (tmp_path / "page.md").read_text(encoding="utf-8")
