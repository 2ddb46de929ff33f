"""Train a small mixture of logits, search it with proof, save it, and load it again, which needs no torch.

A mixture of logits scores a query and an item by a weighted sum of dot products between their components; the weights
depend on both.  A MixtureIndex finds its best items with proof, or faster without.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

import softindex
from softindex.mol import MixtureOfLogits, build, mutual_information_loss
from softindex.train import UniformSampler, sampled_cross_entropy

ITEMS, DIM, STEPS, BATCH = 2_000, 16, 100, 128


def train(items, queries, targets):
    """A mixture that scores the targets of the queries above other items."""
    similarity = MixtureOfLogits(DIM, DIM, query_components=4, item_components=4, component_dim=8)
    optimiser, sampler = torch.optim.Adam(similarity.parameters(), lr=0.01), UniformSampler(ITEMS)
    for _ in range(STEPS):
        rows = torch.randint(len(queries), (BATCH,))
        negatives = sampler.sample(queries[rows], 64, shared=True)
        positive, weights = similarity(queries[rows], items[targets[rows]][:, None], with_weights=True)
        negative = similarity(queries[rows], items[negatives.ids])
        losses, _ = sampled_cross_entropy(positive, negative, targets[rows][:, None], negatives)
        value = losses.mean() + 0.001 * mutual_information_loss(weights)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return similarity.eval()


def main():
    """Train, build, search, save and load."""
    torch.manual_seed(0)
    items = torch.randn(ITEMS, DIM)
    targets = torch.randint(ITEMS, (4_096,))
    queries = items[targets] + 0.3 * torch.randn(4_096, DIM)
    index = build(train(items, queries, targets), items)

    best = index.top_k(queries[:100].numpy(), 10)
    print(f"target among the 10 best: {np.mean((best.ids == targets[:100, None].numpy()).any(axis=1)):.0%}")
    print(f"proven to be the 10 best: {best.proven.mean():.0%}")
    quick = index.top_k(queries[:100].numpy(), 10, method="average", candidates=100)
    common = np.mean([len(np.intersect1d(*ids)) for ids in zip(best.ids, quick.ids, strict=True)])
    print(f"of these, found by scoring {quick.items_scored.mean():.0f} candidates: {common / 10:.0%}")

    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "mixture")
        served = softindex.load(Path(folder) / "mixture")
        again = served.top_k(queries[:100].numpy(), 10)
        print(f"the same after loading: {np.array_equal(best.ids, again.ids)}")


if __name__ == "__main__":
    main()
