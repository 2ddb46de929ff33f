"""Indexes large enough to probe, and how far a law on them is from the softmax."""

from functools import cache

import numpy as np

import softindex
from inside import look_inside
from softindex.kernels import _native, reference, reference_probing
from softindex.laws import LAWS

T = (0.05, 0.1, 0.2)


def clustered(n, centres, d, seed):
    """Unbalanced groups of unit vectors (n, d)."""
    rng = np.random.default_rng(seed)
    weights = np.exp(rng.standard_normal(centres))
    means = rng.standard_normal((centres, d))
    vectors = means[rng.choice(centres, size=n, p=weights / weights.sum())] + 0.7 * rng.standard_normal((n, d))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def mixture(n, d, rng):
    """Gaussian groups whose sizes and widths differ by an order of magnitude."""
    weights, widths = np.exp(1.5 * rng.standard_normal(60)), 0.5 * np.exp(0.5 * rng.standard_normal(60))
    group = rng.choice(60, size=n, p=weights / weights.sum())
    return (rng.standard_normal((60, d))[group] + widths[group, None] * rng.standard_normal((n, d))) / np.sqrt(d)


def heavy_tailed(n, d, rng):
    """Unit vectors, groups with tails of Student's t with two degrees of freedom."""
    vectors = rng.standard_normal((40, d))[rng.integers(40, size=n)] + 0.5 * rng.standard_t(2, size=(n, d))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


MADE = {"mixture": mixture, "heavy-tailed": heavy_tailed}


@cache
def large_index(name, seed=5, tree=False):
    """An index of 60,000 items; 200 queries that are items, 200 drawn like items but in no index, 200 unlike them."""
    rng = np.random.default_rng(seed)
    drawn = MADE[name](60_200, 32, rng).astype(np.float32)
    vectors, others = drawn[:60_000], drawn[60_000:]
    strange = rng.standard_normal((200, 32))
    strange *= np.linalg.norm(vectors, axis=1).mean() / np.linalg.norm(strange, axis=1, keepdims=True)
    items = vectors[rng.choice(60_000, 200, replace=False)]
    queries = {"items": items, "others": others, "strange": strange.astype(np.float32)}
    return softindex.build(vectors, tree=tree, threads=1), queries


def conditioned(method):
    """Options of a law that exclusions and slates condition: adaptive probes find others for what is left."""
    return {"method": method} | ({"probes": 2} if method in ("2ls", "s-2ls", "sd-2ls") else {})


def masses(index, queries, temperature, method="sd-2ls", probes=None, tolerance=None, threads=1, **part):
    """Log masses (b, k), items scored (b,) and stated errors (b,), from the kernels."""
    replace, exclude = part.get("replace", True), part.get("exclude")
    left = index._part(queries, 1, method, replace, (exclude, None, None), top_p=None, k=None)
    law, clusters, allowed = index._law(method, probes, tolerance)
    found, scored = np.empty((len(queries), index.clusters)), np.empty(len(queries), np.int64)
    error = np.empty(len(queries))
    request = _native.Request(
        queries, law, temperature, clusters, allowed, restriction=None if left is None else left.native, threads=threads
    )
    index._engine.masses(request, found, error, scored)
    return found, scored, error


def twin(index, query, temperature, method, probes, tolerance, exclude=(), slate=False):
    """The same of one query, from the definition."""
    contents, law = look_inside(index), LAWS[method]
    probing = reference_probing.Probing(
        contents.vectors,
        contents.offsets,
        contents.moments,
        contents.log_bias,
        query,
        temperature,
        offset=reference.log_size_terms(contents.moments, law.size),
        dispersion=law.dispersion,
        tolerance=tolerance,
        outliers=contents.outliers,
        tails=index._contents.arrays.get("sketch_tails"),
        excluded=np.isin(index.ids, exclude),
        slate=slate,
    )
    return probing.run(-1 if probes is None else probes)


def normalised(log_masses):
    peak = log_masses.max(axis=1, keepdims=True)
    return log_masses - peak - np.log(np.exp(log_masses - peak).sum(axis=1, keepdims=True))


def distances(index, queries, temperature, **options):
    """Measured total variation, KL(softmax || law) and stated error, each (b,).

    The ratio of the law to the softmax is one number per cluster, so that clusters tell both distances.
    """
    log_p = normalised(masses(index, queries, temperature, "exact")[0])
    found, _, error = masses(index, queries, temperature, **options)
    log_q, p = normalised(found), np.exp(log_p)
    held = np.isfinite(log_p)
    kl = np.where(held, p * (np.where(held, log_p, 0) - np.where(held, log_q, 0)), 0).sum(axis=1)
    return np.abs(np.exp(log_q) - p).sum(axis=1) / 2, kl, error
