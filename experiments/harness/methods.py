"""The compared ways to train a large output layer, behind one interface."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from experiments.harness.baselines import ReducedCrossEntropy, ScalableCrossEntropy, fused_cross_entropy
from experiments.harness.random_features import RandomFeatureSampler
from softindex.train import (
    InBatchSampler,
    LearnableMIDXSampler,
    LSHSampler,
    MIDXSampler,
    SampledSoftmaxLoss,
    SphereSampler,
    TwoLevelSampler,
    UniformSampler,
    UnigramSampler,
)

METHODS = {
    "full": "full softmax",
    "fused": "torch linear_cross_entropy",
    "uniform": "uniform",
    "unigram": "unigram",
    "in-batch": "in-batch",
    "sce": "SCE",
    "rece": "RECE",
    "sphere": "sphere kernel",
    "lsh": "LSH",
    "random-features": "random features",
    "midx-pq": "MIDX, product codes",
    "midx-rq": "MIDX, residual codes",
    "midx-beyond": "MIDX, weighted",
    "midx-systematic": "MIDX, weighted, systematic draws",
    "oracle": "draws from the softmax itself",
    "two-level-s": "two-level, s-2ls",
    "two-level-sd": "two-level, sd-2ls",
}
"""Title of each method in tables, by its name on the command line."""
PUBLISHED = ("full", "uniform", "unigram", "midx-pq", "midx-rq", "midx-beyond")
"""Methods of the tables in the documentation; --methods names others."""
LEARNED = "learned"
"""Method whose codebooks train with the model, for the experiments that offer it."""
RECONSTRUCTION = 0.01
"""Weight of the learned codebooks' distance from the items, beside a weight of 1 for their KL divergence."""
RECENT = 4096
"""Recent queries kept for refreshing the weighted index."""
IGNORED = -100
"""Target that does not count, as in torch."""
WEIGHTED = ("midx-beyond", "midx-systematic")
"""Methods that are refreshed with recent queries."""
UNSAMPLED = ("full", "fused", "sce", "rece")
"""Methods without a sampler."""
BUCKETS, SHARE = 16, 2
"""Buckets of SCE, and queries and items in each for every draw of the other methods."""
ROUNDS = 2
"""Rounds of RECE; a query meets about as many items in each as SCE has in a bucket."""


SOON, WARM_ITERATIONS = 50, 8
"""Iterations of k-means in a refresh; refreshes at most SOON steps apart do a single one."""


def due(step, every):
    """Whether to refresh the sampler before this step: more often at first, when the layer changes most."""
    return step % every == 0 or step & (step - 1) == 0


class IndexSize(NamedTuple):
    """The size of an inverted multi-index, and the iterations of k-means in each of its refreshes."""

    codewords: int
    codebooks: int = 2
    iterations: int = WARM_ITERATIONS

    @classmethod
    def refreshed(cls, every, codewords, codebooks=2):
        """The size of an index, with fewer iterations of k-means if it is refreshed often: after `every` steps."""
        return cls(codewords, codebooks, 1 if every <= SOON else WARM_ITERATIONS)


class Objective(nn.Module):
    """The loss of one method over a layer (n, d) of items, and its sampler; the full softmax has none.

    counts (n,): how often each item is a target in the training set; size: of the multi-index.
    """

    def __init__(self, method, counts, draws, size):
        super().__init__()
        self.method = method
        self.register_buffer("counts", torch.as_tensor(counts, dtype=torch.float32), persistent=False)
        self.register_buffer("recent", torch.empty(0, 0))
        sampled = method not in UNSAMPLED
        self.sampled = _sampled_loss(method, len(counts), draws, size) if sampled else None
        self.unsampled = _unsampled_loss(method, len(counts), draws)

    def forward(self, queries, targets, items, bias=None):
        """Mean loss of queries (b, d) with targets (b,); IGNORED targets do not count."""
        if self.sampled is None:
            return self.unsampled(queries, targets, items, bias)
        if self.method in WEIGHTED:
            seen = queries.detach()[targets != IGNORED]
            self.recent = torch.cat([seen, self.recent.reshape(-1, queries.shape[-1])])[:RECENT]
        return self.sampled(queries, targets, items, bias=bias)

    @torch.no_grad()
    def refresh(self, items, bias=None):
        """Refresh the sampler with the current layer and the data that the method uses."""
        if self.sampled is None:
            return
        data = {"bias": bias}
        if self.method in ("unigram", "in-batch", *WEIGHTED):
            data["frequencies"] = self.counts
        if self.method in WEIGHTED and len(self.recent):
            data["queries"] = self.recent
        self.sampled.sampler.refresh(items, **data)

    def _load_from_state_dict(self, state, prefix, *rest):
        self.recent = torch.empty_like(state[prefix + "recent"])
        super()._load_from_state_dict(state, prefix, *rest)


class LearnedObjective(nn.Module):
    """A sampled softmax whose codebooks train with the model: give its parameters to the optimiser."""

    def __init__(self, items, width, draws, codewords):
        super().__init__()
        self.draws = draws
        self.sampled = SampledSoftmaxLoss(LearnableMIDXSampler(items, width, codewords=codewords), draws=draws)

    def forward(self, queries, targets, items, bias=None):
        """Mean loss of queries (b, d) with targets (b,), plus the losses of the codebooks."""
        codebooks = self.sampled.sampler.codebook_loss(queries, items, self.draws, bias=bias)
        return self.sampled(queries, targets, items, bias) + codebooks.kl + RECONSTRUCTION * codebooks.reconstruction

    @torch.no_grad()
    def refresh(self, items, bias=None):
        """Assign the items to the codewords as they are now."""
        self.sampled.sampler.refresh(items, bias=bias)


def _cross_entropy(queries, targets, items, bias):
    return functional.cross_entropy(functional.linear(queries, items, bias), targets, ignore_index=IGNORED)


def _unsampled_loss(method, items, draws):
    """The loss of a method without a sampler; None for the others.

    A bucket of SCE holds as many queries as items.
    """
    if method == "sce":
        return ScalableCrossEntropy(BUCKETS, SHARE * draws, SHARE * draws)
    if method == "rece":
        # A query meets the items of three chunks.
        return ReducedCrossEntropy(ROUNDS, max(1, 3 * items // (SHARE * draws)))
    return {"full": _cross_entropy, "fused": fused_cross_entropy}.get(method)


def _sampled_loss(method, items, draws, size):
    sizes = {"codewords": size.codewords, "codebooks": size.codebooks, "warm_iterations": size.iterations}
    weighted = {**sizes, "quantizer": "rq", "residual": "weighted"}
    makers = {
        "uniform": lambda: UniformSampler(items),
        "unigram": lambda: UnigramSampler(items),
        "in-batch": lambda: InBatchSampler(items),
        "sphere": lambda: SphereSampler(items),
        "lsh": lambda: LSHSampler(items),
        "random-features": lambda: RandomFeatureSampler(items, features=size.codewords),
        "midx-pq": lambda: MIDXSampler(items, **sizes, quantizer="pq", residual="uniform"),
        "midx-rq": lambda: MIDXSampler(items, **sizes, quantizer="rq", residual="uniform"),
        "midx-beyond": lambda: MIDXSampler(items, **weighted),
        "midx-systematic": lambda: MIDXSampler(items, drawing="systematic", **weighted),
        "oracle": lambda: MIDXSampler(items, **sizes, residual="oracle"),
        "two-level-s": lambda: TwoLevelSampler(items, method="s-2ls", threads=torch.get_num_threads()),
        "two-level-sd": lambda: TwoLevelSampler(items, method="sd-2ls", threads=torch.get_num_threads()),
    }
    return SampledSoftmaxLoss(makers[method](), draws=draws, ignore_index=IGNORED)
