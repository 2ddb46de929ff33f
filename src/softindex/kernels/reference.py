"""The kernels and the laws (probability distributions) in plain float64 NumPy: definitions that tests compare with."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.records import Dispersion, Doubles, Floats, Moments, Tree

BLOCK = 64
SMALL_CLUSTER, SCAN_PER_ITEM, LARGEST_SHARE = 64, 6, 0.5
"""When the mass of a cluster that lost items falls by their share of itself: see `masses_without`."""
_MASK = 0xFFFFFFFF


def scan(rows: NDArray[Any], query: NDArray[Any]) -> Doubles:
    """Dot products (n,) of rows (n, d) with the query (d,)."""
    return rows.astype(np.float64) @ query.astype(np.float64)


def scan_residuals(
    integers: NDArray[Any], scales: NDArray[Any], bias: NDArray[Any] | None, query: NDArray[Any], centre_dot: float
) -> Doubles:
    """Dot products (n,) of items kept as integers (n, d): centre_dot + scales * integers . query (+ bias * query[-1]).

    centre_dot: that of the query (d,) and the centre of their cluster.
    """
    dots = centre_dot + scales.astype(np.float64) * scan(integers, query)
    return dots if bias is None else dots + bias.astype(np.float64) * float(query[-1])


def log_sum_exp(values: NDArray[Any]) -> float:
    """Log of the sum of the exponentials of values (n,); entries of -inf add nothing."""
    peak = values.max()
    return float(peak + np.log(np.exp(values - peak).sum())) if np.isfinite(peak) else float(peak)


def weigh(dots: NDArray[Any], temperature: float, bias: NDArray[Any] | None) -> tuple[Doubles, float]:
    """Softmax weights relative to the largest, and the log of the sum of the unscaled weights.

    dots (n,), bias (n,) or None; returns weights (n,) in [0, 1] and log sum_i exp(dots_i / t + bias_i).
    """
    logits = dots.astype(np.float64) / temperature
    if bias is not None:
        logits = logits + bias.astype(np.float64)
    return np.exp(logits - logits.max()), log_sum_exp(logits)


def prefix_sums(weights: NDArray[Any]) -> Doubles:
    """Running total of weights (n,) after each block of 64: (ceil(n / 64),)."""
    starts = np.arange(0, len(weights), BLOCK)
    return np.cumsum(np.add.reduceat(weights.astype(np.float64), starts))


def pick(weights: NDArray[Any], uniform: float) -> int:
    """The item whose share of [0, total) contains uniform * total; never an item of weight zero."""
    cumulative = np.cumsum(weights.astype(np.float64))
    chosen = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(chosen, int(np.flatnonzero(weights)[-1]))


def outer_product(query: NDArray[Any]) -> Doubles:
    """The products q_i q_j, i <= j, row by row: (d (d + 1) / 2,)."""
    wide = query.astype(np.float64)
    return np.outer(wide, wide)[np.triu_indices(len(wide))]


def square_sums(dots: NDArray[Any], scales: NDArray[Any]) -> Doubles:
    """Sums of squares (k,) of the rows of dots * scales, both (k, r)."""
    wide = dots.astype(np.float64) * scales
    return np.asarray(np.einsum("kr,kr->k", wide, wide))


def coded_scores(
    codes: NDArray[Any], scales: NDArray[Any], mean_dot: float, step: float, integers: NDArray[Any]
) -> Doubles:
    """Scores (m,) of a cluster's items from codes (m, d) and scales (m,), for the query step * integers (d,)."""
    return decode(codes.astype(np.int64) @ integers.astype(np.int64), scales, mean_dot, step)


def decode(dots: NDArray[Any], scales: NDArray[Any], base: float, step: float) -> Doubles:
    """Scores (m,) from integer dot products (m,): base + step * scales * dots."""
    return base + step * scales.astype(np.float64) * dots.astype(np.float64)


