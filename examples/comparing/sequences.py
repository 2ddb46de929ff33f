"""Users and the items they took, in the order of time: what the sequence models learn from and are judged by."""

import gzip

import numpy as np
import torch

from comparing.encoders import PADDING
from comparing.runs import Trainee, shuffled


def read(path):
    """The items of each user, numbered from 0."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        taken = [np.array(line.split()[1:], np.int64) for line in lines]
    _, numbers = np.unique(np.concatenate(taken), return_inverse=True)
    return np.split(numbers, np.cumsum([len(items) for items in taken])[:-1])


def make_up(users=800, items=300, kinds=15):
    """Users who stay with one kind of items for a while; items are liked unequally, and none is taken twice."""
    rng = np.random.default_rng(0)
    liked = 1.0 / np.arange(1, items + 1) ** 0.7
    kind = np.arange(items) % kinds
    found = []
    for _ in range(users):
        chance, taken = liked.copy(), []
        for _ in range(rng.integers(5, 15)):
            near = np.where(kind == kind[taken[-1]], 50.0, 1.0) if taken else 1.0
            now = chance * near
            taken.append(rng.choice(items, p=now / now.sum()))
            chance[taken[-1]] = 0.0
        found.append(np.array(taken))
    return found


def taken_and_called(path):
    """The items of each user, how many items there are, and the name of the set; a set made up where path is None."""
    taken = make_up() if path is None else read(path)
    name = "made-up users" if path is None else path.name.split(".")[0]
    return taken, int(max(sequence.max() for sequence in taken)) + 1, name


def padded(sequences, length):
    """(b, length): the newest items of each sequence, filled up on the left."""
    found = np.full((len(sequences), length), PADDING)
    for row, items in zip(found, sequences, strict=True):
        newest = items[-length:]
        row[length - len(newest) :] = newest
    return torch.from_numpy(found)


def windows(sequences, length):
    """Inputs and targets (w, length): sequences cut from their ends into pieces, every item after the one before it."""
    cuts = [items[max(0, end - length - 1) : end] for items in sequences for end in range(len(items), 1, -length)]
    return padded([cut[:-1] for cut in cuts], length), padded([cut[1:] for cut in cuts], length)


class SequenceTrainee(Trainee):
    """Learns what comes next in the sequences of users, of which the last two items are kept back."""

    users_at_once = 1024
    """Users whose items are ranked at once."""

    def __init__(self, taken, items, settings, seed):
        self.seed, self.batch, self.length = seed, settings["batch"], settings["length"]
        self.taken = [sequence for sequence in taken if len(sequence) > 3]
        self.validated = self.taken
        self.inputs, self.targets = windows([sequence[:-2] for sequence in self.taken], self.length)
        self.frequencies = torch.bincount(self.targets[self.targets != PADDING], minlength=items)
        self.steps = -(-len(self.inputs) // self.batch)

    def examples(self, epoch, place):
        """The next windows of the order that belongs to this epoch, and what comes after each place of them."""
        rows = shuffled(len(self.inputs), self.seed, epoch)[place * self.batch : (place + 1) * self.batch]
        return self.inputs[rows], self.targets[rows]

    def scores(self, sequences):
        """(b, n) scores of all items for what comes after padded sequences (b, length)."""
        raise NotImplementedError

    def figures(self, ranks):
        """Figures by name of the ranks (b,), from 0, of what users took."""
        raise NotImplementedError

    def validate(self):
        """Where the last item but one of each user that is validated on is ranked."""
        return self.figures(self.ranks(self.validated, 2))

    def test(self):
        """Where the last item of each user is ranked."""
        return self.figures(self.ranks(self.taken, 1))

    @torch.no_grad()
    def ranks(self, taken, back):
        """(b,) from 0: how many items score more than the one that stands so far back in each sequence."""
        self.model.eval()
        ranks = []
        for begin in range(0, len(taken), self.users_at_once):
            part = taken[begin : begin + self.users_at_once]
            before = [sequence[:-back] for sequence in part]
            wanted = torch.tensor([sequence[-back] for sequence in part])[:, None]
            scores = self.scores(padded(before, self.length))
            score = scores.gather(1, wanted)
            users = np.repeat(np.arange(len(part)), [len(items) for items in before])
            scores[users, np.concatenate(before)] = -torch.inf
            ranks.append((scores > score).sum(dim=1))
        return torch.cat(ranks).double()
