"""Measure AdaptiveSoftmax on the states of a trained model: agreement, success, bytes and processor time."""

import time
import warnings
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from benchmarks.tables import Table
from softindex import AdaptiveSoftmax
from softindex.evaluate.timing import take_turns

EPSILON, CONFIDENCE = 0.3, 0.9
KINDS = ("deterministic", "calibrated", "pac", "exact")


def plain(weights, bias, query):
    """Probabilities (n,) in float32: a product, exponentials, their sum."""
    logits = weights @ query + bias
    logits -= logits.max()
    np.exp(logits, out=logits)
    logits /= logits.sum()
    return logits


def eight_bits(weights, bias):
    """A function like `plain`, with torch's dynamic int8 product; None where this build of torch has none."""
    layer = nn.Linear(weights.shape[1], len(weights))
    layer.weight.data.copy_(torch.from_numpy(weights))
    layer.bias.data.copy_(torch.from_numpy(bias))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            coded = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {nn.Linear}, dtype=torch.qint8)
    except (RuntimeError, AttributeError):
        return None

    @torch.no_grad()
    def chances(query):
        return coded(torch.from_numpy(query)[None])[0].softmax(dim=0).numpy()

    return chances


def measure(weights, bias, calibration, queries, names=("words", "states")):
    """Tables for queries (m, d) of a layer (n, d), calibrated with other queries of the same model.

    names: what the classes and the queries are called.
    """
    soft = AdaptiveSoftmax(weights, bias)
    soft.calibrate(calibration, confidence=CONFIDENCE, threads=1)
    options = {"temperature": 1.0, "epsilon": EPSILON, "confidence": CONFIDENCE, "threads": 1}
    ways = {"float32, NumPy": partial(plain, weights, bias)}
    coded = eight_bits(weights, bias)
    if coded is not None:
        ways["int8, torch"] = coded
    ways |= {kind: lambda query, kind=kind: soft.top_k(query, 1, guarantee=kind, **options) for kind in KINDS}
    take_turns(ways, queries[:2])
    taken = take_turns(ways, queries, clock=time.process_time)
    truths = [_truth(weights, bias, query) for query in queries]
    rows = [_row(name, way, queries, truths, taken, weights) for name, way in ways.items()]
    return [_all(rows, weights, queries, names), _by_gap(soft, options, queries, truths, taken)]


def _truth(weights, bias, query):
    logits = np.einsum("nd,d->n", weights, query, dtype=np.float64) + bias
    return np.exp(logits - np.logaddexp.reduce(logits))


def _row(name, way, queries, truths, taken, weights):
    """How one way does on all queries."""
    whole, same, near, read, multiplied, given = weights.nbytes, 0, 0, [], [], set()
    for query, truth in zip(queries, truths, strict=True):
        found = way(query)
        if isinstance(found, np.ndarray):
            best, chance = int(found.argmax()), float(found.max())
            read.append(whole if name.startswith("float32") else whole // 4)
            multiplied.append(weights.size)
        else:
            best, chance = int(found.ids[0]), float(np.exp(found.log_prob[0]))
            read.append(int(found.bytes_read))
            multiplied.append(int(found.multiplications))
            given.add(str(found.guarantee))
        same += best == truth.argmax()
        near += best == truth.argmax() and abs(chance / truth.max() - 1) <= EPSILON
    count, ratio = len(queries), np.median(taken["float32, NumPy"] / taken[name])
    return [
        name, f"{same / count:.1%}", f"{near / count:.1%}", f"{np.mean(read) / whole:.0%}",
        f"{weights.size / np.mean(multiplied):.1f}x", f"{np.median(taken[name]) * 1e3:.3g}", f"{ratio:.2f}x",
        ", ".join(sorted(given)),
    ]  # fmt: skip


def _all(rows, weights, queries, names):
    n, d = weights.shape
    return Table(
        f"The most probable of {n:,} {names[0]} for {len(queries)} {names[1]} of width {d:,}: agreement with float64, "
        f"probability within {EPSILON:.0%} as well, bytes relative to float32, how many times fewer multiplications "
        "(of any width), milliseconds of processor time (medians, one thread, in turns), median ratio, and the "
        f"guarantees of the answers; confidence {CONFIDENCE:g}",
        ["how", "same", "and probability", "bytes", "multiplications", "ms", "against float32", "given"],
        rows,
    )


def _by_gap(soft, options, queries, truths, taken):
    """Table of the gain, by how far the best class is ahead of the second."""
    gaps = np.array([np.diff(np.log(np.sort(truth)[-2:]))[0] for truth in truths])
    edges, rows = [0.0, 0.5, 1.0, 2.0, 4.0, np.inf], []
    for low, high in pairwise(edges):
        here = np.flatnonzero((gaps >= low) & (gaps < high))
        if len(here) == 0:
            continue
        row = [f"{low:g} to {high:g}" if high < np.inf else f"{low:g} and more", str(len(here))]
        for kind in ("deterministic", "calibrated"):
            read = [int(soft.top_k(queries[i], 1, guarantee=kind, **options).bytes_read) for i in here]
            ratio = np.median(taken["float32, NumPy"][here] / taken[kind][here])
            row.append(f"{ratio:.2f}x, {np.mean(read) / soft._solver.layer.rows.array.nbytes:.0%}")
        rows.append(row)
    return Table(
        "The gain by the difference of the two best logits: times as fast as float32, and bytes read",
        ["difference", "queries", "deterministic", "calibrated"],
        rows,
    )
