"""Search a trained mixture of logits with every method, and compare recall with processor time.

    python -m experiments.learned_similarity --data Beauty.txt.gz --methods sasrec-mol --out runs/similarity
    python -m experiments.retrieval_tradeoff --data Beauty.txt.gz --out runs/similarity --page page.md

The first command trains; this one takes the best weights so far of that run, whatever its settings.  It searches the
items of the data, and then the same items with perturbed copies: the vector of a random item plus Gaussian noise, with
half the standard deviation that the items have in each coordinate.  The queries are those of users before their last
item.  Recall is the share of the 100 best of brute force that a method returns, without excluding any item.
"""

import argparse
import textwrap
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.tables import Table, check_place, place
from experiments import learned_similarity
from experiments.harness.results import illustrate
from experiments.harness.runs import name_of
from experiments.harness.sequences import load_sequences, pad
from softindex import mol
from softindex.blocks import blocks
from softindex.errors import InputError
from softindex.evaluate.charts import Axis, Series, figure, plot
from softindex.evaluate.machine import machine
from softindex.evaluate.timing import take_turns

K = 100
WANTED = 0.99
"""Recall that a speed-up is quoted for."""
BATCH = 32
NOISE = 0.5
LOWEST = 1e-4
"""Smaller shares of missed items are drawn here: a logarithmic axis has no zero."""
GRID = (
    ("brute-force", None),
    ("two-pass", None),
    *(("average", count) for count in (200, 500, 1000, 2000, 4000, 8000, 16_000, 24_000, 32_000, 40_000, 64_000)),
    *(("per-embedding", count) for count in (20, 50, 100, 200, 500, 1000, 2000, 4000)),
    *(("clusters", count) for count in (200, 500, 1000, 2000, 4000, 6000, 8000, 16_000)),
    *(("combined", counts) for counts in ((20, 500), (50, 1000), (100, 2000), (200, 4000), (500, 16_000))),
)
"""Methods and their candidates; those of half of the items or more are left out, and those that do not reach K."""


def options_of():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="file of sequences or of ratings with times, plain or .gz")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="directory of the trained run")
    parser.add_argument("--method", default="sasrec-mol", help="a mixture of logits, as --methods of the training")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    parser.add_argument("--items", type=int, default=1_000_000, help="number of items to enlarge the set to")
    parser.add_argument("--queries", type=int, default=128)
    parser.add_argument("--page", type=Path, help="Markdown page for the tables and the figure")
    parser.add_argument("--section", default="retrieval-tradeoff", help="marked place in the page")
    return parser.parse_args()


def trained(options):
    """The trainer with the weights of its best epoch and with its own settings, and what it trained, in words."""
    checkpoint = options.out / f"{name_of(learned_similarity.name_of(options.data), options.method, options.seed)}.pt"
    if not checkpoint.exists():
        raise SystemExit(f"{checkpoint} does not exist; train it with experiments.learned_similarity first.")
    state = torch.load(checkpoint, weights_only=True)
    task = learned_similarity.task_with(options.data, trained_with := state["settings"])
    title = task.title_of(options.method)
    taken, items, name = load_sequences(options.data)
    if (trained_with["users"], trained_with["items"]) != (len(taken), items):
        raise SystemExit(f"{checkpoint} was trained on other data than {name}; pass --data of that run.")
    trainer = task.make(options.method, options.seed)
    trainer.model.load_state_dict(state["progress"]["best"])
    trainer.model.eval()
    return trainer, f"{title}, {name}, {len(state['progress']['history'])} epochs"


@torch.no_grad()
def queries_of(trainer, count):
    """Queries (count, d) of users, evenly spread over the file, before their last item."""
    places = np.linspace(0, len(trainer.taken) - 1, count).astype(int)
    queries = trainer.model.queries(pad([trainer.taken[place][:-1] for place in places], trainer.length))
    if hasattr(trainer.model.similarity, "mixture"):
        queries, _ = trainer.model.similarity.encode_queries(queries)
    return queries.numpy()


def enlarge(items, count):
    """Items (count, d): the given ones, then perturbed copies of random ones."""
    rng = np.random.default_rng(0)
    source = rng.integers(len(items), size=max(0, count - len(items)))
    noise = rng.standard_normal((len(source), items.shape[1]), dtype=np.float32)
    return np.concatenate([items, items[source] + NOISE * items.std(axis=0) * noise])


def reaches(function, queries):
    """Whether the lists of every query have K different items."""
    try:
        function(queries)
    except InputError:
        return False
    return True


