"""The distributions of an inverted multi-index: draw two codewords, then a class that has both.

Each class has two codes (k1, k2); the classes with the same two codes are a cluster.  With s1 and s2 the products of a
query with the two codebooks, and omega(k1, k2) the total weight of a cluster, a class is drawn in three steps:

    P(k1) ~ exp(s1[k1]) psi(k1),  psi(k1) = sum over k2 of omega(k1, k2) exp(s2[k2])
    P(k2 | k1) = omega(k1, k2) exp(s2[k2]) / psi(k1)
    P(i | k1, k2) = weight of i / omega(k1, k2)

The product of the three is weight_i exp(s1 + s2) / Z: the softmax of the quantised class vectors.  With the weight
exp(query . residual) it is the softmax itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softindex.records import Floats
from softindex.train.contract import Tables
from softindex.train.drawing import cumulate, draw, find_rest, log_normalise
from softindex.train.segments import blocks_of_segments, find_in_segments, segment_logsumexp

__all__ = ["ClusterSoftmaxLaw", "CodewordLaw", "SoftmaxLaw", "cluster_tables", "weight_tables"]

BLOCK = 1 << 24
"""Numbers in memory at once where classes are scored one by one."""
CACHED = 1 << 21
"""Weights of second codewords in memory at once: small enough for a cache, large enough to cost no time."""
MANY = 16
"""Scoring all classes by one matrix product is faster than scoring one class in this many individually."""
SMALLEST = 1e-280
"""Sums of products below this may have lost terms to underflow, and are computed again in log space."""


def cluster_tables(codes: NDArray[np.int32], first: Floats, second: Floats) -> dict[str, Tensor]:
    """Tables of a multi-index: the codebooks, the cluster of each class, and the classes cluster by cluster."""
    clusters = len(first) * len(second)
    cluster = torch.from_numpy(codes[:, 0].astype(np.int64) * len(second) + codes[:, 1])
    sizes = torch.bincount(cluster, minlength=clusters)
    return {
        "first": torch.from_numpy(first),
        "second": torch.from_numpy(second),
        "cluster": cluster.int() if clusters < 1 << 31 else cluster,
        "order": torch.argsort(cluster, stable=True),
        "offsets": torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
    }


def weight_tables(tables: dict[str, Tensor], log_weight: Tensor | None) -> dict[str, Tensor]:
    """Tables of the weights of clusters and of the classes inside them; None: every class has weight one.

    "inside" (n,) is, cluster by cluster, the cumulative share within the cluster plus the cluster's number, so that one
    search over the entire table finds a class.
    """
    sizes = torch.diff(tables["offsets"])
    if log_weight is None:
        return {"log_mass": torch.log(sizes.double())}
    cluster = tables["cluster"].long()
    log_mass = segment_logsumexp(log_weight, cluster, len(sizes))
    ordered = cluster[tables["order"]]
    # One cumulative sum over all clusters, minus its value where each begins: shares sum to one per cluster, so no
    # precision is lost.
    inside = torch.exp(log_weight - log_mass[cluster])[tables["order"]].cumsum(0)
    begins = torch.cat([torch.zeros(1, dtype=torch.float64), inside])[tables["offsets"][:-1]]
    inside = (inside - begins[ordered]).clamp_(max=1.0)
    inside[tables["offsets"][1:][sizes > 0] - 1] = 1.0
    return {"log_mass": log_mass, "log_weight": log_weight, "inside": inside + ordered}


class CodewordLaw:
    """Softmax of the quantised class vectors times the class weights, for queries (b, d).

    books: codebooks to use instead of those in the tables.
    """

    def __init__(self, tables: Tables, queries: Tensor, books: tuple[Tensor, Tensor] | None = None) -> None:
        first, second = books or (tables["first"], tables["second"])
        self.tables, self.queries = tables, queries
        self.columns, self.clusters = len(second), len(first) * len(second)
        self.s1, self.s2 = (queries @ first.T).double(), (queries @ second.T).double()
        if "first_bias" in tables:
            self.s1, self.s2 = self.s1 + tables["first_bias"], self.s2 + tables["second_bias"]
        log_mass = self._log_masses()
        self.log_mass = log_mass.reshape(*log_mass.shape[:-1], len(first), self.columns)
        self.log_first = self.s1 + self._log_psi()
        self.log_z = torch.logsumexp(self.log_first, 1, keepdim=True)

    def _log_masses(self) -> Tensor:
        """Log-weights (..., clusters) of the clusters."""
        return self.tables["log_mass"]

    def _log_psi(self) -> Tensor:
        top = self.s2.detach().amax(1, keepdim=True)
        heights = self.log_mass.amax(1)
        heights = torch.where(torch.isfinite(heights), heights, 0.0)
        sums = torch.exp(self.s2 - top) @ torch.exp(self.log_mass - heights[:, None]).T
        if sums.requires_grad:
            # A codeword whose terms all underflow has no probability, so it needs no gradient.
            return torch.log(sums.clamp(min=SMALLEST)) + top + heights
        log_psi = torch.log(sums) + top + heights
        lost = (sums < SMALLEST) & torch.isfinite(self.log_mass.amax(1))
        for row in lost.any(1).nonzero()[:, 0].tolist():
            log_psi[row] = torch.logsumexp(self.log_mass + self.s2[row], 1)
        return log_psi

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Draw n classes per query independently, (b, n)."""
        k1 = draw(self.log_first, n, generator)
        k2 = torch.cat([draw(weights, 1, generator).view(-1, n) for _, weights in self._blocks(k1)])
        uniforms = torch.rand(k1.shape, generator=generator, device=k1.device, dtype=torch.float64)
        return self._draw_inside(k1 * self.columns + k2, uniforms)

    def find(self, uniforms: Tensor) -> Tensor:
        """The classes (b, n) that numbers (b, n) in [0, 1) select: the inverse of the cumulative distribution.

        Classes are in the order of their first codes, then of their second codes, then in that of the tables.
        """
        k1, rest = find_rest(cumulate(self.log_first), uniforms)
        parts = [find_rest(cumulate(weights), rest[rows].reshape(-1, 1)) for rows, weights in self._blocks(k1)]
        k2, rest = (torch.cat(part).view(k1.shape) for part in zip(*parts, strict=True))
        return self._draw_inside(k1 * self.columns + k2, rest)

    def _blocks(self, k1: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """For blocks of queries: their rows, and log-weights (r * n, columns) of second codewords after k1 (b, n)."""
        step = max(1, CACHED // (k1.shape[1] * self.columns))
        for begin in range(0, len(k1), step):
            rows = slice(begin, begin + step)
            yield rows, self._second_weights(rows, k1[rows]).flatten(0, 1)

    def _second_weights(self, rows: slice, k1: Tensor) -> Tensor:
        """Log-weights (r, n, columns) of the second codeword given the first codewords (r, n) of these rows."""
        return self.log_mass[k1] + self.s2[rows, None]

    def _draw_inside(self, cluster: Tensor, uniforms: Tensor) -> Tensor:
        """The class that each number in [0, 1) selects in its cluster, (b, n)."""
        tables = self.tables
        if "inside" in tables:
            positions = torch.searchsorted(tables["inside"], cluster + uniforms, right=True)
        else:
            sizes = tables["offsets"][cluster + 1] - tables["offsets"][cluster]
            positions = tables["offsets"][cluster] + (uniforms * sizes).long()
        # A number just below one may round up into the next cluster.
        return tables["order"][torch.minimum(positions, tables["offsets"][cluster + 1] - 1)]

    def log_q(self, ids: Tensor) -> Tensor:
        """Log-probabilities of classes (b, j)."""
        log_q = self._log_codes(self.tables["cluster"][ids].long())
        return log_q + self.tables["log_weight"][ids] if "log_weight" in self.tables else log_q

    def _log_codes(self, cluster: Tensor) -> Tensor:
        k1, k2 = cluster // self.columns, cluster % self.columns
        return self.s1.gather(1, k1) + self.s2.gather(1, k2) - self.log_z


class ClusterSoftmaxLaw(CodewordLaw):
    """Clusters as in `CodewordLaw`; inside a cluster, the softmax of the class vectors."""

    _all_scores: Tensor | None = None

    def _draw_inside(self, cluster: Tensor, uniforms: Tensor) -> Tensor:
        rows = torch.arange(len(cluster), device=cluster.device).repeat_interleave(cluster.shape[1])
        # Many draws of a query may fall into one cluster: score its classes once.
        keys, which = torch.unique(rows * self.clusters + cluster.flatten(), return_inverse=True)
        order = torch.argsort(which)
        which, flat, drawn = which[order], uniforms.flatten()[order], []
        for at, members, scores, pair in self._members(keys // self.clusters, keys % self.clusters):
            count = at.stop - at.start
            log_p = scores - segment_logsumexp(scores, pair, count)[pair]
            begin, end = torch.searchsorted(which, torch.tensor([at.start, at.stop], device=which.device)).tolist()
            found = find_in_segments(log_p, pair, which[begin:end] - at.start, flat[begin:end])
            drawn.append(members[found])
        return torch.empty_like(order).index_copy(0, order, torch.cat(drawn)).view(cluster.shape)

    def log_q(self, ids: Tensor) -> Tensor:
        """Log-probabilities of classes (b, j)."""
        if not ids.numel():
            return torch.empty(ids.shape, dtype=torch.float64, device=ids.device)
        cluster = self.tables["cluster"][ids].long()
        rows = torch.arange(len(ids), device=ids.device).repeat_interleave(ids.shape[1])
        # Many classes may share a cluster: sum each cluster once.
        keys, which = torch.unique(rows * self.clusters + cluster.flatten(), return_inverse=True)
        members = self._members(keys // self.clusters, keys % self.clusters)
        sums = torch.cat([segment_logsumexp(scores, pair, at.stop - at.start) for at, _, scores, pair in members])
        inside = (self._scores(rows, ids.flatten()) - sums[which]).view(ids.shape)
        return self._log_codes(cluster) + self.log_mass.flatten()[cluster] + inside

    def _scores(self, rows: Tensor, ids: Tensor) -> Tensor:
        if self._all_scores is not None:
            return self._all_scores[rows, ids]
        parts = []
        step = max(1, BLOCK // self.queries.shape[1])
        for begin in range(0, len(ids), step):
            here = slice(begin, begin + step)
            parts.append(torch.einsum("jd,jd->j", self.queries[rows[here]], self.tables["items"][ids[here]]).double())
        scores = torch.cat(parts)
        return scores + self.tables["log_weight"][ids] if "log_weight" in self.tables else scores

    def _members(self, rows: Tensor, cluster: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """For blocks of (query, cluster) pairs (j,): the pairs, the members, their scores, and the pair of each."""
        offsets = self.tables["offsets"]
        sizes = offsets[cluster + 1] - offsets[cluster]
        n = len(self.tables["items"])
        if self._all_scores is None and BLOCK >= len(self.queries) * n <= MANY * int(sizes.sum()):
            scores = (self.queries @ self.tables["items"].T).double()
            self._all_scores = scores + self.tables["log_weight"] if "log_weight" in self.tables else scores
        for begin, end in blocks_of_segments(sizes, max(1, BLOCK // self.queries.shape[1])):
            here = sizes[begin:end]
            pair = torch.repeat_interleave(torch.arange(end - begin, device=cluster.device), here)
            starts = offsets[cluster[begin:end]] - (here.cumsum(0) - here)
            members = self.tables["order"][torch.arange(len(pair), device=cluster.device) + starts[pair]]
            yield slice(begin, end), members, self._scores(rows[begin:end][pair], members), pair


class SoftmaxLaw(CodewordLaw):
    """The three steps with class weights exp(query . residual): the softmax itself, at the cost of a full softmax."""

    def _log_masses(self) -> Tensor:
        tables = self.tables
        scores = (self.queries @ tables["items"].T).double()
        if "log_weight" in tables:
            scores = scores + tables["log_weight"]
        self.scores = scores
        cluster = tables["cluster"].long()
        quantised = self.s1[:, cluster // self.columns] + self.s2[:, cluster % self.columns]
        return segment_logsumexp(scores - quantised, cluster, self.clusters)

    def _log_psi(self) -> Tensor:
        return torch.logsumexp(self.log_mass + self.s2[:, None], 2)

    def _second_weights(self, rows: slice, k1: Tensor) -> Tensor:
        own = torch.arange(len(k1), device=k1.device)[:, None]
        return self.log_mass[rows][own, k1] + self.s2[rows, None]

    def _draw_inside(self, cluster: Tensor, uniforms: Tensor) -> Tensor:
        tables = self.tables
        sums = cumulate(self.scores[:, tables["order"]])
        padded = torch.cat([torch.zeros_like(sums[:, :1]), sums], 1)
        begin, end = tables["offsets"][cluster], tables["offsets"][cluster + 1]
        low, high = padded.gather(1, begin), padded.gather(1, end)
        positions = torch.searchsorted(sums, low + uniforms * (high - low), right=True)
        return tables["order"][torch.maximum(torch.minimum(positions, end - 1), begin)]

    def log_q(self, ids: Tensor) -> Tensor:
        """Log-probabilities of classes (b, j)."""
        return log_normalise(self.scores).gather(1, ids)
