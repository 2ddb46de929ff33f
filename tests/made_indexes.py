"""Indexes with a partition of the test's own choice, and a check of the bounds on their clusters."""

import numpy as np

from inside import look_inside, put_together
from softindex.codes import encode
from softindex.fields import flatten
from softindex.ids import id_map
from softindex.index import Index
from softindex.kernels import Request
from softindex.moments import measure
from softindex.residuals import keep_residuals, stored_vectors
from softindex.sketch import draw_sketch


def normal(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def made(vectors, sizes, bias=None, dispersion="none", codes=False, sketch=False, storage="float32"):
    """An index whose clusters are the next sizes[0], sizes[1], ... of the vectors (n, d)."""
    vectors = np.ascontiguousarray(vectors, np.float32)
    offsets, rows = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.arange(len(vectors))
    form = min(dispersion, vectors.shape[1]) if isinstance(dispersion, int) else dispersion
    bias = None if bias is None else np.asarray(bias, np.float32)
    residuals = None
    if storage != "float32":
        owners = np.repeat(np.arange(len(sizes)), sizes)
        residuals, _ = keep_residuals(vectors, owners, rows, offsets, storage=storage, biased=False, threads=1)
        vectors = np.asarray(stored_vectors({**flatten(residuals, "residual_"), "offsets": offsets}))
    moments = measure(vectors, offsets, log_bias=bias, dispersion=form, threads=1)
    coded = encode(vectors, offsets, moments.means, threads=1) if codes else None
    sketched = draw_sketch(vectors, offsets, moments.means, threads=1) if sketch else None
    return Index(put_together(vectors, offsets, id_map(None, rows, rows), bias, moments, coded, sketched, residuals))


def bounds(index, query, temperature):
    """lower, upper and scanned log masses (k,), relative to pivot / temperature, and the pivot."""
    lower, upper, scanned = (np.empty(index.clusters) for _ in range(3))
    request = Request(query[None], index._law("certified", None, None)[0], temperature)
    pivot = index._engine.mass_bounds(request, lower, upper, scanned)
    return lower, upper, scanned, pivot


def true_logits(index, query, temperature, pivot=0.0):
    """(n,) in extended precision, relative to pivot / temperature."""
    contents = look_inside(index)
    logits = (contents.vectors.astype(np.longdouble) @ query.astype(np.longdouble) - pivot) / np.longdouble(temperature)
    return logits if contents.log_bias is None else logits + contents.log_bias


def log_sum(logits):
    top = logits.max()
    return top + np.log(np.exp(logits - top).sum())


def check_bounds(index, query, temperature):
    """Every cluster's mass lies within its bounds, scanned or true; returns the widest distance of two bounds."""
    query = np.ascontiguousarray(query, np.float32)
    lower, upper, scanned, pivot = bounds(index, query, temperature)
    logits, offsets = true_logits(index, query, temperature, pivot), look_inside(index).offsets
    for cluster in range(index.clusters):
        if offsets[cluster] == offsets[cluster + 1]:
            assert lower[cluster] == upper[cluster] == -np.inf
            continue
        true = log_sum(logits[offsets[cluster] : offsets[cluster + 1]])
        assert np.isfinite(lower[cluster])
        assert np.isfinite(upper[cluster])
        for mass in (scanned[cluster], true):
            assert lower[cluster] <= mass <= upper[cluster], (cluster, lower[cluster], float(mass), upper[cluster])
    held = np.diff(offsets) > 0
    return float((upper[held] - lower[held]).max())


def directions(rng, n, d):
    vectors = rng.standard_normal((n, d))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
