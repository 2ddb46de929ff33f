"""The laws of an inverted multi-index: two codewords are drawn, and then a class that has both.

With s1 and s2 the products of a query with the two codebooks, and omega(k1, k2) the weight of the classes that have the
codes k1 and k2, a class is drawn in three steps:

    P(k1) ~ exp(s1[k1]) psi(k1),  psi(k1) = sum over k2 of omega(k1, k2) exp(s2[k2])
    P(k2 | k1) = omega(k1, k2) exp(s2[k2]) / psi(k1)
    P(i | k1, k2) = weight of i / omega(k1, k2)

The product of the three is weight_i exp(s1 + s2) / Z: the softmax of the classes' codewords instead of their vectors.
With the weight exp(query . residual) it is the softmax itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softindex.records import Floats
from softindex.train.contract import Tables
from softindex.train.drawing import cumulate, draw, log_shares

__all__ = ["BucketSoftmax", "CodewordLaw", "ThreeSteps", "invert", "weigh"]

BLOCK = 1 << 24
"""Numbers held at once where classes are looked at one by one."""
SMALLEST = 1e-280
"""Below it sums of products may have lost terms to underflow, and are added up again as logarithms."""


def invert(codes: NDArray[np.int32], first: Floats, second: Floats) -> dict[str, Tensor]:
    """The tables of a multi-index: the codebooks, the bucket of each class, and the classes bucket by bucket."""
    codewords = len(first)
    bucket = torch.from_numpy(codes[:, 0].astype(np.int64) * codewords + codes[:, 1])
    sizes = torch.bincount(bucket, minlength=codewords**2)
    return {
        "first": torch.from_numpy(first),
        "second": torch.from_numpy(second),
        "bucket": bucket.int() if codewords < 1 << 15 else bucket,
        "order": torch.argsort(bucket, stable=True),
        "offsets": torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
    }


def weigh(tables: dict[str, Tensor], log_weight: Tensor | None) -> dict[str, Tensor]:
    """The weight of each bucket, and of the classes inside it; all classes weigh one where None is given.

    "inside" (n,) is, bucket by bucket, the cumulative share of the bucket plus the bucket's number: one search among
    all of it finds a class.
    """
    sizes = torch.diff(tables["offsets"])
    if log_weight is None:
        return {"log_mass": torch.log(sizes.double())}
    bucket = tables["bucket"].long()
    log_mass = segment_logsumexp(log_weight, bucket, len(sizes))
    ordered = bucket[tables["order"]]
    # A sum that starts anew in each bucket, from one over all: shares of a bucket add up to one, so nothing is lost.
    inside = torch.exp(log_weight - log_mass[bucket])[tables["order"]].cumsum(0)
    ends = torch.cat([torch.zeros(1, dtype=torch.float64), inside])[tables["offsets"][:-1]]
    inside = (inside - ends[ordered]).clamp_(max=1.0)
    filled = sizes > 0
    inside[tables["offsets"][1:][filled] - 1] = 1.0
    return {
        "log_mass": log_mass,
        "log_weight": log_weight.float(),
        "inside": inside + ordered,
    }


class CodewordLaw:
    """The softmax of the codewords of each class, times its weight, for queries (b, d).

    books: codebooks to use instead of those of the tables.
    """

    def __init__(self, tables: Tables, queries: Tensor, books: tuple[Tensor, Tensor] | None = None) -> None:
        first, second = books or (tables["first"], tables["second"])
        self.tables, self.queries = tables, queries
        self.codewords = len(first)
        self.s1, self.s2 = (queries @ first.T).double(), (queries @ second.T).double()
        if "first_bias" in tables:
            self.s1, self.s2 = self.s1 + tables["first_bias"], self.s2 + tables["second_bias"]
        self.log_mass = _square(self._masses(), self.codewords)
        self.log_first = self.s1 + self._log_psi()
        self.log_z = torch.logsumexp(self.log_first, 1, keepdim=True)

    def _masses(self) -> Tensor:
        """Log-weights (..., buckets) of the buckets."""
        return self.tables["log_mass"]

    def _log_psi(self) -> Tensor:
        if self.s2.requires_grad:
            # The short way below has no gradient where it underflows.
            return torch.logsumexp(self.log_mass + self.s2[:, None], 2)
        top = self.s2.amax(1, keepdim=True)
        heights = self.log_mass.amax(1)
        heights = torch.where(torch.isfinite(heights), heights, 0.0)
        sums = torch.exp(self.s2 - top) @ torch.exp(self.log_mass - heights[:, None]).T
        log_psi = torch.log(sums) + top + heights
        lost = (sums < SMALLEST) & torch.isfinite(self.log_mass.amax(1))
        for row in lost.any(1).nonzero()[:, 0].tolist():
            log_psi[row] = torch.logsumexp(self.log_mass + self.s2[row], 1)
        return log_psi

    def draw(self, m: int, generator: torch.Generator | None) -> Tensor:
        """Draw m classes for each query, (b, m)."""
        k1 = draw(self.log_first, m, generator)
        flat = self._second_weights(k1).flatten(0, 1)
        k2 = draw(flat, 1, generator).view(k1.shape)
        shares = torch.rand(k1.shape, generator=generator, device=k1.device, dtype=torch.float64)
        return self._inside(k1 * self.codewords + k2, shares)

    def _second_weights(self, k1: Tensor) -> Tensor:
        """Log-weights (b, m, codewords) of the second codeword given the first."""
        return self.log_mass[k1] + self.s2[:, None]

    def _inside(self, bucket: Tensor, shares: Tensor) -> Tensor:
        """The classes of buckets (b, m) that shares of them fall on."""
        tables = self.tables
        if "inside" in tables:
            places = torch.searchsorted(tables["inside"], bucket + shares, right=True)
        else:
            sizes = tables["offsets"][bucket + 1] - tables["offsets"][bucket]
            places = tables["offsets"][bucket] + (shares * sizes).long()
        # A number next to one may round up to the bucket after.
        return tables["order"][torch.minimum(places, tables["offsets"][bucket + 1] - 1)]

    def log_q(self, ids: Tensor) -> Tensor:
        """Log-probabilities of classes (b, j)."""
        bucket = self.tables["bucket"][ids].long()
        log_q = self._log_codes(bucket)
        return log_q + self.tables["log_weight"][ids] if "log_weight" in self.tables else log_q

    def _log_codes(self, bucket: Tensor) -> Tensor:
        k1, k2 = bucket // self.codewords, bucket % self.codewords
        return self.s1.gather(1, k1) + self.s2.gather(1, k2) - self.log_z


class BucketSoftmax(CodewordLaw):
    """As the law of the codewords, but among the classes of a bucket by the softmax of their vectors."""

    def _inside(self, bucket: Tensor, shares: Tensor) -> Tensor:
        rows = torch.arange(len(bucket), device=bucket.device).repeat_interleave(bucket.shape[1])
        flat, found = shares.flatten(), []
        for at, members, scores, pair in self._members(rows, bucket.flatten()):
            count = at.stop - at.start
            log_p = scores - segment_logsumexp(scores, pair, count)[pair]
            found.append(members[find_in_segments(log_p, pair, count, flat[at])])
        return torch.cat(found).view(bucket.shape)

    def log_q(self, ids: Tensor) -> Tensor:
        """Log-probabilities of classes (b, j)."""
        bucket = self.tables["bucket"][ids].long()
        rows = torch.arange(len(ids), device=ids.device).repeat_interleave(ids.shape[1])
        # Many classes may share a bucket: each is added up once.
        keys, which = torch.unique(rows * self.codewords**2 + bucket.flatten(), return_inverse=True)
        members = self._members(keys // self.codewords**2, keys % self.codewords**2)
        sums = torch.cat([segment_logsumexp(scores, pair, at.stop - at.start) for at, _, scores, pair in members])
        inside = (self._scores(rows, ids.flatten()) - sums[which]).view(ids.shape)
        return self._log_codes(bucket) + self.log_mass.flatten()[bucket] + inside

    def _scores(self, rows: Tensor, ids: Tensor) -> Tensor:
        parts = []
        step = max(1, BLOCK // self.queries.shape[1])
        for begin in range(0, len(ids), step):
            here = slice(begin, begin + step)
            parts.append(torch.einsum("jd,jd->j", self.queries[rows[here]], self.tables["items"][ids[here]]).double())
        scores = torch.cat(parts)
        return scores + self.tables["log_weight"][ids] if "log_weight" in self.tables else scores

    def _members(self, rows: Tensor, bucket: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """For stretches of pairs (j,) of query and bucket: which pairs, members, their scores, and the pair of each."""
        offsets = self.tables["offsets"]
        sizes = offsets[bucket + 1] - offsets[bucket]
        for begin, end in stretches(sizes, max(1, BLOCK // self.queries.shape[1])):
            here = sizes[begin:end]
            pair = torch.repeat_interleave(torch.arange(end - begin, device=bucket.device), here)
            starts = offsets[bucket[begin:end]] - (here.cumsum(0) - here)
            members = self.tables["order"][torch.arange(len(pair), device=bucket.device) + starts[pair]]
            yield slice(begin, end), members, self._scores(rows[begin:end][pair], members), pair


class ThreeSteps(CodewordLaw):
    """The three steps with each class weighing exp(query . residual): the softmax itself, at the price of one."""

    def _masses(self) -> Tensor:
        tables = self.tables
        scores = (self.queries @ tables["items"].T).double()
        if "log_weight" in tables:
            scores = scores + tables["log_weight"]
        self.scores = scores
        bucket = tables["bucket"].long()
        codes = self.s1[:, bucket // self.codewords] + self.s2[:, bucket % self.codewords]
        return segment_logsumexp(scores - codes, bucket, self.codewords**2)

    def _log_psi(self) -> Tensor:
        return torch.logsumexp(self.log_mass + self.s2[:, None], 2)

    def _second_weights(self, k1: Tensor) -> Tensor:
        rows = torch.arange(len(k1), device=k1.device)[:, None]
        return self.log_mass[rows, k1] + self.s2[:, None]

    def _inside(self, bucket: Tensor, shares: Tensor) -> Tensor:
        tables = self.tables
        sums = cumulate(self.scores[:, tables["order"]])
        padded = torch.cat([torch.zeros_like(sums[:, :1]), sums], 1)
        low, high = padded.gather(1, tables["offsets"][bucket]), padded.gather(1, tables["offsets"][bucket + 1])
        places = torch.searchsorted(sums, low + shares * (high - low), right=True)
        places = torch.maximum(torch.minimum(places, tables["offsets"][bucket + 1] - 1), tables["offsets"][bucket])
        return tables["order"][places]

    def log_q(self, ids: Tensor) -> Tensor:
        """Log-probabilities of classes (b, j)."""
        return log_shares(self.scores).gather(1, ids)


def _square(values: Tensor, side: int) -> Tensor:
    return values.reshape(*values.shape[:-1], side, side)


def stretches(sizes: Tensor, most: int) -> Iterator[tuple[int, int]]:
    """Cut a list of sizes where their sum passes `most`: begins and ends; one larger than that stands alone."""
    sums = sizes.cumsum(0)
    begin = 0
    while begin < len(sizes):
        before = int(sums[begin - 1]) if begin else 0
        end = max(begin + 1, int(torch.searchsorted(sums, before + most, right=True)))
        yield begin, end
        begin = end


def segment_logsumexp(scores: Tensor, segment: Tensor, count: int) -> Tensor:
    """log of the sum of exp(scores) over the last axis by segment: (..., count), minus infinity for an empty one."""
    top = torch.full((*scores.shape[:-1], count), -torch.inf, dtype=scores.dtype, device=scores.device)
    into = segment.expand_as(scores)
    top = top.scatter_reduce(-1, into, scores, "amax")
    sums = torch.zeros_like(top).scatter_add(-1, into, torch.exp(scores - top.gather(-1, into)))
    return torch.where(sums > 0, top + torch.log(sums), -torch.inf)


def find_in_segments(log_p: Tensor, segment: Tensor, count: int, shares: Tensor) -> Tensor:
    """Where a share (count,) of each segment falls; the segments stand one after the other and none is empty."""
    sums = torch.exp(log_p).cumsum(0)
    places = torch.searchsorted(sums, torch.arange(count, device=sums.device) + shares, right=True)
    sizes = torch.bincount(segment, minlength=count)
    ends = sizes.cumsum(0)
    return torch.maximum(torch.minimum(places, ends - 1), ends - sizes)
