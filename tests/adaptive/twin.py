"""The estimates and decisions of "pac" in plain NumPy: a readable twin of native/adaptive, with the same draws."""

import math

import numpy as np

from softindex.adaptive.columns import transpose
from softindex.adaptive.pac import quantiles
from softindex.adaptive.rows import Rows

FIRST = 48
"""Columns of the first look."""


def student(z, terms):
    freedom = np.maximum(terms - 1, 1)
    return z + (z**3 + z) / 4 / freedom + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / freedom**2


def draw(weights, rng, count):
    """Columns in the order drawn, each in proportion to its weight among those not drawn yet."""
    keys = rng.standard_exponential(len(weights))
    keys = np.where(weights > 0, keys / np.where(weights > 0, weights, 1.0), np.inf)
    return np.argsort(keys)[: min(count, int((weights > 0).sum()))]


def estimate(weights, query, order):
    """Estimates, variances and rare terms (n,) of all dot products from the columns in this order (Des Raj)."""
    made = transpose(Rows(np.asarray(weights, np.float32)))
    n, d = weights.shape
    x = query.astype(np.float64)
    columns = made.columns[:, :n].T.astype(np.float64)
    known = (x[made.heavy_columns] * made.heavy).sum(axis=1)
    # In float32, like the native code.
    importance = np.abs(query * made.scales[:d]).astype(np.float64)
    total = importance.sum()
    shares = importance[order] / total
    before = np.concatenate([[0.0], np.cumsum(shares)[:-1]])
    left = np.maximum(1.0 - before, shares)
    products = columns[:, order] * x[order]
    terms = np.cumsum(products, axis=1) - products + products * (left / shares)
    w = left**-2.0
    means = terms @ w / w.sum()
    m = len(order)
    if m == int((importance > 0).sum()):
        return products.sum(axis=1) + known, np.zeros(n), np.zeros(n)
    spread = ((terms - means[:, None]) ** 2 @ w**2) / w.sum() ** 2 * (m / (m - 1) if m > 1 else 1.0)
    used = max(1, int(np.count_nonzero(made.scales)))
    concentration = math.sqrt(max(0.0, used * (importance**2).sum() / total**2 - 1.0))
    relative = made.energies + concentration * np.sqrt(made.excesses)
    variances = np.maximum(spread, total**2 * relative / w.sum())
    sizes = np.divide(made.excesses, relative, out=np.zeros(n), where=relative > 0)
    return means + known, variances, total * np.sqrt(sizes) * math.sqrt(w[-1]) / w.sum()


def widths(variances, jumps, terms, z):
    """How far estimates may be off: standard deviations by Student's t, and Bernstein's term for rare terms."""
    quantile = student(z, terms)
    return quantile * np.sqrt(variances) + quantile**2 / 6 * jumps


def remaining(estimates, terms, k, z):
    """Rows that one look leaves: those whose upper bound reaches the k-th best lower bound."""
    values, variances, jumps = estimates
    off = widths(variances, jumps, terms, z)
    return np.flatnonzero(values + off >= np.sort(values - off)[-k])


def log_z_bounds(values, variances, jumps, terms, z):
    """log Z where every logit is as low, and as high, as its estimate allows."""
    off = widths(variances, jumps, terms, z)
    return np.logaddexp.reduce(values - off), np.logaddexp.reduce(values + off)


__all__ = ["FIRST", "draw", "estimate", "log_z_bounds", "quantiles", "remaining", "student", "widths"]
