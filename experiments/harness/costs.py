"""What a training step of each method costs, measured side by side, and what each learns in equal time."""

import statistics
import time

import numpy as np
import torch

from benchmarks.tables import Table, place
from experiments.harness.results import machine_note, read, spread

WARM, ROUNDS, STEPS = 4, 6, 5
"""Steps before measuring, rounds in which all methods take turns, and steps of each in a round."""
NEVER = 1 << 60
"""Steps between refreshes while steps are timed."""


def add_option(parser):
    """The option that measures costs."""
    parser.add_argument(
        "--costs", action="store_true", help="instead of training, measure steps, and compare the runs at equal time"
    )


def publish(task, options):
    """Print what a step of each of --methods costs, and what their runs in --out learned in equal time.

    With --page, both go between the marks `<task>-costs`.
    """
    torch.set_num_threads(options.threads)
    methods, every = options.methods.split(","), task.settings["refresh"]
    for method in methods:
        task.title_of(method)
    measured = costs(task, methods, every)
    body = [_cost_table(task, measured, every).markdown(), machine_note([options.threads])]
    runs = {method: group for method, group in read(task, options.out).items() if method in methods}
    if runs:
        body.append(equal_time(task, runs, measured).markdown())
    print("\n\n".join(body))
    if options.page is not None:
        place(options.page, options.section or f"{task.name}-costs", "\n" + "\n\n".join(body) + "\n")


def costs(task, methods, every):
    """By method, in this order: seconds of a step without refreshes, of a refresh spread over `every` steps, and bytes.

    The bytes are the peak of the loss's memory.  The methods take turns, so that the load of the machine is the same
    for all.
    """
    trainers = {method: task.make(method, 0) for method in methods}
    for trainer in trainers.values():
        _steps(trainer, 0, WARM)
        trainer.refresh = NEVER
    taken = {method: [] for method in methods}
    for turn in range(ROUNDS):
        for method, trainer in trainers.items():
            # A refresh is always due before step numbers that are powers of two: there are none from 129 to 255.
            first = 129 + turn * STEPS
            taken[method].append(_timed(lambda one=trainer, first=first: _steps(one, first, STEPS)) / STEPS)
    measured = {}
    for method, trainer in trainers.items():
        refresh = statistics.median(_timed(trainer.refresh_objective) for _ in range(3)) / every
        measured[method] = statistics.median(taken[method]), refresh, trainer.loss_memory()
    return measured


def _cost_table(task, measured, every):
    rows = []
    for method, (step, refresh, memory) in measured.items():
        shown = (1000 * step, 1000 * refresh, 1000 * (step + refresh), memory / 1e6)
        rows.append([task.title_of(method), *(f"{value:.1f}" for value in shown)])
    columns = ["method", "step, CPU ms", f"refresh / {every}, CPU ms", "both, CPU ms", "loss, peak MB"]
    return Table(f"{task.title}: cost of a step", columns, rows)


def equal_time(task, runs, measured):
    """The validation metric of each method at the time at which the first run ends, by the measured cost of a step.

    Between two epochs it is interpolated; before the first there is no value.
    """
    cost = {method: sum(measured[method][:2]) for method in runs}
    budget = min(cost[method] * run["steps"] for method, group in runs.items() for run in group)
    title, form = task.metrics[task.chosen_by]
    rows = []
    for method, group in runs.items():
        epochs = [budget / (cost[method] * run["steps"] / run["epochs"]) for run in group]
        reached = [_value_at(epoch, run, task.chosen_by) for epoch, run in zip(epochs, group, strict=True)]
        shown = "—" if None in reached else spread(reached, form)
        rows.append([task.title_of(method), f"{statistics.fmean(epochs):.1f}", shown, str(len(group))])
    columns = ["method", "epochs", f"{title}, validation", "seeds"]
    return Table(f"After {budget / 60:.1f} CPU minutes of training", columns, rows)


def _value_at(epoch, run, metric):
    values = [row[metric] for row in run["history"]]
    return None if epoch < 1 else float(np.interp(epoch, np.arange(1, len(values) + 1), values))


def _steps(trainer, first, count):
    for step in range(first, first + count):
        trainer.step(*divmod(step, trainer.steps))


def _timed(call):
    started = time.process_time()
    call()
    return time.process_time() - started
