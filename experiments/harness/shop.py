"""A shop whose users, items and clicks are known by construction, so that the value of every policy is known too."""

import numpy as np
import torch

import softindex

BASE, GAIN, WIDTH = 0.01, 0.6, 0.15
"""Chance of a click on any item; the most that similarity to the user's last item adds; scale of the similarity."""
BLOCK = 256
"""Users whose probabilities of all items are in memory at once."""


def embed(taken, items, rank, seed):
    """(items, rank) vectors of length one: a truncated singular value decomposition of who took what."""
    users = np.repeat(np.arange(len(taken)), [len(sequence) for sequence in taken])
    columns = np.concatenate(taken)
    weights = 1 / np.sqrt(np.bincount(users)[users] * np.bincount(columns, minlength=items)[columns].astype(float))
    places = torch.from_numpy(np.stack([users, columns]))
    matrix = torch.sparse_coo_tensor(places, torch.from_numpy(weights).float(), (len(taken), items)).coalesce()
    torch.manual_seed(seed)
    _, _, right = torch.svd_lowrank(matrix, q=rank, niter=4)
    vectors = right.numpy().astype(np.float32)
    # An item that nobody took has no direction: its vector stays near zero, equally far from all queries.
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


class Shop:
    """Users with the queries that the shop knows, and clicks by a model that it does not."""

    def __init__(self, taken, items, population, seed=0):
        rng = np.random.default_rng(seed)
        kept = [sequence for sequence in taken if len(sequence) > 3]
        chosen = [kept[row] for row in rng.permutation(len(kept))[:population]]
        history = [sequence[:-1] for sequence in kept]
        self.items = items
        self.vectors = {rank: embed(history, items, rank, seed) for rank in (16, 32)}
        self._tastes = embed(kept, items, 48, seed + 1)
        self._wanted = np.array([sequence[-1] for sequence in chosen])
        self._history = [sequence[:-1] for sequence in chosen]
        self.users = len(chosen)

    def queries(self, rank):
        """(users, rank) what the shop knows: the direction of what each user took, except for the last item."""
        means = np.stack([self.vectors[rank][sequence].mean(axis=0) for sequence in self._history])
        return (means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)).astype(np.float32)

    def clicks(self, users, ids):
        """Chance of a click of each user on each item, same shape."""
        likeness = np.einsum("...d,...d->...", self._tastes[self._wanted[users]], self._tastes[ids])
        return BASE + GAIN * np.exp((likeness - 1) / WIDTH)

    def earned(self, law):
        """What a policy earns per decision, from its log-probabilities (users, items); exact, without sampling."""
        total = 0.0
        for begin in range(0, self.users, BLOCK):
            part = slice(begin, begin + BLOCK)
            likeness = self._tastes[self._wanted[part]] @ self._tastes.T
            total += float((np.exp(law[part]) * (BASE + GAIN * np.exp((likeness - 1) / WIDTH))).sum())
        return total / self.users

    def index(self, rank):
        """An index of the items as a model of this rank sees them."""
        return softindex.build(self.vectors[rank], seed=0)
