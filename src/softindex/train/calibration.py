"""Weights of classes that make a sampler draw each, over many queries, as often as the softmax would."""

from __future__ import annotations

import torch
from torch import Tensor

from softindex.train.contract import Tables
from softindex.train.multi_index import CodewordLaw, segment_logsumexp

__all__ = ["calibrate"]

QUERIES = 256
ROUNDS = 8
BLOCK = 1 << 24


def calibrate(tables: dict[str, Tensor], items: Tensor, bias: Tensor | None, queries: Tensor) -> Tensor:
    """Log-weights (n,) float64 of classes, so that the mean of q over the queries is the mean of the softmax.

    Of all weights that do not depend on the query these have the least KL(softmax || q).  With T the mean of
    exp(s1 + s2) / Z over the queries, class i is drawn weight_i T(its bucket) of the time; Z depends on the weights, so
    a few rounds are needed.
    """
    step = max(1, len(queries) // QUERIES)
    rows = queries[::step][:QUERIES].float().cpu()
    target = _mean_softmax(rows, items.cpu(), bias)
    bucket = tables["bucket"].long()
    log_weight = torch.zeros(len(items), dtype=torch.float64) if bias is None else bias.clone()
    for _ in range(ROUNDS):
        masses = {"log_mass": segment_logsumexp(log_weight, bucket, len(tables["first"]) ** 2)}
        law = CodewordLaw(Tables(tables | masses), rows)
        top = law.s2.amax(1, keepdim=True)
        means = torch.exp(law.s1 + top - law.log_z).T @ torch.exp(law.s2 - top) / len(rows)
        log_weight = target - torch.log(means.flatten().clamp(min=1e-300))[bucket]
    return log_weight


def _mean_softmax(queries: Tensor, items: Tensor, bias: Tensor | None) -> Tensor:
    """log of the mean softmax (n,) float64 over the queries."""
    total = torch.zeros(len(items), dtype=torch.float64)
    step = max(1, BLOCK // len(items))
    for begin in range(0, len(queries), step):
        scores = queries[begin : begin + step] @ items.T
        if bias is not None:
            scores += bias.float()
        total += torch.softmax(scores, 1).sum(0, dtype=torch.float64)
    return torch.log((total / len(queries)).clamp(min=1e-300))
