"""Sequences of items per user, in order of time: the data of the sequence models, and how they are ranked."""

import numpy as np
import torch

from experiments.harness.encoders import ITEM, PADDING
from experiments.harness.ratings import is_ratings, open_lines, read_ratings
from experiments.harness.runs import Trainer, shuffled


def read(path):
    """Items of each user, numbered from 0, from a file of sequences or of ratings."""
    if is_ratings(path):
        return items_of(read_ratings(path))
    with open_lines(path) as lines:
        taken = [np.array(line.split()[1:], np.int64) for line in lines]
    _, numbers = np.unique(np.concatenate(taken), return_inverse=True)
    return np.split(numbers, np.cumsum([len(items) for items in taken])[:-1])


def items_of(events):
    """Items of each user, from events (m, 3)."""
    return [sequence[:, ITEM] for sequence in events]


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
    """The newest items of each sequence, (b, length), or events (b, length, 3), padded on the left."""
    padded = np.full((len(sequences), length, *sequences[0].shape[1:]), PADDING)
    for row, items in zip(padded, sequences, strict=True):
        newest = items[-length:]
        row[length - len(newest) :] = newest
    return torch.from_numpy(padded)


def windows(sequences, length):
    """Inputs and targets (w, length): sequences cut into windows from the end, targets shifted by one item."""
    cuts = [items[max(0, end - length - 1) : end] for items in sequences for end in range(len(items), 1, -length)]
    return pad([cut[:-1] for cut in cuts], length), pad([cut[1:] for cut in cuts], length)


class SequenceTrainer(Trainer):
    """Trains on the sequences of users, without their last two items.

    taken: items of each user; events: the same with times and users, if the encoder is to see those.
    """

    users_at_once = 1024
    """Users ranked at once."""

    def __init__(self, taken, items, settings, seed, events=None):
        self.seed, self.batch, self.length = seed, settings["batch"], settings["length"]
        self.taken, self.events = (
            [sequence for sequence in sequences if len(sequence) > 3] for sequences in (taken, events or taken)
        )
        self.validated = range(len(self.taken))
        self.inputs, _ = windows([sequence[:-2] for sequence in self.events], self.length)
        _, self.targets = windows([sequence[:-2] for sequence in self.taken], self.length)
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
        return self.metrics(self.ranks(range(len(self.taken)), 1))

    @torch.no_grad()
    def ranks(self, users, back):
        """Number of items (b,) that score higher than the item `back` places before the end of each user's sequence."""
        self.model.eval()
        ranks = []
        for begin in range(0, len(users), self.users_at_once):
            part = users[begin : begin + self.users_at_once]
            before = [self.taken[user][:-back] for user in part]
            wanted = torch.tensor([self.taken[user][-back] for user in part])[:, None]
            scores = self.scores(pad([self.events[user][:-back] for user in part], self.length))
            score = scores.gather(1, wanted)
            rows = np.repeat(np.arange(len(part)), [len(items) for items in before])
            scores[rows, np.concatenate(before)] = -torch.inf
            ranks.append((scores > score).sum(dim=1))
        return torch.cat(ranks).double()