def unpack_nibbles(codes: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers 0 .. 15, (n, 64 c), of rows (n, 32 c) with two per byte: of every 32 bytes first the low halves."""
    halves = codes.reshape(len(codes), -1, 32)
    return np.concatenate([halves & 15, halves >> 4], axis=2).reshape(len(codes), -1).astype(np.int64)


def round_query(query: NDArray[Any]) -> tuple[NDArray[np.int64], float]:
    """The query as integers of at most 16 bits, and the step: the query is about step * integers.

    No sum of their products with numbers in -127 .. 127 overflows 32 bits, including the padding to sixteen lanes.
    """
    width, peak = -(-len(query) // 16) * 16, float(np.abs(query).max())
    largest = min(32767, (2**31 - 1) // 127 // width)
    inverse = largest / peak if peak > 0 else 0.0
    return np.rint(query.astype(np.float64) * inverse).astype(np.int64), peak / largest


def quadratic(dispersion: Dispersion, query: NDArray[Any]) -> Doubles:
    """The estimates (k,) of q' S q in every cluster."""
    wide = query.astype(np.float64)
    if dispersion.forms is None or dispersion.scales is None:
        raise ValueError("these moments have no dispersion; build them with dispersion to evaluate quadratic forms.")
    if dispersion.kind == "full":
        return np.maximum(scan(dispersion.forms, outer_product(query)) * dispersion.scales[:, 0], 0.0)
    assert dispersion.spread is not None
    sums = square_sums(dispersion.forms.astype(np.float64) @ wide, dispersion.scales)
    return sums + dispersion.spread.astype(np.float64) * (wide @ wide)


def philox(key: int, low: int, high: int) -> list[int]:
    """Philox 4x32-10: four 32-bit words from a 64-bit key and a 128-bit counter (Salmon et al., 2011)."""
    x = [low & _MASK, low >> 32, high & _MASK, high >> 32]
    k0, k1 = key & _MASK, key >> 32
    for _ in range(10):
        even, odd = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(odd >> 32) ^ x[1] ^ k0, odd & _MASK, (even >> 32) ^ x[3] ^ k1, even & _MASK]
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return x


def uniforms(key: int, stream: int, draw: int) -> tuple[float, float]:
    """The two uniforms in [0, 1) of one draw: the first picks the cluster, the second picks the item."""
    x = philox(key, stream, draw)
    return ((x[1] << 32 | x[0]) >> 11) * 2.0**-53, ((x[3] << 32 | x[2]) >> 11) * 2.0**-53


def hash_bytes(data: bytes) -> int:
    """The 64-bit hash that names a query's random stream."""
    multiplier, full = 0x9E3779B97F4A7C15, (1 << 64) - 1
    state = multiplier ^ len(data)
    for start in range(0, len(data), 8):
        word = int.from_bytes(data[start : start + 8], "little")
        state = ((state ^ word) * multiplier) & full
        state ^= state >> 29
    words = philox(state, state, 0)
    return words[1] << 32 | words[0]


