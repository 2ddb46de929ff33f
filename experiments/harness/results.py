"""The results of all runs in a directory, as a table and a plot."""

import json
import statistics
import textwrap

import numpy as np

from benchmarks.tables import Table, place
from softindex.evaluate.charts import COLOURS, Axis, Series, figure, plot
from softindex.evaluate.machine import machine
from softindex.evaluate.output import write_output

MOST = len(COLOURS)
"""Methods in a plot: each has a colour of its own."""
FAR = 10.0
"""Where lower is better, values above this multiple of the lowest are drawn at the edge of the plot."""


def read(task, folder):
    """Finished runs of the task by method, in the order of its methods."""
    runs_of = {}
    for path in sorted(folder.glob(f"{task.name}-*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        if run["settings"] == task.settings:
            runs_of.setdefault(run["method"], []).append(run)
    return {method: runs_of[method] for method in sorted(runs_of, key=task.place_of)}


def table(task, folder):
    """One row per method: test metrics and training time."""
    columns = ["method", *task.columns, *(title for title, _ in task.metrics.values())]
    rows, found = [], read(task, folder)
    measured = all(run.get("memory") for group in found.values() for run in group)
    for method, runs in found.items():
        figures = [spread([run["test"][name] for run in runs], form) for name, (_, form) in task.metrics.items()]
        minutes = spread([run["seconds"] / 60 for run in runs], ".1f")
        step = spread([1000 * run["seconds"] / run["steps"] for run in runs], ".1f")
        epochs = "/".join(str(epochs) for epochs in sorted({run["epochs"] for run in runs}))
        memory = [f"{max(run['memory'] for run in runs) / 1e6:.1f}"] if measured else []
        described = [text(method) for text in task.columns.values()]
        rows.append([task.title_of(method), *described, *figures, epochs, minutes, step, *memory])
    costs = ["epochs", "training, CPU minutes", "step, CPU ms", *(["loss, peak MB"] if measured else [])]
    return Table(task.title, [*columns, *costs], rows)


def publish(task, folder, page, section):
    """Write the table and the plot between a section's marks in a page; the plot goes to figures/ beside the page."""
    runs = read(task, folder)
    threads = sorted({run["threads"] for group in runs.values() for run in group})
    body = [
        table(task, folder).markdown(),
        illustrate(page, section, draw(task, drawn(task, runs)), _caption(task)),
        textwrap.fill(_notes(task, runs), 118, break_on_hyphens=False),
        machine_note(threads),
    ]
    place(page, section, "\n" + "\n\n".join(body) + "\n")


def machine_note(threads):
    """The machine, and the numbers of torch threads that were used on it."""
    return textwrap.fill(f"Machine: {machine()}; torch threads: {', '.join(map(str, threads))}.", 118)


def _notes(task, runs):
    several = max(len(group) for group in runs.values()) > 1
    notes = [_settings(task), "Mean over the seeds ± standard deviation." if several else "One seed."]
    if _cut(task, runs):
        notes.append(f"Lines at the upper edge of the plot are above {FAR:g} times the lowest value.")
    if len(drawn(task, runs)) < len(runs):
        notes.append("Not all methods are in the plot.")
    notes.append("Times are processor time, including refreshes of the sampler but not evaluation.")
    if task.patience is None:
        notes.append("These are a few epochs on a 2-core CPU; not every run had converged.")
    else:
        notes.append(
            f"A run stops after {task.patience} epochs without a better validation {task.metrics[task.chosen_by][0]}, "
            "and is tested with the weights of the best epoch."
        )
    return " ".join(notes)


def drawn(task, runs):
    """The runs to draw, by method; if there are too many, those that the task plots, then those with most seeds."""
    if len(runs) <= MOST:
        return runs
    order = sorted(runs, key=lambda method: (method not in task.plotted, -len(runs[method]), task.place_of(method)))
    return {method: runs[method] for method in runs if method in order[:MOST]}


def illustrate(page, name, drawing, caption):
    """Write a drawing to figures/ beside a page, and return the Markdown that shows it."""
    picture = page.parent / "figures" / f"{name}.svg"
    picture.parent.mkdir(exist_ok=True)
    write_output(picture, drawing)
    return f"![{caption}](figures/{picture.name})"


def draw(task, runs):
    """Two panels: the validation metric that selects the epoch, by epoch and by processor time.

    Extreme values are cut off at the edge, because a failed method would squeeze all others together.
    """
    title, _ = task.metrics[task.chosen_by]
    series = {"epoch": [], "minutes of training": []}
    for style, method in enumerate(runs):
        shared = min(len(run["history"]) for run in runs[method])
        by_run = [[row[task.chosen_by] for row in run["history"][:shared]] for run in runs[method]]
        y = np.mean(by_run, axis=0)
        minutes = np.mean([[row["seconds"] / 60 for row in run["history"][:shared]] for run in runs[method]], axis=0)
        notes = [f"{task.title_of(method)}, epoch {epoch}: {value:.4g}" for epoch, value in enumerate(y, start=1)]
        for name, x in (("epoch", np.arange(1.0, shared + 1)), ("minutes of training", minutes)):
            series[name].append(Series(task.title_of(method), x, y, style, joined=True, notes=notes))
    panels = []
    for name, lines in series.items():
        by_epoch = name == "epoch"
        x = Axis.around(name, np.concatenate([one.x for one in lines]), log=not by_epoch, whole=by_epoch)
        values = np.concatenate([one.y for one in lines])
        y = Axis.around(title, values[~_far(task, values)], log=task.lower_is_better)
        panels.append((f"By {name}", plot(lines, x, y, title=_caption(task), text=f"By {name}.")))
    labels = [(task.title_of(method), style) for style, method in enumerate(runs)]
    return figure(panels, labels, title=_caption(task), text="One line per method.")


def _cut(task, runs):
    """Whether values are cut off at the edge of the plot."""
    values = [row[task.chosen_by] for group in runs.values() for run in group for row in run["history"]]
    return _far(task, np.array(values)).any()


def _far(task, values):
    """Which values (m,) are cut off."""
    return task.lower_is_better & (values > FAR * values.min())


def _caption(task):
    return f"{task.title}: {task.metrics[task.chosen_by][0]} on the validation set"


def _settings(task):
    words = {name: "yes" if value is True else value for name, value in task.settings.items()}
    shown = {name: value if isinstance(value, str) else f"{value:,}" for name, value in words.items()}
    return f"Settings: {', '.join(f'{name} {value}' for name, value in shown.items())}."


def spread(values, form):
    """The mean, with the standard deviation if there are several values."""
    mean = f"{statistics.fmean(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):{form}}"
