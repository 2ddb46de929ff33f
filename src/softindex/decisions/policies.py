"""Policies: what shows items.  Their propensities for logged decisions come from `log_prob`, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softindex.arguments import check_temperature
from softindex.decisions.batches import Batch
from softindex.errors import InputError, show
from softindex.records import Doubles, Draws, Floats

__all__ = ["Policy", "options_of"]

LAW = ("method", "probes", "tolerance", "top_p", "k")


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """An index at a temperature, with a method: the same items, or others, under the same ids.

    What a user could not be shown, by `exclude` or `allow` of the logged decision, the policy does not show either.
    """

    index: Any
    """An `Index`, a snapshot, a subset or a `Client`."""
    temperature: float
    options: dict[str, Any] = field(default_factory=dict)
    """Of `sample`, where they differ from its defaults: method, probes, tolerance, top_p, k, unknown, threads."""
    encode: Callable[[Floats], Floats] | None = None
    """Turns logged queries into those of this index, where another model made it."""

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        wrong = self.options.keys() - {*LAW, "unknown", "threads"}
        if wrong:
            raise InputError(f"{show(min(wrong))} is no option of a policy; pass some of {', '.join(LAW)}.")

    @property
    def restricted(self) -> bool:
        """Whether it never shows some items: the k best only, or a nucleus."""
        return self.options.get("method") == "top-k" or self.options.get("top_p", 1.0) < 1.0

    def log_prob(self, batch: Batch) -> Doubles:
        """(b, n) log-probability of each logged item, given those before it in a slate; -inf where it is not shown."""
        found: Doubles = self.index.log_prob(
            self.queries(batch),
            batch.ids,
            temperature=self.temperature,
            missing="-inf",
            **({} if batch.replace else {"replace": False}),
            **self._choices(batch),
        )
        return found

    def sample(self, batch: Batch, n: int, seed: int) -> Draws:
        """n items for each decision, as this policy would choose the first of a slate."""
        found: Draws = self.index.sample(
            self.queries(batch), n, temperature=self.temperature, seed=seed, **self._choices(batch)
        )
        return found

    def queries(self, batch: Batch) -> Floats:
        """(b, d) as this index takes them."""
        if batch.queries is None:
            raise InputError("this log keeps hashes of the queries; log the queries to evaluate another policy.")
        return batch.queries if self.encode is None else self.encode(batch.queries)

    def _choices(self, batch: Batch) -> dict[str, Any]:
        """The options of a call for these decisions; ids that this index does not hold cannot be left out of it."""
        left = {name: getattr(batch, name) for name in ("exclude", "allow") if getattr(batch, name) is not None}
        return {**({"unknown": "ignore"} if left else {}), **self.options, **left}


def options_of(batch: Batch) -> dict[str, Any]:
    """The options of `sample` that these decisions were drawn with."""
    options = {name: value for name, value in batch.options.items() if name != "candidates"}
    options |= {name: getattr(batch, name) for name in ("exclude", "allow") if getattr(batch, name) is not None}
    temperature = batch.temperature
    return {**options, "temperature": float(temperature[0]) if np.ptp(temperature) == 0 else temperature}
