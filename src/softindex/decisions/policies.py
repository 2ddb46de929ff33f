"""Policies: what shows items.  Their propensities for logged decisions come from `log_prob`, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from softindex.arguments import check_temperature
from softindex.decisions.asking import CHOICES, ask_log_prob, ask_parts, unlogged
from softindex.decisions.batches import Batch
from softindex.errors import InputError, show
from softindex.records import Doubles, Floats, Ids

__all__ = ["Policy", "options_of"]

LAW = ("method", "probes", "tolerance", "top_p", "k")


class Policy:
    """An index at a temperature, with a method: the same items, or others, under the same ids.

        Policy(index, 0.05, method="top-k", k=100)

    What a user could not be shown, by `exclude` or `allow` of the logged decision, the policy does not show either.

    Args:
        index: An `Index`, a snapshot of a catalogue, a subset or a `Client`.
        temperature: Of all its draws.
        encode: Turns logged queries (b, d) into those of this index, where another model made it.
        **options: Of `sample`, where they differ from its defaults: method, probes, tolerance, top_p, k, unknown and
            threads.
    """

    __slots__ = ("encode", "index", "options", "temperature")

    def __init__(
        self, index: Any, temperature: float, *, encode: Callable[[Floats], Floats] | None = None, **options: Any
    ) -> None:
        wrong = options.keys() - {*LAW, "unknown", "threads"}
        if wrong:
            raise InputError(f"{show(min(wrong))} is not an option of a policy; pass some of {', '.join(LAW)}.")
        if not (hasattr(index, "log_prob") and hasattr(index, "sample")):
            raise InputError(
                f"the index of a policy is a {type(index).__name__}; pass an Index, a snapshot of a catalogue, or a "
                "Client."
            )
        self.index, self.temperature = unlogged(index), check_temperature(temperature)
        self.encode, self.options = encode, options

    @property
    def restricted(self) -> bool:
        """Whether it never shows some items: the k best only, or a nucleus."""
        return self.options.get("method") == "top-k" or self.options.get("top_p", 1.0) < 1.0

    def log_prob(self, batch: Batch) -> Doubles:
        """(b, n) log-probability of each logged item, given those before it in a slate; -inf where it is not shown."""
        return ask_log_prob(
            self.index,
            self.queries(batch),
            batch.ids,
            temperature=self.temperature,
            missing="-inf",
            **({} if batch.replace else {"replace": False}),
            **self._choices(batch),
        )

    def sample(self, batch: Batch, n: int, seed: int) -> tuple[Ids, Doubles]:
        """ids (b, n), each as this policy would choose the first of a slate, and the stated errors (b,)."""
        asked = {"temperature": self.temperature, "seed": seed, **self._choices(batch)}
        parts = ask_parts(self.index, asked, self.queries(batch), by_query=CHOICES)
        drawn = [self.index.sample(some, n, **own) for some, own in parts]
        return np.concatenate([one.ids for one in drawn]), np.concatenate([np.atleast_1d(one.error) for one in drawn])

    def queries(self, batch: Batch) -> Floats:
        """(b, d) as this index takes them."""
        if batch.queries is None:
            raise InputError("this log keeps hashes of the queries; log the queries to evaluate another policy.")
        return batch.queries if self.encode is None else self.encode(batch.queries)

    def _choices(self, batch: Batch) -> dict[str, Any]:
        """The options of a call for these decisions; ids that this index does not hold cannot be left out of it."""
        left = {name: getattr(batch, name) for name in CHOICES if getattr(batch, name) is not None}
        return {**({"unknown": "ignore"} if left else {}), **self.options, **left}


def options_of(batch: Batch) -> dict[str, Any]:
    """The options of `sample` that these decisions were drawn with."""
    options = {name: value for name, value in batch.options.items() if name != "candidates"}
    options |= {name: getattr(batch, name) for name in CHOICES if getattr(batch, name) is not None}
    temperature = batch.temperature
    return {**options, "temperature": float(temperature[0]) if np.ptp(temperature) == 0 else temperature}
