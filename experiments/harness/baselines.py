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
    """SCE (Mezentsev et al., 2024, arXiv 2409.18721): cross-entropy inside buckets of queries and items that are close.

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


class ReducedCrossEntropy(torch.nn.Module):
    """RECE (Gusak et al., 2024, arXiv 2408.02354): cross-entropy over items that random anchors find near a query.

    Queries and items are sorted by the anchor with which they have the largest product, and cut into chunks of equal
    size, as many as there are anchors.  A query is compared with the items of its chunk and of the chunks beside it.
    Each round has its own anchors; an item found in several rounds counts once, and the target always counts once.

    rounds: number of sortings; chunks: number of chunks, and of anchors; beside: chunks on each side.
    """

    def __init__(self, rounds, chunks, beside=1):
        super().__init__()
        self.rounds, self.chunks, self.beside = rounds, chunks, beside

    def forward(self, queries, targets, items, bias=None):
        """Mean loss of queries (b, d) with targets (b,); IGNORED targets do not count."""
        kept = targets != IGNORED
        queries, targets = queries[kept], targets[kept]
        positive = (queries * items[targets]).sum(1)
        positive = positive if bias is None else positive + bias[targets]
        logits, before = [positive[:, None]], []
        for _ in range(self.rounds):
            rows, columns, chunks = self.sort(queries.detach(), items.detach())
            found = torch.einsum("kqd,kid->kqi", queries[rows], items[columns])
            found = found if bias is None else found + bias[columns][:, None]
            dropped = (columns[:, None] == targets[rows][:, :, None]) | self.repeats(rows, columns, before)
            dropped |= self.outside(len(items))[:, None]
            found = found.masked_fill(dropped, -torch.inf).flatten(0, 1)
            # The last chunk is filled with the last query; its first copy is kept.
            logits.append(found[rows.flatten()[: len(queries)].argsort()])
            before.append(chunks)
        return (torch.cat(logits, 1).logsumexp(1) - positive).mean()

    @torch.no_grad()
    def sort(self, queries, items):
        """Queries (chunks, q) and the items they meet (chunks, i) of a round, and the chunk of each query and item."""
        anchors = torch.randn(self.chunks, queries.shape[1], dtype=queries.dtype)
        orders = [(vectors @ anchors.T).argmax(1).argsort(stable=True) for vectors in (queries, items)]
        sizes = [-(-len(order) // self.chunks) for order in orders]
        chunks = [torch.empty_like(order).scatter(0, order, torch.arange(len(order)) // size)
                  for order, size in zip(orders, sizes, strict=True)]  # fmt: skip
        places = torch.arange(self.chunks * sizes[0]).clamp(max=len(queries) - 1)
        met = self.places(len(items)).clamp(0, len(items) - 1)
        return orders[0][places].view(self.chunks, -1), orders[1][met], chunks

    def places(self, items):
        """Places (chunks, i), in the order of a round, of the items that a chunk of queries meets; some are outside."""
        size = -(-items // self.chunks)
        first = (torch.arange(self.chunks) - self.beside) * size
        return first[:, None] + torch.arange((2 * self.beside + 1) * size)

    def outside(self, items):
        """Which places (chunks, i) are before the first or after the last item."""
        places = self.places(items)
        return (places < 0) | (places >= items)

    def repeats(self, rows, columns, before):
        """Which items (chunks, q, i) a query already met in the rounds before."""
        met = torch.zeros(*rows.shape, columns.shape[1], dtype=torch.bool)
        for of_queries, of_items in before:
            met |= (of_items[columns][:, None] - of_queries[rows][:, :, None]).abs() <= self.beside
        return met
