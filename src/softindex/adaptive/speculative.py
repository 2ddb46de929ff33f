"""Speculative sampling: a draft proposes a class, and the layer accepts it or draws from what the draft misses."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from softindex.adaptive.softmax import AdaptiveSoftmax
from softindex.arguments import check_seed
from softindex.errors import InputError, show
from softindex.records import Doubles, Draws, Integers
from softindex.streams import generators
from softindex.temperatures import check_each_temperature

__all__ = ["Draft", "Speculated", "speculate"]

FIRST_EPSILON, LAST_EPSILON = 0.3, 1e-9
"""Relative error of Z at first, and where that cannot decide.  At the last one every row is scored."""


class Draft(Protocol):
    """Where proposals come from: an `Index` over the rows of the layer, or anything with these two methods."""

    def sample(self, queries: Any, n: int = 1, *, temperature: Any, seed: int | None = None, **law: Any) -> Draws:
        """Draws with their log-probabilities."""

    def log_prob(self, queries: Any, ids: Any, *, temperature: Any, **law: Any) -> Doubles:
        """Log of the probability that one draw returns each of the ids."""


class Speculated(NamedTuple):
    """One draw per query."""

    ids: Integers
    """(b,)"""
    accepted: NDArray[np.bool_]
    """(b,) whether it is the draft's proposal."""
    seed: int


def speculate(
    layer: AdaptiveSoftmax, draft: Draft, queries: ArrayLike, *, temperature: Any, seed: int | None = None, **law: Any
) -> Speculated:
    """Draw one class per query from the softmax of the layer itself, whatever the draft is.

    The draft proposes class x with probability q(x).  It is accepted with probability min(1, p(x) / q(x)), p being the
    softmax of the layer; otherwise the draw is one from max(p - q, 0), normalised.  Bounds on log Z decide most
    proposals; where they cannot, and where a proposal is rejected, every row is scored.  The share of rejections is the
    total variation between q and p.

    Args:
        layer: The layer to draw from.
        draft: Proposes class numbers of the layer.
        queries: Query vectors, (b, d).
        temperature: Of the layer and of the draft.
        seed: The same seed gives the same draws; None for a fresh one, which the result reports.
        law: Options that the draft's `sample` and `log_prob` both take, such as `method` and `probes`.

    Raises:
        InputError: When the draft proposes what is no class of the layer, or an argument is wrong.
    """
    if not isinstance(layer, AdaptiveSoftmax):
        raise InputError(f"layer is {show(layer)}; expected an AdaptiveSoftmax.")
    vectors, key = np.atleast_2d(np.asarray(queries, np.float32)), check_seed(seed)
    each = np.broadcast_to(check_each_temperature(temperature, len(vectors)), len(vectors))
    proposed = draft.sample(vectors, 1, temperature=temperature, seed=key, **law)
    ids: Any = np.array(proposed.ids[:, 0])
    if ids.dtype.kind not in "iu" or (ids < 0).any() or (ids >= len(layer)).any():
        raise InputError("the draft proposes ids that are no class of the layer; build it over the rows of the layer.")
    streams = generators((b"accept" + vector.tobytes() for vector in vectors), key)
    # 1 - u is never zero.
    thresholds = np.log([1.0 - rng.random() for rng in streams]) + np.asarray(proposed.log_prob)[:, 0]
    accepted = _accepted(layer, vectors, ids, thresholds, each)
    every = np.arange(len(layer))
    for row in np.flatnonzero(~accepted):
        of: dict[str, Any] = {"temperature": float(each[row])}
        p = np.exp(layer.log_prob(vectors[row], every, epsilon=LAST_EPSILON, guarantee="exact", **of))
        rest = np.maximum(p - np.exp(draft.log_prob(vectors[row], every, **of, **law)), 0.0)
        running = np.cumsum(rest)
        ids[row] = np.searchsorted(running, streams[row].random() * running[-1], side="right")
    return Speculated(ids, accepted, key)


def _accepted(
    layer: AdaptiveSoftmax, vectors: NDArray[Any], ids: Integers, thresholds: Doubles, each: Doubles
) -> NDArray[np.bool_]:
    """Which proposals have a log-probability of at least their threshold, at the temperature of each query."""
    accepted, open_rows = np.zeros(len(ids), bool), np.arange(len(ids))
    for epsilon in (FIRST_EPSILON, LAST_EPSILON):
        here: dict[str, Any] = {"temperature": each[open_rows], "epsilon": epsilon}
        log_z: Any = layer.log_partition(vectors[open_rows], **here)
        logits = layer.log_prob(vectors[open_rows], ids[open_rows, None], **here)[:, 0] + log_z.value
        certain = logits - log_z.high >= thresholds[open_rows]
        accepted[open_rows[certain]] = True
        # At the last epsilon the bounds are one number, up to rounding.
        undecided = ~certain & (logits - log_z.low >= thresholds[open_rows])
        open_rows = open_rows[undecided]
        if len(open_rows) == 0:
            break
    return accepted
