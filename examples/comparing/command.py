"""The command line that the training examples share."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from comparing.methods import METHODS
from comparing.results import publish, table
from comparing.runs import Run
from softindex.evaluate.tables import check_place
from softindex.progress import reporting


@dataclass(frozen=True)
class Task:
    """What is trained and how it is judged."""

    name: str
    title: str
    settings: dict
    """What two runs must share to be compared."""
    make: Callable
    """From a method and a seed, the `Trainee`."""
    metrics: dict
    """The title and the format of each figure, by name."""
    chosen_by: str
    """The figure on the validation set that chooses the epoch."""
    lower_is_better: bool
    methods: dict = field(default_factory=lambda: METHODS)
    """The title of each method that can be trained, by its name on the command line."""


def parser_of(description, methods=tuple(METHODS)):
    """A parser with the options of every training example; methods: those trained where none are named."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of checkpoints and results")
    parser.add_argument("--methods", default=",".join(methods), help="which to train, with commas between")
    parser.add_argument("--epochs", type=int, help="in all; a run that was stopped goes on")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each method")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--page", type=Path, help="Markdown page to put the table and the plot into")
    return parser


def compare(task, options, epochs):
    """Train what is not trained yet, and show the results of all runs in the folder."""
    methods = options.methods.split(",")
    for method in methods:
        if method not in task.methods:
            raise SystemExit(f"There is no method {method}; choose from {', '.join(task.methods)}.")
    if options.page is not None:
        check_place(options.page, task.name)
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seed, options.seed + options.seeds):
        for method in methods:
            run = Run(task, method, seed, options.out)
            if not run.finished(epochs):
                with reporting(True) as report:
                    run.train(epochs, report)
    print(table(task, options.out).markdown())
    if options.page is not None:
        publish(task, options.out, options.page)
