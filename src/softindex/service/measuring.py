"""How far a method is from the exact softmax, for the page: its stated error against the measured one."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from softindex.errors import InputError
from softindex.index import Index
from softindex.laws import CERTIFIED, EXACT, TOP_K
from softindex.records import Doubles
from softindex.service.answers import PerQuery, plain
from softindex.service.bodies import LawBody

__all__ = ["MeasureAnswer", "MeasureBody", "answer_measure", "measure"]


class MeasureBody(LawBody, kw_only=True, forbid_unknown_fields=True):
    """The law to measure."""


class MeasureAnswer(msgspec.Struct, kw_only=True):
    """Total variation between the law of a method and the exact softmax."""

    stated: PerQuery
    """What the method states; null where it states none."""
    measured: PerQuery
    snapshot: int | None = None


def measure(index: Any, queries: Any, *, threads: int, method: str = "sd-2ls", **options: Any) -> tuple[Any, Any]:
    """Stated and measured total variation of each query.

    All methods draw exactly inside a cluster, so their laws differ in the masses of the clusters alone.
    """
    if not isinstance(index, Index):
        raise InputError("the error of this kind of index is proven, and not measured here.")
    if method == TOP_K:
        raise InputError("top-k leaves items out on purpose, and states the probability that it leaves out.")
    batch, single = np.atleast_2d(queries), np.ndim(queries) == 1
    # Certified draws follow the exact softmax.
    law: Any = EXACT if method == CERTIFIED else method
    masses, stated, _ = index.cluster_log_masses(batch, method=law, threads=threads, **options)
    truth, _, _ = index.cluster_log_masses(batch, temperature=options["temperature"], method=EXACT, threads=threads)
    measured = np.abs(_normalised(masses) - _normalised(truth)).sum(axis=1) / 2
    return (stated[0], measured[0]) if single else (stated, measured)


def answer_measure(found: tuple[Any, Any], snapshot: int | None) -> MeasureAnswer:
    """The answer to a measurement."""
    return MeasureAnswer(stated=plain(found[0]), measured=plain(found[1]), snapshot=snapshot)


def _normalised(masses: Doubles) -> Doubles:
    weights: Doubles = np.exp(masses - masses.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights
