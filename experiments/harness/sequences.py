"""Sequences of items per user, in order of time: the data of the sequence models, and how they are ranked."""

import gzip

import numpy as np
import torch

from experiments.harness.encoders import PADDING
from experiments.harness.runs import Trainer, shuffled


def read(path):
    """Items of each user, numbered from 0."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        taken = [np.array(line.split()[1:], np.int64) for line in lines]
    _, numbers = np.unique(np.concatenate(taken), return_inverse=True)
    return np.split(numbers, np.cumsum([len(items) for items in taken])[:-1])


def synthetic(users=800, items=300, kinds=15):
    """Synthetic users who prefer the kind of their last item; items differ in popularity, and none repeats."""
    rng = np.random.default_rng(0)
    liked = 1.0 / np.arange(1, items + 1) ** 0.7
    kind = np.arange(items) % kinds
    sequences = []
    for _ in range(users):
        chance, taken = liked.copy(), []
        for _ in range(rng.integers(5, 15)):
            near = np.where(kind == kind[taken[-1]], 50.0, 1.0) if taken else 1.0
            now = chance * near
            taken.append(rng.choice(items, p=now / now.sum()))
            chance[taken[-1]] = 0.0
        sequences.append(np.array(taken))
    return sequences


def load_sequences(path):
    """Items of each user, number of items, and name of the data set; synthetic data if path is None."""
    taken = synthetic() if path is None else read(path)
    name = "synthetic users" if path is None else path.name.split(".")[0]
    return taken, int(max(sequence.max() for sequence in taken)) + 1, name


def pad(sequences, length):
    """The newest items of each sequence, (b, length), padded on the left."""
    padded = np.full((len(sequences), length), PADDING)
    for row, items in zip(padded, sequences, strict=True):
        newest = items[-length:]
        row[length - len(newest) :] = newest
    return torch.from_numpy(padded)


def windows(sequences, length):
    """Inputs and targets (w, length): sequences cut into windows from the end, targets shifted by one item."""
    cuts = [items[max(0, end - length - 1) : end] for items in sequences for end in range(len(items), 1, -length)]
    return pad([cut[:-1] for cut in cuts], length), pad([cut[1:] for cut in cuts], length)


class SequenceTrainer(Trainer):
    """Trains on the sequences of users, without their last two items."""

    users_at_once = 1024
    """Users ranked at once."""

    def __init__(self, taken, items, settings, seed):
        self.seed, self.batch, self.length = seed, settings["batch"], settings["length"]
        self.taken = [sequence for sequence in taken if len(sequence) > 3]
        self.validated = self.taken
        self.inputs, self.targets = windows([sequence[:-2] for sequence in self.taken], self.length)
        self.frequencies = torch.bincount(self.targets[self.targets != PADDING], minlength=items)
        self.steps = -(-len(self.inputs) // self.batch)

    def examples(self, epoch, place):
        """Inputs and targets of the next windows in the order of this epoch."""
        rows = shuffled(len(self.inputs), self.seed, epoch)[place * self.batch : (place + 1) * self.batch]
        return self.inputs[rows], self.targets[rows]

    def scores(self, sequences):
        """Scores (b, n) of all items as the next item of padded sequences (b, length)."""
        raise NotImplementedError

    def metrics(self, ranks):
        """Metrics by name, from the ranks (b,), counted from 0, of the wanted items."""
        raise NotImplementedError

    def validate(self):
        """Metrics of the second to last item of the validation users."""
        return self.metrics(self.ranks(self.validated, 2))

    def test(self):
        """Metrics of the last item of each user."""
        return self.metrics(self.ranks(self.taken, 1))

    @torch.no_grad()
    def ranks(self, taken, back):
        """Number of items (b,) that score higher than the item `back` places before the end of each sequence."""
        self.model.eval()
        ranks = []
        for begin in range(0, len(taken), self.users_at_once):
            part = taken[begin : begin + self.users_at_once]
            before = [sequence[:-back] for sequence in part]
            wanted = torch.tensor([sequence[-back] for sequence in part])[:, None]
            scores = self.scores(pad(before, self.length))
            score = scores.gather(1, wanted)
            users = np.repeat(np.arange(len(part)), [len(items) for items in before])
            scores[users, np.concatenate(before)] = -torch.inf
            ranks.append((scores > score).sum(dim=1))
        return torch.cat(ranks).double()
