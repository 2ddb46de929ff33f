"""Train SASRec to recommend the next item with the full softmax and with sampled ones, and compare what they rank.

    python examples/sequential_recommendation.py --data Beauty.txt.gz --seeds 3 --out runs/recommendation

A line of the file is a user, then the items that the user took, by number, in the order of time.  The last item of each
user is for testing and the one before it for validation.  All items are ranked, but for those the user took before.
Without --data sequences are made up.  A run that is stopped goes on where it was when the command is given again, and
results of several commands add up in one folder.
"""

import gzip
from pathlib import Path

import numpy as np
import torch

from comparing.command import Task, compare, parser_of
from comparing.methods import Objective, due
from comparing.runs import Trainee, shuffled
from comparing.sasrec import PADDING, SASRec

PUBLISHED = {
    "width": 64, "blocks": 2, "heads": 2, "length": 20, "dropout": 0.4, "batch": 64, "draws": 50, "rate": 2e-3,
}  # fmt: skip
SMALL = PUBLISHED | {"width": 16, "blocks": 1, "length": 10, "dropout": 0.1, "rate": 1e-2}
REFRESH = 200
"""Steps between looks of the sampler at the layer."""
BLOCK = 1024
"""Users measured at once."""


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


class Recommender(Trainee):
    """SASRec over the sequences of users, of which the last two items are kept back."""

    def __init__(self, taken, items, settings, method, seed, codewords):
        self.seed, self.batch, self.length = seed, settings["batch"], settings["length"]
        self.taken = [sequence for sequence in taken if len(sequence) > 3]
        self.inputs, self.targets = windows([sequence[:-2] for sequence in self.taken], self.length)
        shape = {name: settings[name] for name in ("width", "blocks", "heads", "length", "dropout")}
        self.model = SASRec(items, **shape)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=settings["rate"])
        counts = torch.bincount(self.targets[self.targets != PADDING], minlength=items)
        self.objective = Objective(method, counts, settings["draws"], codewords)
        self.steps = -(-len(self.inputs) // self.batch)

    def step(self, epoch, place):
        """Learn from the next windows of the order that belongs to this epoch."""
        self.model.train()
        if due(epoch * self.steps + place, REFRESH):
            self.objective.refresh(self.model.items.weight)
        rows = shuffled(len(self.inputs), self.seed, epoch)[place * self.batch : (place + 1) * self.batch]
        targets = self.targets[rows]
        wanted = targets != PADDING
        queries = self.model(self.inputs[rows])[wanted]
        loss = self.objective(queries, targets[wanted], self.model.items.weight)
        return self.descend(loss)

    def validate(self):
        """Where the last item but one of each user is ranked."""
        return self._measure(2)

    def test(self):
        """Where the last item of each user is ranked."""
        return self._measure(1)

    @torch.no_grad()
    def _measure(self, back):
        self.model.eval()
        ranks = []
        for begin in range(0, len(self.taken), BLOCK):
            part = self.taken[begin : begin + BLOCK]
            before = [sequence[:-back] for sequence in part]
            wanted = torch.tensor([sequence[-back] for sequence in part])[:, None]
            scores = self.model(padded(before, self.length))[:, -1] @ self.model.items.weight.T
            score = scores.gather(1, wanted)
            users = np.repeat(np.arange(len(part)), [len(items) for items in before])
            scores[users, np.concatenate(before)] = -torch.inf
            ranks.append((scores > score).sum(dim=1))
        ranks = torch.cat(ranks).double()
        gains = 1 / torch.log2(ranks + 2)
        return {
            name: float((worth * (ranks < k)).mean())
            for k in (10, 50)
            for name, worth in ((f"ndcg@{k}", gains), (f"recall@{k}", torch.ones_like(gains)))
        }


def main():
    """Compare the methods."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="file of sequences, plain or .gz")
    options = parser.parse_args()
    taken = make_up() if options.data is None else read(options.data)
    settings = SMALL if options.data is None else PUBLISHED
    codewords = 8 if options.data is None else 64
    items = int(max(sequence.max() for sequence in taken)) + 1
    name = "made-up users" if options.data is None else options.data.name.split(".")[0]
    task = Task(
        name="sequential-recommendation",
        title=f"Sequential recommendation, {name}",
        settings={"users": len(taken), "items": items, **settings},
        make=lambda method, seed: Recommender(taken, items, settings, method, seed, codewords),
        metrics={
            f"{figure}@{k}": (f"{title}@{k}", ".4f")
            for figure, title in (("ndcg", "NDCG"), ("recall", "Recall"))
            for k in (10, 50)
        },
        chosen_by="ndcg@10",
        lower_is_better=False,
    )
    compare(task, options, options.epochs or (3 if options.data is None else 12))


if __name__ == "__main__":
    main()
