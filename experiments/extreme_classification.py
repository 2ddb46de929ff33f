"""Train a classifier over very many classes with the full softmax and with sampled ones, and compare precision.

    python -m experiments.extreme_classification --classes 100000 --out runs/classification
    python -m experiments.extreme_classification --data wikitext-2 --out runs/rare-words

With --data, a directory of texts as in experiments.language_model, the classes are the words that are not among the
2,000 most frequent, and the features of an example are the words around it.  Otherwise the data are synthetic: the
frequencies of classes follow a power law.  A class has some of the features of its family, so that only all of them
together tell it from its relatives; an example shows some of the features of its classes, among random ones.  --labels
gives an example several classes.  Repeat the command to continue an interrupted run.  Results of several commands add
up in one directory.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments.harness import costs, diagnosing
from experiments.harness.command import Task, add_settings, parser_of, perform, rated, replaced
from experiments.harness.contexts import contexts
from experiments.harness.methods import IndexSize, Objective, due
from experiments.harness.runs import Trainer, shuffled
from experiments.language_model import read as read_text

POOL, TYPICAL, NOISE = 16, 6, 4
"""Features of a family, how many of them a class has, and random features of an example."""
KEPT = 0.7
"""Probability that an example shows a feature of its class."""
FAMILY = 100
"""Classes per family."""
EXPONENT = 0.9
"""Exponent of the power law of class frequencies."""
SETTINGS = {"width": 128, "batch": 512, "draws": 50, "rate": 3e-3, "refresh": 10}
REPLACEABLE = {"width": int, "batch": int, "draws": int, "rate": float, "refresh": int}
"""Settings that the command line may replace."""
BLOCK = 256
"""Examples evaluated at once."""


def synthetic(classes, features, examples, labels):
    """Features (examples, f), padded with the number `features`, and labels (examples, labels)."""
    rng = np.random.default_rng(0)
    families = rng.integers(-(-classes // FAMILY), size=classes)
    shared = rng.integers(features, size=(families.max() + 1, POOL))
    typical = np.take_along_axis(shared[families], rng.random((classes, POOL)).argsort(axis=1)[:, :TYPICAL], axis=1)
    used = rng.permutation(1.0 / np.arange(1, classes + 1) ** EXPONENT)
    chosen = rng.choice(classes, (examples, labels), p=used / used.sum())
    shown = typical[chosen].reshape(examples, -1)
    shown = np.where(rng.random(shown.shape) < KEPT, shown, features)
    return np.concatenate([shown, rng.integers(features, size=(examples, NOISE))], axis=1), chosen


class Classifier(nn.Module):
    """The query of the output layer is the sum of the embeddings of an example's features."""

    def __init__(self, features, classes, width):
        super().__init__()
        self.features = nn.EmbeddingBag(features + 1, width, mode="sum", padding_idx=features)
        nn.init.normal_(self.features.weight, std=0.1)
        self.classes, self.bias = nn.Parameter(0.1 * torch.randn(classes, width)), nn.Parameter(torch.zeros(classes))

    def forward(self, shown):
        """Queries (b, d) of examples with features (b, f)."""
        return self.features(shown)


