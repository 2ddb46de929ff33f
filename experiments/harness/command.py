"""The command line that all experiments share."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from benchmarks.tables import check_place
from experiments.harness import costs, diagnosing
from experiments.harness.methods import METHODS, PUBLISHED
from experiments.harness.results import publish, table
from experiments.harness.runs import Run
from softindex.progress import reporting


@dataclass(frozen=True)
class Task:
    """An experiment: what is trained, and how it is evaluated."""

    name: str
    title: str
    settings: dict
    """Settings that runs must have in common to be compared."""
    make: Callable
    """Function of a method and a seed that creates the `Trainer`."""
    metrics: dict
    """Title and format of each metric, by name."""
    chosen_by: str
    """Validation metric that selects the epoch."""
    lower_is_better: bool
    methods: dict = field(default_factory=lambda: METHODS)
    """Title of each available method, by its name on the command line."""
    patience: int | None = None
    """Epochs without a better validation metric after which a run stops; None to train all epochs."""
    columns: dict = field(default_factory=dict)
    """More columns of the table: functions of a method that return the text of its row, by title."""

    plotted: tuple = ()
    """Methods to draw if a plot has no room for all."""

    def title_of(self, method):
        """Title of a method in tables; SystemExit if there is no such method."""
        name, multiple = rated(method)
        if name not in self.methods:
            raise SystemExit(f"unknown method {name}; choose from {', '.join(self.methods)}.")
        return self.methods[name] if multiple == 1 else f"{self.methods[name]}, rate x {multiple:g}"

    def place_of(self, method):
        """Sorts methods as they stand in tables."""
        name, multiple = rated(method)
        return list(self.methods).index(name), multiple


def rated(method):
    """Name of a method and the multiple of the learning rate it is trained at: uniform@3 is uniform at 3 x the rate."""
    name, _, multiple = method.partition("@")
    try:
        return name, float(multiple or 1)
    except ValueError:
        raise SystemExit(f"{method} does not end in a multiple of the learning rate, such as {name}@3.") from None


def parser_of(description, methods=PUBLISHED):
    """A parser with the options of every experiment; `methods` are trained unless --methods names others."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="directory of checkpoints and results")
    parser.add_argument(
        "--methods",
        default=",".join(methods),
        help="methods to train, separated by commas; uniform@3: at three times the rate",
    )
    parser.add_argument("--epochs", type=int, help="total number; an interrupted run continues")
    parser.add_argument("--patience", type=int, help="stop a run after this many epochs without a better validation")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="runs per method, with consecutive seeds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page", type=Path, help="Markdown page for the table and the plot")
    parser.add_argument("--section", help="marks in the page, and name of the plot; by default those of the experiment")
    return parser


def add_settings(parser, kinds):
    """Options that replace settings, by their names and types; see `replaced`."""
    for name, kind in kinds.items():
        parser.add_argument(f"--{name}", type=kind, help=f"{name} instead of the one of the published results")


def replaced(settings, options, kinds):
    """The settings, with the values that the command line gave instead of theirs."""
    given = {name: getattr(options, name) for name in kinds}
    return settings | {name: value for name, value in given.items() if value is not None}


def perform(task, options, epochs):
    """Train and compare; or, where the command line asks for it, measure costs or diagnose samplers instead."""
    if getattr(options, "costs", False):
        costs.publish(task, options)
    elif getattr(options, "diagnose", False):
        diagnosing.publish(task, options)
    else:
        compare(task, options, epochs)


def compare(task, options, epochs):
    """Train the runs that are not finished, then print the results of all runs in the directory."""
    task = replace(task, patience=options.patience)
    methods = options.methods.split(",")
    for method in methods:
        task.title_of(method)
    section = options.section or task.name
    if options.page is not None:
        check_place(options.page, section)
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
        publish(task, options.out, options.page, section)