def measure(index, queries):
    """Recall, milliseconds of processor time per query, items scored and proven results, by method and candidates."""

    def search(method, candidates):
        options = {} if candidates is None else {"candidates": candidates}
        return lambda part: index.top_k(part, K, method=method, threads=1, **options)

    grid = [one for one in GRID if one[1] is None or np.max(one[1]) < len(index) / 2]
    functions = {one: search(*one) for one in grid if one[0] != "per-embedding" or reaches(search(*one), queries)}
    batches = [queries[part] for part in blocks(len(queries), BATCH)]
    seconds = take_turns(functions, batches, stretch=1, clock=time.process_time)
    truth, measured = None, {}
    for one, function in functions.items():
        found = [function(part) for part in batches]
        ids = np.concatenate([part.ids for part in found])
        truth = ids if truth is None else truth
        common = [len(np.intersect1d(mine, best)) for mine, best in zip(ids, truth, strict=True)]
        measured[one] = {
            "recall": float(np.mean(common)) / K,
            "ms": 1e3 * float(np.median(seconds[one] / [len(part) for part in batches])),
            "scored": float(np.mean([part.items_scored.mean() for part in found])) / len(index),
            "proven": float(np.mean([part.proven.mean() for part in found])),
        }
    return measured


def table_of(measured, items, queries, seconds):
    """One row per method and number of candidates; seconds: what the index took to build."""
    whole = measured["brute-force", None]["ms"]
    rows = []
    for (method, candidates), one in measured.items():
        count = "" if candidates is None else " and ".join(f"{count:,}" for count in np.ravel(candidates))
        rows.append([method, count, f"{one['recall']:.4f}", f"{one['ms']:,.2f}", f"{whole / one['ms']:.1f}x",
                     f"{one['scored']:.2%}", f"{one['proven']:.0%}"])  # fmt: skip
    columns = ["method", "candidates", f"recall@{K}", "ms per query", "speed-up", "items scored", "proven"]
    return Table(f"{items:,} items, {queries} queries, built in {seconds:.1f} s", columns, rows)


def headline(measured, items):
    """The fastest method with the recall that was asked for, in a sentence."""
    whole = measured["brute-force", None]["ms"]
    able = {one: found["ms"] for one, found in measured.items() if found["recall"] >= WANTED}
    best = min(able, key=able.get)
    name = best[0] if best[1] is None else f"{best[0]} with {' and '.join(f'{n:,}' for n in np.ravel(best[1]))}"
    return f"{items:,} items: recall of at least {WANTED} at {whole / able[best]:.1f} times brute force ({name})."


def draw(by_size):
    """A panel for each number of items: the missed share of the best items against the time of a query."""
    names = list(dict.fromkeys(method for measured in by_size.values() for method, _ in measured))
    title, panels = "Recall against time", []
    for items, measured in by_size.items():
        lines = []
        for style, name in enumerate(names):
            points = {one: found for one, found in measured.items() if one[0] == name}
            x = np.array([found["ms"] for found in points.values()])
            y = np.maximum([1 - found["recall"] for found in points.values()], LOWEST)
            notes = [
                f"{name} {'' if count is None else count}: recall {found['recall']:.4f}, {found['ms']:.2f} ms"
                for (_, count), found in points.items()
            ]
            lines.append(Series(name, x, y, style, joined=len(x) > 1, notes=notes))
        across = Axis.around("ms per query", np.concatenate([one.x for one in lines]), log=True)
        down = Axis.around(f"share of the {K} best missed", np.array([LOWEST, 1.0]), log=True)
        text = f"Missed share against milliseconds, {items:,} items."
        panels.append((f"{items:,} items", plot(lines, across, down, title=title, text=text, rule=1 - WANTED)))
    return figure(panels, [(name, style) for style, name in enumerate(names)], title=title, text="One line per method.")


def main():
    """Measure both sets of items, print the tables, and write them with the figure into the page."""
    options = options_of()
    if options.page is not None:
        check_place(options.page, options.section)
    torch.set_num_threads(1)
    trainer, training = trained(options)
    queries, items = queries_of(trainer, options.queries), trainer.model.encoder.items.weight.detach().numpy()
    by_size, tables = {}, []
    for count in sorted({len(items), max(options.items, len(items))}):
        vectors, begin = enlarge(items, count), time.perf_counter()
        index = mol.build(trainer.model.similarity, vectors)
        seconds = time.perf_counter() - begin
        by_size[count] = measure(index, queries)
        del index
        tables.append(table_of(by_size[count], count, len(queries), seconds).markdown())
        print(tables[-1], flush=True)
    about = f"{training}. Processor time, one thread, batches of {BATCH}: {machine()}."
    lines = [headline(measured, count) for count, measured in by_size.items()]
    print(about, *lines, sep="\n")
    if options.page is not None:
        picture = illustrate(
            options.page, options.section, draw(by_size), "Missed share of the best items against time"
        )
        place(options.page, options.section, "\n" + "\n\n".join([textwrap.fill(about, 118), *tables, picture]) + "\n")


if __name__ == "__main__":
    main()
