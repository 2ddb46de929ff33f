"""Train a classifier over very many classes with the full softmax and with sampled ones, and compare its precision.

    python examples/extreme_classification.py --classes 100000 --out runs/classification

The set is made up.  Classes are used unequally, by a power law; each has some features of its own and some of its
family, and an example shows a part of those of its classes among others that mean nothing.  --labels gives an example
several classes.  A run that is stopped goes on where it was when the command is given again, and results of several
commands add up in one folder.
"""

import numpy as np
import torch
from torch import nn

from comparing.command import Task, compare, parser_of
from comparing.methods import Objective, due
from comparing.runs import Trainee, shuffled

OWN, SHARED, NOISE = 3, 6, 4
"""Features of a class, features of its family, and features of an example that mean nothing."""
KEPT = 0.7
"""The chance that an example shows a feature of its class."""
FAMILY = 100
"""Classes in a family."""
LAW = 0.9
"""The power of the law by which classes are used."""
SETTINGS = {"width": 128, "batch": 512, "draws": 50, "rate": 3e-3}
REFRESH = 50
"""Steps between looks of the sampler at the layer."""
BLOCK = 256
"""Examples measured at once."""


def make_up(classes, features, examples, labels):
    """Features (e, f), filled up with `features`, and labels (e, labels) of that many examples."""
    rng = np.random.default_rng(0)
    families = rng.integers(-(-classes // FAMILY), size=classes)
    shared = rng.integers(features, size=(families.max() + 1, SHARED))
    typical = np.concatenate([rng.integers(features, size=(classes, OWN)), shared[families]], axis=1)
    used = rng.permutation(1.0 / np.arange(1, classes + 1) ** LAW)
    chosen = rng.choice(classes, (examples, labels), p=used / used.sum())
    shown = typical[chosen].reshape(examples, -1)
    shown = np.where(rng.random(shown.shape) < KEPT, shown, features)
    return np.concatenate([shown, rng.integers(features, size=(examples, NOISE))], axis=1), chosen


class Classifier(nn.Module):
    """The sum of the vectors of an example's features is the query of the output layer."""

    def __init__(self, features, classes, width):
        super().__init__()
        self.features = nn.EmbeddingBag(features + 1, width, mode="sum", padding_idx=features)
        nn.init.normal_(self.features.weight, std=0.1)
        self.classes, self.bias = nn.Parameter(0.1 * torch.randn(classes, width)), nn.Parameter(torch.zeros(classes))

    def forward(self, shown):
        """(b, d) from the features (b, f) of examples."""
        return self.features(shown)


class Learner(Trainee):
    """The classifier over made-up examples; of several labels a step learns one, drawn anew in each epoch."""

    def __init__(self, parts, features, classes, settings, method, seed, codewords):
        self.seed, self.batch = seed, settings["batch"]
        self.parts = [tuple(map(torch.from_numpy, part)) for part in parts]
        self.model = Classifier(features, classes, settings["width"])
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=settings["rate"])
        counts = np.bincount(parts[0][1].ravel(), minlength=classes)
        self.objective = Objective(method, counts, settings["draws"], codewords)
        self.steps = -(-len(parts[0][0]) // self.batch)

    def step(self, epoch, place):
        """Learn from the next examples of the order that belongs to this epoch."""
        if due(epoch * self.steps + place, REFRESH):
            self.objective.refresh(self.model.classes, bias=self.model.bias)
        shown, labels = self.parts[0]
        rows = shuffled(len(shown), self.seed, epoch)[place * self.batch : (place + 1) * self.batch]
        which = np.random.default_rng((self.seed, epoch, place)).integers(labels.shape[1], size=len(rows))
        loss = self.objective(self.model(shown[rows]), labels[rows, which], self.model.classes, bias=self.model.bias)
        return self.descend(loss)

    def validate(self):
        """The share of labels among the best few classes."""
        return self._measure(*self.parts[1])

    def test(self):
        """The share of labels among the best few classes."""
        return self._measure(*self.parts[2])

    @torch.no_grad()
    def _measure(self, shown, labels):
        hits = []
        for begin in range(0, len(shown), BLOCK):
            queries = self.model(shown[begin : begin + BLOCK])
            best = torch.addmm(self.model.bias, queries, self.model.classes.T).topk(5).indices
            hits.append((best[:, :, None] == labels[begin : begin + BLOCK, None, :]).any(dim=2))
        found = torch.cat(hits).double()
        return {f"precision@{k}": float(found[:, :k].mean()) for k in (1, 3, 5)}


def main():
    """Compare the methods."""
    parser = parser_of(__doc__)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--labels", type=int, default=1, help="classes of an example")
    parser.add_argument("--examples", type=int, default=5000, help="examples to train with")
    options = parser.parse_args()
    classes, features, held = options.classes, max(options.classes // 5, 10), max(options.examples // 20, 100)
    shown, labels = make_up(classes, features, options.examples + 2 * held, options.labels)
    cuts = [options.examples, options.examples + held]
    parts = list(zip(np.split(shown, cuts), np.split(labels, cuts), strict=True))
    sizes = {"classes": classes, "features": features, "examples": options.examples, "labels": options.labels}
    codewords = 64 if classes > 10_000 else 16
    task = Task(
        name="extreme-classification",
        title=f"Extreme classification, {classes:,} made-up classes",
        settings=sizes | SETTINGS,
        make=lambda method, seed: Learner(parts, features, classes, SETTINGS, method, seed, codewords),
        metrics={f"precision@{k}": (f"P@{k}", ".4f") for k in (1, 3, 5)},
        chosen_by="precision@1",
        lower_is_better=False,
    )
    compare(task, options, options.epochs or 3)


if __name__ == "__main__":
    main()
