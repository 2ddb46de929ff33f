"""Samplers of every kind, made-up classes to refresh them with, and a test of their draws."""

from functools import partial

import numpy as np
import torch
from scipy import stats

from softindex.train import (
    LearnableMIDXSampler,
    LogUniformSampler,
    LSHSampler,
    MIDXSampler,
    SphereSampler,
    TwoLevelSampler,
    UniformSampler,
    UnigramSampler,
)

N, D, B = 300, 7, 4


def midx(n=N, **options):
    return MIDXSampler(n, **({"codewords": 6} | options))


MAKERS = {
    "uniform": UniformSampler,
    "log-uniform": LogUniformSampler,
    "unigram": UnigramSampler,
    "unigram, power": lambda n: UnigramSampler(n, power=0.75),
    "sphere": lambda n: SphereSampler(n, alpha=3.0),
    "lsh": lambda n: LSHSampler(n, tables=4, bits=3),
    "two-level": lambda n: TwoLevelSampler(n, method="s-2ls"),
    "two-level, dispersion": lambda n: TwoLevelSampler(n, method="sd-2ls"),
    "two-level, probes": lambda n: TwoLevelSampler(n, method="sd-2ls", probes=3),
    **{
        f"midx {quantizer} {residual} {mix}": lambda n, quantizer=quantizer, residual=residual, mix=mix: midx(
            n, quantizer=quantizer, residual=residual, unigram_mix=mix
        )
        for quantizer in ("rq", "pq")
        for residual in ("uniform", "weighted", "exact", "oracle")
        for mix in (0.0, 0.2)
    },
    "midx, systematic": lambda n: midx(n, drawing="systematic"),
    "midx, systematic, mixed": lambda n: midx(n, residual="weighted", unigram_mix=0.2, drawing="systematic"),
    **{
        f"midx {quantizer} {residual}, {books} codebooks": partial(
            midx, codewords=5, codebooks=books, quantizer=quantizer, residual=residual
        )
        for quantizer, residual in (("rq", "uniform"), ("pq", "weighted"), ("rq", "exact"), ("pq", "oracle"))
        for books in (3, 4)
    },
    "midx, many codewords": lambda n: midx(n, codewords=40),
    "learnable rq": lambda n: LearnableMIDXSampler(n, D, codewords=6),
    "learnable pq": lambda n: LearnableMIDXSampler(n, D, codewords=6, quantizer="pq", residual="weighted"),
}


def classes(n=N, d=D, seed=0):
    random = torch.Generator().manual_seed(seed)
    items = torch.randn(n, d, generator=random)
    frequencies = torch.rand(n, generator=random) ** 4 * 100
    bias = torch.randn(n, generator=random)
    queries = torch.randn(B, d, generator=random)
    return items, frequencies, bias, queries


def refreshed(name, *, with_bias=False):
    sampler = MAKERS[name](N)
    items, frequencies, bias, queries = classes()
    sampler.refresh(items, frequencies=frequencies, queries=queries, bias=bias if with_bias else None)
    return sampler, queries


def fits(counts, expected):
    """Chi-square at one in a hundred thousand, classes that are hardly expected taken together."""
    rare = expected < 8
    merged = np.append(expected[~rare], expected[rare].sum())
    seen = np.append(counts[~rare], counts[rare].sum())
    if merged[-1] < 8:
        merged, seen = merged[:-1], seen[:-1]
        merged = merged * seen.sum() / merged.sum()
    return len(merged) < 2 or stats.chisquare(seen, merged * seen.sum() / merged.sum()).pvalue > 1e-5


def divergence(log_p, log_q):
    return float((log_p.exp() * (log_p - log_q)).sum(1).mean())
