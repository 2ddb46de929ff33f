"""Runs end when their validation no longer improves, and learning rates end at zero."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from experiments import learned_similarity
from experiments.harness.command import Task
from experiments.harness.costs import equal_time
from experiments.harness.results import MOST, drawn, table
from experiments.harness.runs import Run, Trainer
from experiments.harness.sequences import synthetic

VALUES = [0.1, 0.3, 0.2, 0.25, 0.2, 0.4, 0.5]


class Scripted(Trainer):
    """Has the validation metrics of a list; its only weight counts the steps."""

    steps = 2

    def __init__(self):
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        self.objective = torch.nn.Identity()
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1.0)

    def step(self, epoch, place):
        """Count."""
        return self.descend(-self.model.weight.sum())

    def validate(self):
        """The next value of the list."""
        return {"mrr": VALUES[round(self.model.weight.item()) // self.steps - 1]}

    def test(self):
        """The number of steps that the weights have behind them."""
        return {"mrr": self.model.weight.item()}


def task_of(patience):
    return Task(
        name="scripted",
        title="Scripted",
        settings={},
        make=lambda method, seed: Scripted(),
        metrics={"mrr": ("MRR", ".4f")},
        chosen_by="mrr",
        lower_is_better=False,
        methods={"one": "One"},
        patience=patience,
        columns={"letters": lambda method: str(len(method))},
    )


@pytest.mark.parametrize(("patience", "epochs", "best"), [(2, 4, 2), (3, 5, 2), (4, 7, 7), (None, 7, 7)])
def test_a_run_stops_after_its_patience_and_is_tested_with_its_best_weights(tmp_path, patience, epochs, best):
    run = Run(task_of(patience), "one", 0, tmp_path)
    run.train(len(VALUES))
    results = json.loads(run.results.read_text())
    assert (results["epochs"], results["best"]) == (epochs, best)
    assert results["test"]["mrr"] == 2 * best
    assert run.finished(len(VALUES))


def test_a_run_that_stopped_continues_with_more_patience(tmp_path):
    Run(task_of(2), "one", 0, tmp_path).train(len(VALUES))
    patient = Run(task_of(4), "one", 0, tmp_path)
    assert not patient.finished(len(VALUES))
    patient.train(len(VALUES))
    assert json.loads(patient.results.read_text())["best"] == 7


def test_the_table_has_the_columns_of_the_task(tmp_path):
    Run(task_of(2), "one", 0, tmp_path).train(len(VALUES))
    shown = table(task_of(2), tmp_path)
    assert shown.columns[:3] == ["method", "letters", "MRR"]
    assert shown.rows[0][:3] == ["One", "3", "4.0000"]


def test_learning_rates_fall_linearly_to_zero_and_a_fast_method_starts_higher():
    settings = {"users": 40, "items": 30} | learned_similarity.SMALL | {"decay": 4, "rate": 0.1, "item rate": 0.2}
    taken = synthetic(40, 30, 3)
    for method, multiple in (("sasrec-dot", 1), ("sasrec-dot@3", 3)):
        trainer = learned_similarity.SimilarityTrainer(taken, settings, method, 0)
        for epoch, left in ((0, 1.0), (1, 0.75), (3, 0.25), (4, 0.0)):
            trainer.step(epoch, 0)
            rates = [group["lr"] for group in trainer.optimiser.param_groups]
            assert rates == pytest.approx([0.1 * multiple * left, 0.2 * multiple * left])


def test_the_table_of_similarities_states_rank_and_parameters():
    task = learned_similarity.task_of(SimpleNamespace(data=None))
    method = "sasrec-cosine-equal"
    model = task.make(method, 0).model
    assert task.columns["rank"](method) == "24"
    assert task.columns["parameters"](method) == f"{sum(weights.numel() for weights in model.parameters()):,}"
    assert task.columns["rank"]("hstu-dot@3") == "16"


def test_a_plot_has_a_colour_for_each_method_and_shows_those_of_the_task_first():
    names = [f"method {place}" for place in range(MOST + 2)]
    task = replace(task_of(None), methods={name: name for name in names}, plotted=(names[-1],))
    few = {name: [{}] for name in names[:MOST]}
    assert drawn(task, few) == few
    many = {name: [{}] * (1 + place % 2) for place, name in enumerate(names)}
    shown = list(drawn(task, many))
    assert len(shown) == MOST
    assert names[-1] in shown
    assert {name for name in names if len(many[name]) == 2} <= set(shown)
    assert shown == [name for name in names if name in shown]


def test_methods_are_compared_at_the_time_at_which_the_cheapest_ends():
    task = replace(task_of(None), methods={"cheap": "Cheap", "dear": "Dear", "dearest": "Dearest"})
    history = [{"mrr": value} for value in (0.1, 0.2, 0.4)]
    runs = {method: [{"steps": 30, "epochs": 3, "history": history}] for method in task.methods}
    measured = {"cheap": (1.0, 0.0, 0), "dear": (1.0, 0.2, 0), "dearest": (4.0, 0.0, 0)}
    table = equal_time(task, runs, measured)
    # 30 seconds are 3 epochs of the first, 2.5 of the second and less than one of the third.
    assert [row[1:3] for row in table.rows] == [["3.0", "0.4000"], ["2.5", "0.3000"], ["0.8", "—"]]
