"""Class weights with which a multi-index draws each class, over many queries, as often as the softmax would."""

from __future__ import annotations

import torch
from torch import Tensor

from softindex.train.codeword_law import CodewordLaw
from softindex.train.contract import Tables
from softindex.train.segments import segment_logsumexp

__all__ = ["fit_class_weights"]

QUERIES = (64, 256)
"""Smallest and largest number of queries used: each costs a full softmax."""
SCORES = 1 << 26
"""Between these limits, use as many queries as give about this many scores."""
ROUNDS = 8
LIMIT = 20.0
"""No weight changes by more than exp of this: a few queries cannot justify more."""
BLOCK = 1 << 23


def fit_class_weights(tables: dict[str, Tensor], items: Tensor, bias: Tensor | None, queries: Tensor) -> Tensor:
    """Log-weights (n,) float64 of classes with which the mean of q over the queries is close to that of the softmax.

    If the two means were equal, the weights would minimise KL(softmax || q) among all that do not depend on the query.
    The probability of a class is that of its cluster, times its share of the cluster's weight.  That of a cluster
    depends on the weights through Z, hence a few rounds.
    """
    rows = _subset(queries, len(items)).float().cpu()
    base = torch.zeros(len(items), dtype=torch.float64) if bias is None else bias.cpu()
    target = _log_mean_softmax(rows, items.cpu(), base.float())
    cluster = tables["cluster"].long()
    log_weight = base
    for _ in range(ROUNDS):
        log_mass = segment_logsumexp(log_weight, cluster, len(tables["offsets"]) - 1)
        frequency = _log_mean_clusters(CodewordLaw(Tables(tables | {"log_mass": log_mass}), rows))
        change = target - (frequency - log_mass)[cluster] - base
        # NaN is a class that neither distribution draws: leave its weight alone.
        log_weight = base + change.nan_to_num(0.0, LIMIT, -LIMIT).clamp(-LIMIT, LIMIT)
    return log_weight


def _subset(queries: Tensor, n: int) -> Tensor:
    count = min(max(SCORES // n, QUERIES[0]), QUERIES[1], len(queries))
    return queries[torch.linspace(0, len(queries) - 1, count).long()]


def _log_mean_softmax(queries: Tensor, items: Tensor, bias: Tensor) -> Tensor:
    total = torch.zeros(len(items), dtype=torch.float64)
    step = max(1, BLOCK // len(items))
    for begin in range(0, len(queries), step):
        total += torch.softmax(torch.addmm(bias, queries[begin : begin + step], items.T), 1).sum(0, dtype=torch.float64)
    return torch.log(total / len(queries))


def _log_mean_clusters(law: CodewordLaw) -> Tensor:
    """log of the mean probability of each cluster, (clusters,)."""
    total = torch.zeros_like(law.log_mass)
    step = max(1, BLOCK // law.clusters)
    for begin in range(0, len(law.s1), step):
        here = slice(begin, begin + step)
        total += torch.exp(law.s1[here, :, None] + law.s2[here, None] + law.log_mass - law.log_z[here, :, None]).sum(0)
    return torch.log(total / len(law.s1)).flatten()
