"""Measure how the gradient of a sampled softmax goes wrong while the model moves away from the sampler's tables.

    python -m experiments.table_age --data wikitext-2 --page docs/training-results.md

Trains the model of experiments.language_model for --after steps with frequent refreshes, then stops refreshing.  At
some ages of the tables, gradients of a batch are computed with the full softmax and with 20 draws: from the tables of
that age, from new ones, and from the softmax itself.  Dropout is the same for all.
"""

import argparse
from pathlib import Path

import torch

from benchmarks.tables import Table, check_place, place
from experiments.harness.methods import IndexSize, Objective, due
from experiments.language_model import PUBLISHED, SMALL, LanguageTrainer, read, synthetic

NAME, TRAINED = "table-age", "midx-systematic"
AGES = (0, 10, 20, 50, 100, 200)
BATCHES = 2
"""Consecutive batches that each age is measured on."""
REFRESH = 20


def gradient(trainer, objective, batch, state):
    """The gradient of an objective on all weights, (weights,), for a batch that starts from a state of the LSTM."""
    trainer.state = state
    torch.manual_seed(batch)
    queries, targets = trainer.advance(batch % trainer.steps)
    torch.manual_seed(batch + 1)
    trainer.model.zero_grad()
    objective(queries, targets, trainer.model.words.weight, bias=trainer.model.bias).backward()
    return torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()])


def compare(trainer, objectives, batch):
    """Cosine of each gradient with that of the full softmax, by name, and the norm of each."""
    state = trainer.state
    found = {name: gradient(trainer, one, batch, state) for name, one in objectives.items()}
    trainer.state = state
    cosines = {name: torch.cosine_similarity(one, found["full"], 0).item() for name, one in found.items()}
    return cosines, {name: one.norm().item() for name, one in found.items()}


def objectives_of(trainer, codewords):
    """The full softmax and sampled ones: from the trainer's tables, from new tables, and from the softmax itself."""
    draws, counts = trainer.objective.sampled.draws, trainer.objective.counts
    names = ("full", "midx-beyond", TRAINED, "oracle")
    return {name: Objective(name, counts, draws, IndexSize(codewords, iterations=1)) for name in names} | {
        "old": trainer.objective
    }


def renew(trainer, objectives):
    """Refresh all tables except the trainer's own, starting from the trainer's."""
    new = objectives[TRAINED]
    new.recent = trainer.objective.recent
    new.sampled.sampler.install(trainer.objective.sampled.sampler.tables)
    for name in (TRAINED, "oracle"):
        objectives[name].refresh(trainer.model.words.weight, bias=trainer.model.bias)
    objectives["midx-beyond"].sampled.sampler.install(new.sampled.sampler.tables)


def measure(trainer, codewords, after):
    """Pairs of an age and what `compare` finds there."""
    found, objectives = [], objectives_of(trainer, codewords)
    for step in range(after + max(AGES) + BATCHES):
        age = step - after
        started = [begin for begin in AGES if begin <= age < begin + BATCHES]
        if age == 0 or (age < 0 and due(step, REFRESH)):
            trainer.objective.refresh(trainer.model.words.weight, bias=trainer.model.bias)
        if started:
            renew(trainer, objectives)
            found.append((started[0], compare(trainer, objectives, step)))
        queries, targets = trainer.advance(step % trainer.steps)
        loss = trainer.objective(queries, targets, trainer.model.words.weight, bias=trainer.model.bias)
        trainer.descend(loss, trainer.clip)
    return found


def table_of(found, after):
    """One row for each age: the means over its batches."""
    columns = ["age of the tables, steps", "full softmax, norm", "old tables, norm", "old tables, cosine"]
    columns += ["new tables, cosine", "new tables, systematic draws, cosine", "the softmax itself, cosine"]
    body = []
    for age in AGES:
        of_age = [numbers for start, numbers in found if start == age]
        shown = [(1, "full"), (1, "old"), (0, "old"), (0, "midx-beyond"), (0, TRAINED), (0, "oracle")]
        body.append(
            [str(age), *(f"{sum(one[kind][name] for one in of_age) / len(of_age):.3f}" for kind, name in shown)]
        )
    return Table(f"Gradients with 20 draws against those of the full softmax, after {after} steps", columns, body)


def main():
    """Train, measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory of train.txt, valid.txt and test.txt")
    parser.add_argument("--after", type=int, default=500, help="steps before the last refresh")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page", type=Path, help="Markdown page for the table")
    options = parser.parse_args()
    if options.page is not None:
        check_place(options.page, NAME)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    parts, words = synthetic() if options.data is None else read(options.data)
    codewords = 8 if options.data is None else 64
    settings = (SMALL if options.data is None else PUBLISHED) | {"refresh": REFRESH}
    trainer = LanguageTrainer(parts, words, settings, TRAINED, codewords)
    table = table_of(measure(trainer, codewords, options.after), options.after).markdown()
    print(table)
    if options.page is not None:
        place(options.page, NAME, f"\n{table}\n")


if __name__ == "__main__":
    main()
