"""Weights of classes that make a multi-index draw each, over many queries, as often as the softmax would."""

from __future__ import annotations

import torch
from torch import Tensor

from softindex.train.contract import Tables
from softindex.train.multi_index import CodewordLaw, segment_logsumexp

__all__ = ["calibrate"]

QUERIES = (64, 256)
"""The fewest and the most queries that are looked at: of the most, each costs a full softmax."""
SCORES = 1 << 26
"""Between these, so many that they have about this many scores."""
ROUNDS = 8
LIMIT = 20.0
"""No weight is changed by more than exp of this, whatever a few queries say."""
BLOCK = 1 << 23


def calibrate(tables: dict[str, Tensor], items: Tensor, bias: Tensor | None, queries: Tensor) -> Tensor:
    """Log-weights (n,) float64 of classes, so that the mean of q over the queries is the mean of the softmax.

    Of all weights that do not depend on the query these have the least KL(softmax || q).  A class is drawn as often as
    its bucket, times its share of the bucket's weight; how often a bucket is drawn depends on the weights through Z, so
    a few rounds are needed.
    """
    rows = _some(queries, len(items)).float().cpu()
    base = torch.zeros(len(items), dtype=torch.float64) if bias is None else bias.cpu()
    target = _log_mean_softmax(rows, items.cpu(), base.float())
    bucket = tables["bucket"].long()
    log_weight = base
    for _ in range(ROUNDS):
        log_mass = segment_logsumexp(log_weight, bucket, len(tables["first"]) ** 2)
        frequency = _log_mean_buckets(CodewordLaw(Tables(tables | {"log_mass": log_mass}), rows))
        change = target - (frequency - log_mass)[bucket] - base
        # Of a class that neither draws, nothing is known.
        log_weight = base + change.nan_to_num(0.0, LIMIT, -LIMIT).clamp(-LIMIT, LIMIT)
    return log_weight


def _some(queries: Tensor, n: int) -> Tensor:
    count = min(max(SCORES // n, QUERIES[0]), QUERIES[1], len(queries))
    return queries[torch.linspace(0, len(queries) - 1, count).long()]


def _log_mean_softmax(queries: Tensor, items: Tensor, bias: Tensor) -> Tensor:
    total = torch.zeros(len(items), dtype=torch.float64)
    step = max(1, BLOCK // len(items))
    for begin in range(0, len(queries), step):
        total += torch.softmax(torch.addmm(bias, queries[begin : begin + step], items.T), 1).sum(0, dtype=torch.float64)
    return torch.log(total / len(queries))


def _log_mean_buckets(law: CodewordLaw) -> Tensor:
    """log of how often each bucket (k * k,) is drawn."""
    total = torch.zeros(law.codewords, law.codewords, dtype=torch.float64)
    step = max(1, BLOCK // law.codewords**2)
    for begin in range(0, len(law.s1), step):
        here = slice(begin, begin + step)
        total += torch.exp(law.s1[here, :, None] + law.s2[here, None] + law.log_mass - law.log_z[here, :, None]).sum(0)
    return torch.log(total / len(law.s1)).flatten()
