"""What a training step of each method costs: processor time and memory, measured side by side."""

import statistics
import time

from benchmarks.tables import Table

WARM, ROUNDS, STEPS = 4, 6, 5
"""Steps before measuring, rounds in which all methods take turns, and steps of each in a round."""
NEVER = 1 << 60
"""Steps between refreshes while steps are timed."""


def costs(task, methods, every):
    """A table of steps without refreshes, of refreshes spread over `every` steps, and of the peak of the loss's memory.

    The methods take turns, so that the load of the machine is the same for all.
    """
    trainers = {method: task.make(method, 0) for method in methods}
    for trainer in trainers.values():
        _steps(trainer, 0, WARM)
        trainer.refresh = NEVER
    taken = {method: [] for method in methods}
    for turn in range(ROUNDS):
        for method, trainer in trainers.items():
            # A refresh before a power of two is due at any rate: there is none from 129 to 255.
            first = 129 + turn * STEPS
            taken[method].append(_timed(lambda one=trainer, first=first: _steps(one, first, STEPS)) / STEPS)
    rows = []
    for method, trainer in trainers.items():
        refresh = statistics.median(_timed(trainer.refresh_objective) for _ in range(3))
        step = statistics.median(taken[method])
        shown = (1000 * step, 1000 * refresh / every, 1000 * (step + refresh / every), trainer.loss_memory() / 1e6)
        rows.append([task.title_of(method), *(f"{value:.1f}" for value in shown)])
    columns = ["method", "step, CPU ms", f"refresh / {every}, CPU ms", "both, CPU ms", "loss, peak MB"]
    return Table(f"{task.title}: cost of a step", columns, rows)


def _steps(trainer, first, count):
    for step in range(first, first + count):
        trainer.step(*divmod(step, trainer.steps))


def _timed(call):
    started = time.process_time()
    call()
    return time.process_time() - started