def keyed_hash(key: tuple[int, int], data: bytes, rounds: tuple[int, int] = (1, 3)) -> int:
    """SipHash of bytes under a key, with this many rounds per word and at the end: finds string ids."""
    full = (1 << 64) - 1
    v: list[int] = [
        word ^ key[i % 2] for i, word in enumerate(struct.unpack(">4Q", b"somepseudorandomlygeneratedbytes"))
    ]

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & full

    def mix(count: int) -> None:
        for _ in range(count):
            v[0], v[2] = (v[0] + v[1]) & full, (v[2] + v[3]) & full
            v[1], v[3] = rotate(v[1], 13) ^ v[0], rotate(v[3], 16) ^ v[2]
            v[0], v[2] = (rotate(v[0], 32) + v[3]) & full, (v[2] + v[1]) & full
            v[3], v[1], v[2] = rotate(v[3], 21) ^ v[0], rotate(v[1], 17) ^ v[2], rotate(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        mix(rounds[0])
        v[0] ^= word
    v[2] ^= 0xFF
    mix(rounds[1])
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def cluster_masses(
    vectors: NDArray[Any],
    offsets: NDArray[Any],
    query: NDArray[Any],
    temperature: float,
    bias: NDArray[Any] | None,
) -> Doubles:
    """The exact log masses (k,) of all clusters, from a scan of all items; -inf for an empty cluster."""
    dots = scan(vectors, query)
    masses = np.full(len(offsets) - 1, -np.inf)
    for cluster, (begin, end) in enumerate(pairwise(offsets)):
        if end > begin:
            cluster_bias = None if bias is None else bias[begin:end]
            masses[cluster] = weigh(dots[begin:end], temperature, cluster_bias)[1]
    return masses


def log_size_terms(moments: Moments | Tree, size: bool) -> Doubles:
    """What a law adds to the log mass of each cluster (or node of a tree) for its size; -inf where it is empty.

    A law without sizes gives every cluster the average size, so that its log Z is on the same scale as the others'; of
    two nodes only the difference matters.
    """
    log_sizes = moments.log_sizes
    if size:
        return log_sizes
    filled = np.isfinite(log_sizes)
    average = 0.0 if isinstance(moments, Tree) else np.logaddexp.reduce(log_sizes[filled]) - np.log(filled.sum())
    return np.where(filled, average, -np.inf)


def estimated_masses(
    moments: Moments | Tree, query: NDArray[Any], temperature: float, offset: NDArray[Any], dispersion: bool
) -> Doubles:
    """Log masses of clusters (or nodes of a tree) under a two-level law: q.mean / t + offset + q' S q / (2 t^2)."""
    masses = scan(moments.means, query) / temperature + offset
    if dispersion:
        masses = masses + quadratic(moments.dispersion, query) / (2.0 * temperature**2)
    return np.asarray(masses)


def leaf_shares(tree: Tree, query: NDArray[Any], temperature: float, offset: NDArray[Any], dispersion: bool) -> Doubles:
    """Log shares (k,) of all clusters: on the way down, every node divides its share by a softmax over two children."""
    masses = estimated_masses(tree, query, temperature, offset, dispersion).reshape(-1, 2)
    steps = masses - np.logaddexp(masses[:, :1], masses[:, 1:])
    paths, leaves = np.zeros(len(tree.children)), np.zeros(len(tree.children) + 1)
    for node, pair in enumerate(tree.children):
        for child, step in zip(pair, steps[node], strict=True):
            if child >= 0:
                paths[child] = paths[node] + step
            else:
                leaves[-1 - child] = paths[node] + step
    return leaves


def law_log_prob(log_masses: NDArray[Any], true_masses: NDArray[Any], item_logits: list[NDArray[Any]]) -> Doubles:
    """Log-probabilities (n,) of all items, in cluster order, under a law with these log masses.

    log_masses (k,) of the law, true_masses (k,), item_logits: one array per cluster.
    """
    normalised = log_masses - log_sum_exp(log_masses)
    parts = [
        normalised[cluster] + logits - true_masses[cluster] for cluster, logits in enumerate(item_logits) if len(logits)
    ]
    return np.concatenate(parts)


def top_k(scores: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Positions of the k largest scores, best first; ties go to the lower position."""
    return np.argsort(-scores.astype(np.float64), kind="stable")[:k].astype(np.int64)


def sketch_codes(values: NDArray[np.uint8], d: int) -> NDArray[np.int64]:
    """Codes (16 blocks, d), 0 .. 15, of a sketch (blocks, groups, 64): see `records.Sketch`."""
    blocks, groups, _ = values.shape
    items = values.reshape(blocks, groups, 16, 4).transpose(0, 2, 1, 3)
    halves = np.stack([items & 15, items >> 4], axis=3).reshape(16 * blocks, 8 * groups)
    return halves[:, :d].astype(np.int64)


def sketch_masks(
    values: NDArray[np.uint8], scales: Floats, queries: NDArray[np.int8], shift: np.float32, least: np.float32
) -> NDArray[np.bool_]:
    """Which items (b, 16 blocks) reach: scale * (dot + shift) >= least, each step in float32."""
    dots = queries.astype(np.int64) @ sketch_codes(values, queries.shape[1]).T
    reached: Floats = scales.reshape(-1) * (dots.astype(np.float32) + np.float32(shift))
    return ~(reached < np.float32(least))


def conditional_law(log_prob: NDArray[Any], excluded: NDArray[Any]) -> Doubles:
    """The law (n,) given that no excluded position is drawn: -inf there, renormalised elsewhere."""
    left = log_prob.astype(np.float64)
    left[np.asarray(excluded, np.int64)] = -np.inf
    return left - log_sum_exp(left)


def masses_without(log_masses: NDArray[Any], item_logits: list[NDArray[Any]], gone: list[NDArray[Any]]) -> Doubles:
    """Log masses (k,) of a law that estimates the sums of clusters, after items are taken away.

    item_logits and gone: one array per cluster; gone is True where an item is.  A mass falls by the share that the
    lost items have of their cluster.  In a large cluster that lost few of its items it is their share of the mass
    itself, so that nothing else of the cluster need be read.
    """
    masses = log_masses.astype(np.float64)
    for cluster, (logits, lost) in enumerate(zip(item_logits, gone, strict=True)):
        if not lost.any():
            continue
        share = np.exp(logits[lost] - log_masses[cluster]).sum()
        if len(logits) > SMALL_CLUSTER and lost.sum() * SCAN_PER_ITEM < len(logits) and share <= LARGEST_SHARE:
            masses[cluster] += np.log1p(-share)
        else:
            masses[cluster] += log_sum_exp(logits[~lost]) - log_sum_exp(logits) if not lost.all() else -np.inf
    return masses


def sequential_law(log_prob: NDArray[Any], drawn: NDArray[Any]) -> Doubles:
    """Log-probability of each step of drawing these positions (m,) in this order, without replacement."""
    return np.array([conditional_law(log_prob, drawn[:step])[position] for step, position in enumerate(drawn)])


def nucleus(log_prob: NDArray[Any], top_p: float) -> Doubles:
    """The law (n,) of the fewest items that reach top_p, most probable first; ties go to the lower position."""
    order = np.argsort(-log_prob.astype(np.float64), kind="stable")
    reached = np.cumsum(np.exp(log_prob[order]))
    # A sum that equals top_p in theory may fall short by rounding.
    count = int(np.searchsorted(reached, top_p * (1 - 1e-12))) + 1
    return conditional_law(log_prob, order[count:])


def top_k_law(logits: NDArray[Any], k: int) -> Doubles:
    """The softmax (n,) of the k largest logits, -inf elsewhere; ties go to the lower position."""
    return conditional_law(logits, np.argsort(-logits.astype(np.float64), kind="stable")[k:])