class ClassifierTrainer(Trainer):
    """Trains the classifier; of several labels each epoch uses one, chosen at random."""

    def __init__(self, parts, features, classes, settings, method, seed, codewords):
        self.seed, self.batch, self.codewords = seed, settings["batch"], codewords
        self.parts = [tuple(map(torch.from_numpy, part)) for part in parts]
        self.model = Classifier(features, classes, settings["width"])
        name, multiple = rated(method)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=multiple * settings["rate"])
        counts = np.bincount(parts[0][1].ravel(), minlength=classes)
        self.refresh = settings["refresh"]
        self.objective = Objective(name, counts, settings["draws"], IndexSize.refreshed(self.refresh, codewords))
        self.steps = -(-len(parts[0][0]) // self.batch)

    def step(self, epoch, place):
        """Train on the next examples in the order of this epoch."""
        if due(epoch * self.steps + place, self.refresh):
            self.refresh_objective()
        return self.descend(self.objective(*self.loss_inputs(epoch, place)))

    def refresh_objective(self):
        """Refresh the sampler, if there is one."""
        classes, bias = self.layer()
        self.objective.refresh(classes, bias=bias)

    def layer(self):
        """Classes (n, d) and their bias (n,)."""
        return self.model.classes, self.model.bias

    @torch.no_grad()
    def queries(self, part, count):
        """The first `count` queries (count, d) of a part of the data, and the first of their labels."""
        shown, labels = self.parts[part]
        return self.model(shown[:count]), labels[:count, 0]

    def loss_inputs(self, epoch, place):
        """Queries, targets, classes and their bias of the next examples."""
        shown, labels = self.parts[0]
        rows = shuffled(len(shown), self.seed, epoch)[place * self.batch : (place + 1) * self.batch]
        which = np.random.default_rng((self.seed, epoch, place)).integers(labels.shape[1], size=len(rows))
        return self.model(shown[rows]), labels[rows, which], *self.layer()

    def validate(self):
        """Precision of the best classes."""
        return self._measure(*self.parts[1])

    def test(self):
        """Precision of the best classes."""
        return self._measure(*self.parts[2])

    @torch.no_grad()
    def _measure(self, shown, labels):
        hits = []
        for begin in range(0, len(shown), BLOCK):
            queries = self.model(shown[begin : begin + BLOCK])
            best = torch.addmm(self.model.bias, queries, self.model.classes.T).topk(5).indices
            hits.append((best[:, :, None] == labels[begin : begin + BLOCK, None, :]).any(dim=2))
        hit = torch.cat(hits).double()
        return {f"precision@{k}": float(hit[:, :k].mean()) for k in (1, 3, 5)}


def load(options):
    """Features and labels for training, validation and test, the number of features, and that of classes."""
    evaluated = max(options.examples // 20, 100)
    if options.data is not None:
        texts, words = read_text(options.data)
        parts, classes = contexts(texts, words, (options.examples, evaluated, evaluated))
        return parts, words, classes
    features = max(options.classes // 5, 10)
    shown, labels = synthetic(options.classes, features, options.examples + 2 * evaluated, options.labels)
    cuts = [options.examples, options.examples + evaluated]
    return list(zip(np.split(shown, cuts), np.split(labels, cuts), strict=True)), features, options.classes


def main():
    """Compare the methods."""
    parser = parser_of(__doc__)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--labels", type=int, default=1, help="classes per example")
    parser.add_argument("--examples", type=int, default=5000, help="training examples")
    parser.add_argument("--data", type=Path, help="directory of train.txt, valid.txt and test.txt")
    costs.add_option(parser)
    diagnosing.add_option(parser)
    add_settings(parser, REPLACEABLE)
    options = parser.parse_args()
    settings = replaced(SETTINGS, options, REPLACEABLE)
    if options.data is not None and options.labels != 1:
        parser.error("a place in a text has one word; leave out --labels.")
    parts, features, classes = load(options)
    sizes = {"classes": classes, "features": features, "examples": len(parts[0][0]), "labels": options.labels}
    codewords = 64 if classes > 10_000 else 16
    kind = "synthetic classes" if options.data is None else f"rare words of {options.data.name}"
    task = Task(
        name="extreme-classification" if options.data is None else "rare-words",
        title=f"Extreme classification, {classes:,} {kind}",
        settings=sizes | settings,
        make=lambda method, seed: ClassifierTrainer(parts, features, classes, settings, method, seed, codewords),
        metrics={f"precision@{k}": (f"P@{k}", ".4f") for k in (1, 3, 5)},
        chosen_by="precision@1",
        lower_is_better=False,
    )
    perform(task, options, options.epochs or 3)


if __name__ == "__main__":
    main()
