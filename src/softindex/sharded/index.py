"""The reading side of `Index` over shards: checks the arguments, asks every shard once, and merges the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from softindex.arguments import (
    check_confidence,
    check_count,
    check_queries,
    check_seed,
    check_threads,
)
from softindex.calls import spread_positions
from softindex.errors import InputError, MethodError
from softindex.ids import as_ids
from softindex.laws import CERTIFIED, EXACT, TOP_K, Method, find_bounds
from softindex.records import Doubles, Draws, Estimate, Floats, TopK
from softindex.restrictions import Missing, Unknown
from softindex.sharded import drawing
from softindex.sharded.asking import check_drawing, check_found, check_left, choose
from softindex.sharded.merging import merge_best, sum_log_z, take
from softindex.sharded.questions import Answer, Description, Question
from softindex.temperatures import Temperature, check_each_temperature

__all__ = ["Ask", "ShardedIndex"]

Ask = Callable[[Question], Sequence[Answer]]
"""Asks every shard and returns all answers, in the order of the shards; raises where one does not answer."""


class ShardedIndex:
    """Shards that answer as one index.  Made by `softindex.sharded.join`, or by `softindex.ray.open`.

    The methods and their arguments are those of `Index`; `probes` and `tolerance` hold for each shard.  Every call asks
    every shard once for all queries.  "certified" asks again for log Z of the queries for which proven bounds leave a
    shard open, and `top_p` where a shard has listed too few items.

    Laws: "exact", "certified" and "top-k" are those of one index of all items, and so is `top_k` with its proofs.  A
    method that estimates picks shards by its estimates of their log Z, and states an error that includes theirs.  The
    tree methods have no log Z and are refused.
    """

    def __init__(self, ask: Ask, description: Description) -> None:
        self._ask = ask
        self._description = description

    def __len__(self) -> int:
        return self._description.items

    def __repr__(self) -> str:
        known = self._description
        return f"<softindex.ShardedIndex: {known.items} items, {known.dim} dimensions, {known.shards} shards>"

    @property
    def dim(self) -> int:
        """Dimensions of a query."""
        return self._description.dim

    @property
    def shards(self) -> int:
        """Number of shards."""
        return self._description.shards

    @property
    def parameters(self) -> dict[str, Any]:
        """What all shards were built with."""
        return dict(self._description.parameters)

    def sample(
        self,
        queries: ArrayLike,
        n: int = 1,
        *,
        temperature: Temperature,
        method: Method = "sd-2ls",
        probes: int | None = None,
        tolerance: float | None = None,
        replace: bool = True,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        top_p: float | None = None,
        k: int | None = None,
        seed: int | None = None,
        threads: int | None = None,
    ) -> Draws:
        """Draw n items per query, as `Index.sample` does, which explains the arguments.

        `exclude` and `allow` take ids; masks are refused, as no process knows the order of all items.  The same seed
        and query give the same draws in any batch; another number of shards gives other draws of the same law.
        """
        batch, single = check_queries(queries, self.dim)
        count, key = check_count(n, "n"), check_seed(seed)
        share, best = check_drawing(self._description, (len(batch), count), method, probes, tolerance, (top_p, k))
        options = self._options(check_each_temperature(temperature, len(batch)), method, probes, tolerance, threads)
        chosen = choose(len(batch), exclude, allow, unknown)
        listed = best is not None or share < 1
        if not listed:
            options["replace"] = drawing.check_replace(replace)
        size = count if best is None else best
        question = Question("listed" if listed else "sample", batch, options, chosen, n=size, seed=key, top_p=share)
        answers = self._ask(question)
        check_found(answers, chosen)
        check_left(answers, chosen, 1 if replace is True else count)
        if listed:
            drawn = drawing.draw_from_lists(self._ask, question, answers, count, drawing.check_replace(replace))
        elif replace:
            drawn = drawing.draw_with_replacement(self._ask, question, answers)
        else:
            drawn = drawing.draw_slates(question, answers)
        drawn.method, drawn.seed = method, key
        return drawing.without_rows(drawn) if single else drawn

    def log_prob(
        self,
        queries: ArrayLike,
        ids: Any,
        *,
        temperature: Temperature,
        method: Method = "sd-2ls",
        probes: int | None = None,
        tolerance: float | None = None,
        replace: bool = True,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        top_p: float | None = None,
        k: int | None = None,
        missing: Missing = "error",
        threads: int | None = None,
    ) -> Doubles:
        """Natural log of the probability that one draw of `sample` returns the id, or of steps, as `Index.log_prob`."""
        batch, single = check_queries(queries, self.dim)
        share, best = check_drawing(self._description, (len(batch), 1), method, probes, tolerance, (top_p, k))
        options = self._options(check_each_temperature(temperature, len(batch)), method, probes, tolerance, threads)
        chosen, given = choose(len(batch), exclude, allow, unknown), as_ids(ids)
        wanted = spread_positions(given, len(batch), single)
        listed = best is not None or share < 1
        options["replace"] = drawing.check_replace(replace)
        name, size = ("listed", 1 if best is None else best) if listed else ("log_prob", 1)
        question = Question(name, batch, options, chosen, n=size, ids=wanted, top_p=share)
        answers = self._ask(question)
        check_found(answers, chosen, wanted, missing)
        check_left(answers, chosen, 1)
        if listed:
            result = drawing.log_prob_of_lists(self._ask, question, answers)
        else:
            result = drawing.log_prob_of_shards(answers)
        return result.reshape(given.shape) if single else result

    def log_partition(
        self,
        queries: ArrayLike,
        *,
        temperature: Temperature,
        method: Method = "sd-2ls",
        probes: int | None = None,
        tolerance: float | None = None,
        width: float | None = None,
        confidence: float | None = None,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> Estimate:
        """Log of Z of the items left, as `Index.log_partition`.

        Bounds of the shards add up to bounds of all.  With a `confidence` each shard gets a part of what may fail, so
        that all of them hold together with that confidence.
        """
        batch, single = check_queries(queries, self.dim)
        check_drawing(self._description, (len(batch), 1), method, probes, tolerance, (None, None))
        if method == TOP_K:
            raise MethodError(f"{TOP_K} leaves items out, and so has no log Z of all items; use another method.")
        find_bounds(method, probes=probes, tolerance=tolerance, width=width, confidence=confidence)
        options = self._options(check_each_temperature(temperature, len(batch)), method, probes, tolerance, threads)
        options["width"] = width
        each = None if confidence is None else 1 - (1 - check_confidence(confidence)) / self.shards
        options["confidence"] = each
        chosen = choose(len(batch), exclude, allow, unknown)
        answers = self._ask(Question("log_partition", batch, options, chosen, seed=check_seed(seed)))
        check_found(answers, chosen)
        check_left(answers, chosen, 1)
        total = sum_log_z([one.log_z for one in answers if one.log_z is not None])
        stated = {one.guarantee for one in answers if one.guarantee is not None}
        bounded = method in (EXACT, CERTIFIED) or confidence is not None
        parts = (total.value, total.low, total.high) if bounded else (total.value, None, None)
        value, low, high = (part if part is None or not single else part[0] for part in parts)
        assert value is not None
        if not bounded:
            return Estimate(value, error=total.error[0] if single else total.error)
        return Estimate(value, low, high, "calibrated" if "calibrated" in stated else min(stated, default="proven"))

    def top_k(
        self,
        queries: ArrayLike,
        k: int,
        *,
        temperature: Temperature = 1.0,
        probes: int | None = None,
        recall: float | None = None,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        threads: int | None = None,
    ) -> TopK:
        """Return the k items of highest score, best first, as `Index.top_k`.

        Equal scores come in the order of the shards.  `recall` is asked of each shard.
        """
        batch, single = check_queries(queries, self.dim)
        count = check_count(k, "k")
        if count > len(self):
            raise InputError(f"k is {count} but the index holds {len(self)} items; ask for at most that many.")
        options = {"temperature": check_each_temperature(temperature, len(batch)), "probes": probes, "recall": recall}
        options["threads"] = None if threads is None else check_threads(threads)
        chosen = choose(len(batch), exclude, allow, unknown)
        answers = self._ask(Question("top_k", batch, options, chosen, n=count))
        check_found(answers, chosen)
        check_left(answers, chosen, count, best=True)
        found = drawing.columns(answers, "ids", "scores", "proven", "rest", "recall", "items_scored")
        shards, places, scores, proven, gap = merge_best(found[1], found[2], np.stack(found[3]), count)
        expected = take([one[:, None] for one in found[4]], shards, np.zeros_like(shards)).mean(axis=1)
        ids, scored = take(found[0], shards, places), np.sum(found[5], axis=0)
        result = TopK(ids, scores.astype(np.float32), proven, gap, scored, recall=expected)
        return drawing.without_rows(result) if single else result

    def vectors(self, ids: Any) -> Floats:
        """(m, d) the vectors of these ids, (m,); (d,) for a single id."""
        wanted = np.atleast_1d(as_ids(ids))
        nothing = np.zeros((1, self.dim), np.float32)
        answers = self._ask(Question("vectors", nothing, {}, ids=wanted))
        check_found(answers, choose(1, None, None, None), wanted, "error")
        result = np.empty((len(wanted), self.dim), np.float32)
        for one in answers:
            result[one.known[2]] = one.vectors
        return result[0] if np.ndim(ids) == 0 else result

    def _options(self, temperature: Any, method: str, probes: Any, tolerance: Any, threads: Any) -> dict[str, Any]:
        return {
            "temperature": temperature,
            "method": method,
            "probes": probes,
            "tolerance": tolerance,
            "threads": None if threads is None else check_threads(threads),
        }
