"""The queries of one call, and what they have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from softindex.adaptive.classes import Exclusion
from softindex.records import Floats

__all__ = ["Call"]


@dataclass(frozen=True, slots=True)
class Call:
    """The queries of one call, and what they have in common."""

    vectors: Floats
    """(b, d)"""
    single: bool
    """Whether the caller passed one query (d,)."""
    temperature: float
    exclusion: Exclusion
    threads: int
    limit: float = math.inf
    """Largest square of a query's length; only native code that copies the queries looks at it."""

    @property
    def inverse(self) -> float:
        """One over the temperature."""
        return 1.0 / self.temperature
