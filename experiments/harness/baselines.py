"""Losses of other libraries and papers over a large output layer, for comparison."""

import torch
from torch.nn import functional

IGNORED = -100
"""Target that does not count, as in torch."""


def fused_cross_entropy(queries, targets, items, bias=None):
    """torch's own loss of layer and softmax in one call; the same in two calls where torch does not have it."""
    if hasattr(functional, "linear_cross_entropy"):
        return functional.linear_cross_entropy(queries, items, targets, linear_bias=bias, ignore_index=IGNORED)
    return functional.cross_entropy(functional.linear(queries, items, bias), targets, ignore_index=IGNORED)


class ScalableCrossEntropy(torch.nn.Module):
    """SCE (Mezentsev et al., 2024, arXiv 2409.18721): cross-entropy inside buckets of near queries and items.

    Random mixtures of the queries are the centres of the buckets.  A bucket holds the queries and the items with the
    largest products with its centre.  The loss of a query in a bucket is that of its target against the bucket's other
    items; of a query in several buckets the largest counts, and a query in none does not count.

    buckets: number of buckets; queries, items: how many of each a bucket holds.
    """

    def __init__(self, buckets, queries, items):
        super().__init__()
        self.buckets, self.queries, self.items = buckets, queries, items

    def forward(self, queries, targets, items, bias=None):
        """Mean loss of queries (b, d) with targets (b,); IGNORED targets do not count."""
        kept = targets != IGNORED
        queries, targets = queries[kept], targets[kept]
        with torch.no_grad():
            centres = torch.randn(self.buckets, len(queries), dtype=queries.dtype) @ queries
            rows = (centres @ queries.T).topk(min(self.queries, len(queries)), dim=1).indices
            columns = (centres @ items.T).topk(min(self.items, len(items)), dim=1).indices
        losses = self.in_buckets(queries, targets, items, bias, (rows, columns))
        most = torch.full((len(queries),), -torch.inf, dtype=losses.dtype)
        most = most.scatter_reduce(0, rows.flatten(), losses.flatten(), "amax")
        return most[torch.isfinite(most)].mean()

    def in_buckets(self, queries, targets, items, bias, members):
        """Losses (buckets, queries) of the members: rows (buckets, queries) and columns (buckets, items)."""
        rows, columns = members
        logits = torch.einsum("kqd,kid->kqi", queries[rows], items[columns])
        positive = (queries * items[targets]).sum(1)
        if bias is not None:
            logits, positive = logits + bias[columns][:, None], positive + bias[targets]
        own = columns[:, None] == targets[rows][:, :, None]
        both = torch.cat([positive[rows][:, :, None], logits.masked_fill(own, -torch.inf)], 2)
        return both.logsumexp(2) - positive[rows]
