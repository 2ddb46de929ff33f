"""IndexedSoftmax: the few best classes of an index's items, with log Z from its clusters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from softindex.adaptive.answers import collect_best, collect_log_partition
from softindex.adaptive.calls import Call
from softindex.adaptive.classes import check_left, check_unknown
from softindex.adaptive.goals import BestClasses
from softindex.adaptive.layer import Logits
from softindex.adaptive.queries import check_given
from softindex.adaptive.softmax import AdaptiveSoftmax
from softindex.adaptive.strategies import Answer, Cost
from softindex.adaptive.tail import Best, Tail, Ways, without
from softindex.arguments import check_choice, check_confidence, check_count, check_fraction
from softindex.calls import spread_positions
from softindex.errors import InputError, show
from softindex.index import Index
from softindex.records import Doubles, Estimate, Integers, TopK
from softindex.restrictions import Unknown, left_out
from softindex.temperatures import Temperature, temperature_of

__all__ = ["IndexedGuarantee", "IndexedSoftmax"]

IndexedGuarantee = Literal["deterministic", "calibrated"]
MOST_EXCLUDED = 1024
"""The mass of so many excluded rows is subtracted from Z; for more, rows are screened."""
ROOM = 1 - 1e-6
"""Of epsilon: the rest is for rounding."""


class IndexedSoftmax:
    """`AdaptiveSoftmax` over the items of an index, which first asks the index.

    The index finds the best classes by its proven search, and log Z by bounds on clusters: proven ones for
    "deterministic", calibrated ones for "calibrated".  Where that does not suffice, or would take too long, rows are
    screened as by `AdaptiveSoftmax`, in four and eight bits.  Short or clustered rows gain most.

    Classes have the ids of the index.  The index keeps the rows; the copies in few bits are made again with every
    object, so save the index.

    Args:
        index: Made by `build` or `load`, with float32 vectors; or a subset, or the snapshot of a catalogue.

    Raises:
        InputError: When it is no index, or keeps its items in fewer bits.
    """

    __slots__ = ("_ids", "_tail", "index", "layer")

    def __init__(self, index: Index) -> None:
        if not isinstance(index, Index):
            raise InputError(f"index is {show(index)}; expected an index, as from build, load or snapshot().")
        if index.parameters.get("storage", "float32") != "float32":
            raise InputError(
                f"this index keeps its items as {index.parameters['storage']}; build it with storage='float32'."
            )
        items = index.items
        self.index = index
        self.layer = AdaptiveSoftmax(items.vectors, items.bias, log_bias=items.log_bias)
        """The same softmax without the index; its classes are numbered in the order of `index.ids`."""
        self._tail, self._ids = Tail(index, self.layer._solver.layer), index.ids

    def __len__(self) -> int:
        return len(self.layer)

    @property
    def dim(self) -> int:
        """Numbers in an item."""
        return self.layer.dim

    def __repr__(self) -> str:
        return f"<softindex.adaptive.IndexedSoftmax: {len(self)} classes, {self.dim} dimensions>"

    def top_k(
        self,
        queries: ArrayLike,
        k: int,
        *,
        temperature: Temperature,
        epsilon: float = 0.3,
        confidence: float = 0.95,
        guarantee: IndexedGuarantee = "deterministic",
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        threads: int | None = None,
    ) -> TopK:
        """Return the k most probable classes, and their probabilities within relative error epsilon.

        The k best are proven for both guarantees: only what is said about Z differs.

        - "deterministic": Z is proven, by bounds on clusters or by screens.
        - "calibrated": Z holds with the given confidence for queries like those passed to `index.calibrate`; where the
          calibrated interval is wider than epsilon allows, it is proven by screens.

        Args:
            queries: Query vectors, (b, d) or (d,); sparse ones as for `AdaptiveSoftmax.top_k`.
            k: Number of classes.
            temperature: Divides the scores and the bias; one for all queries, or (b,), one for each.
            epsilon: Relative error allowed in the probabilities and in Z.
            confidence: Probability with which "calibrated" holds.
            guarantee: See above.
            exclude: Ids to leave out, for all queries or one sequence per query; or booleans, as for `Index.sample`.
            allow: The only ids to have, in the same forms.  Rows are screened then.
            unknown: What to do with ids in `exclude` and `allow` that the index does not hold, as for `Index.sample`.
            threads: Number of threads; None for all CPUs.

        Returns:
            As from `AdaptiveSoftmax.top_k`, with the ids of the index.  `guarantee` is the one that each answer has:
            "exact" where every row was scored.  `multiplications` and `bytes_read` are upper bounds: the search of the
            index does not count what it reads of its copy in four bits.

        Raises:
            InputError: When an argument is out of range, or k exceeds the classes that are left.
            MethodError: When the index is not calibrated for this temperature and confidence.
        """
        call, excluded = self._call(queries, temperature, (exclude, allow, unknown), threads)
        count = check_count(k, "k", len(self))
        call.exclusion.check_fits(count)
        goal = BestClasses(count, check_fraction(epsilon, "epsilon", 0.3))
        answers = self._answers(call, excluded, goal, self._factor(call, guarantee, confidence), searched=True)
        found = collect_best(answers, call.temperature, len(self), single=call.single)
        # Whatever is known of Z, the search of the index or the screens have proven these.
        gap = 0.0 if call.single else np.zeros(len(answers))
        return replace(found, ids=self._ids[found.ids], proven=np.ones(found.ids.shape, bool), gap=gap)

    def log_partition(
        self,
        queries: ArrayLike,
        *,
        temperature: Temperature,
        epsilon: float = 0.3,
        confidence: float = 0.95,
        guarantee: IndexedGuarantee = "deterministic",
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        threads: int | None = None,
    ) -> Estimate:
        """Return log Z with bounds; Z is within relative error epsilon of exp(value).

        Args:
            queries: Query vectors, (b, d) or (d,).
            temperature: As for `top_k`, like all other arguments.

        Returns:
            Value, low and high, each (b,), of the classes that are not excluded; its guarantee is "proven", or
            "calibrated" if that of any query is.
        """
        call, excluded = self._call(queries, temperature, (exclude, allow, unknown), threads)
        goal = BestClasses(1, check_fraction(epsilon, "epsilon", 0.3))
        answers = self._answers(call, excluded, goal, self._factor(call, guarantee, confidence), searched=False)
        weaker = any(answer.guarantee == "calibrated" for answer in answers)
        found = collect_log_partition(answers, single=call.single)
        return replace(found, guarantee="calibrated" if weaker else "proven")

    def log_prob(
        self,
        queries: ArrayLike,
        ids: Any,
        *,
        temperature: Temperature,
        epsilon: float = 0.3,
        confidence: float = 0.95,
        guarantee: IndexedGuarantee = "deterministic",
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        threads: int | None = None,
    ) -> Doubles:
        """Return log-probabilities of given ids; each probability is within relative error epsilon.

        The logits are exact; the error is that of log Z, the same for all ids of a query.

        Args:
            queries: Query vectors, (b, d) or (d,).
            ids: (b, m), or (m,) for all queries.
            temperature: As for `top_k`, like all other arguments.

        Returns:
            (b, m) float64; -inf for an excluded id.
        """
        call, excluded = self._call(queries, temperature, (exclude, allow, unknown), threads)
        goal = BestClasses(1, check_fraction(epsilon, "epsilon", 0.3))
        rows = spread_positions(self._tail.rows(self.index._contents.ids.find(ids)), len(call.vectors), call.single)
        answers = self._answers(call, excluded, goal, self._factor(call, guarantee, confidence), searched=False)
        result = np.empty(rows.shape)
        for row, answer in enumerate(answers):
            # log Z may be a little too small, and a probability is never above one.
            logits = self.layer._solver.logits(call, row, rows[row])
            result[row] = np.minimum(logits - answer.log_partition[0], 0.0)
            result[row, np.isin(rows[row], call.exclusion.excluded(row))] = -np.inf
        return result.reshape(np.shape(ids)) if call.single else result

    def _call(
        self, queries: Any, temperature: Any, chosen: tuple[Any, Any, Any], threads: Any
    ) -> tuple[Call, list[Integers]]:
        """The call of the layer, and the rows that its queries may not have."""
        (vectors, single), contents = check_given(queries, self.dim), self.index._contents
        exclude, allow, unknown = chosen
        treat = contents.treat_unknown(unknown)
        treat = "error" if treat is None else treat
        check_unknown(treat)
        call = self.layer._call(vectors[0] if single else vectors, temperature, (None, None, treat), threads)
        found = [np.empty(0, np.int64)]
        if exclude is not None or allow is not None:
            found = [self._tail.rows(row) for row in left_out(contents, exclude, allow, len(vectors), treat)]
            call = replace(call, exclusion=check_left(found, len(self), exclude, allow))
        return call, found

    def _factor(self, call: Call, guarantee: Any, confidence: Any) -> float | Doubles | None:
        """How wide calibrated intervals are; None where bounds are to be proven."""
        check_choice(guarantee, "guarantee", ("deterministic", "calibrated"))
        level = check_confidence(confidence)
        return None if guarantee == "deterministic" else self._tail.check_calibrated(call.temperature, level)

    def _answers(
        self,
        call: Call,
        excluded: list[Integers],
        goal: BestClasses,
        factor: float | Doubles | None,
        *,
        searched: bool,
    ) -> list[Answer]:
        """One answer per query: by the index, and by screens for those that it leaves open."""
        by_index: dict[int, Answer] = {}
        if max(map(len, excluded)) <= MOST_EXCLUDED:
            by_index = _Asking(self._tail, call, excluded, goal).answers(factor, searched=searched)
        left = np.array([row for row in range(len(call.vectors)) if row not in by_index], np.int64)
        if len(left):
            rest = _take(call, left)
            screened = self.layer._solver.answer(rest, [goal] * len(left))
            by_index.update(zip(left.tolist(), screened, strict=True))
        return [by_index[row] for row in range(len(call.vectors))]


class _Asking:
    """The queries of one call on their way through the index."""

    def __init__(self, tail: Tail, call: Call, excluded: list[Integers], goal: BestClasses) -> None:
        self._tail, self._call, self._excluded, self._goal = tail, call, excluded, goal

    def answers(self, factor: float | Doubles | None, *, searched: bool) -> dict[int, Answer]:
        """Answers by the number of their query; factor: of calibrated intervals, None to prove bounds."""
        rows: NDArray[Any] = np.arange(len(self._call.vectors))
        best: dict[int, Best] = {}
        # What gives up sooner comes first: bounds on clusters where they are to be proven, or else the search.
        if searched and factor is not None:
            best = self._search(rows)
            rows = np.array([row for row in rows if best[row].proven], np.int64)
        bounds = self._bound(rows, factor)
        if searched and factor is None:
            best = self._search(np.array(list(bounds), np.int64))
        label = "deterministic" if factor is None else "calibrated"
        found = {row: self._answer(row, bounds[row], best.get(row), label, searched) for row in bounds}
        return {row: answer for row, answer in found.items() if answer is not None}

    def _search(self, rows: Integers) -> dict[int, Best]:
        if not len(rows):
            return {}
        return dict(zip(rows.tolist(), self._tail.best(self._ways(rows), self._goal.k), strict=True))

    def _bound(self, rows: Integers, factor: float | Doubles | None) -> dict[int, tuple[float, float, int]]:
        """Lower and upper bound of log Z and rows scored, of the queries where the bounds are close enough."""
        if not len(rows):
            return {}
        ways, epsilon = self._ways(rows), ROOM * self._goal.epsilon
        width = math.log((1 + epsilon) / (1 - epsilon))
        if factor is None:
            found = self._tail.prove(ways, width)
        else:
            found = self._tail.calibrated(ways, factor if isinstance(factor, float) else factor[rows])
        result = {}
        for row, low, high, scored in zip(rows.tolist(), *(part.tolist() for part in found), strict=True):
            lower, upper = self._left(row, low, high)
            if upper - lower <= width:
                result[row] = lower, upper, scored
        return result

    def _left(self, row: int, low: float, high: float) -> tuple[float, float]:
        """Bounds of log Z of the classes that the query may have."""
        excluded = self._of(row)
        if not len(excluded):
            return low, high
        logits = self._logits(row)
        return without(low, high, logits.score(excluded), logits.errors()[excluded])

    def _answer(
        self, row: int, bounds: tuple[float, float, int], best: Best | None, label: str, searched: bool
    ) -> Answer | None:
        low, high, scored = bounds
        rows, logits, cost = np.empty(0, np.int64), np.empty(0), Cost()
        if searched:
            settled = None if best is None else self._tail.settle(best, self._logits(row), self._goal.k)
            if best is None or settled is None:
                return None
            rows, logits = settled
            scored += best.scored + len(best.rows)
        multiplied, size = self._tail.read(searched=searched)
        d = self._tail.layer.rows.d
        cost.add(rows=scored, multiplications=multiplied + scored * d, bytes_read=size + 4 * scored * d)
        # Halfway between both bounds of Z: as far from one as from the other.
        value = low + math.log1p(math.expm1(high - low) / 2)
        return Answer(rows, logits, (value, low, high), label, cost)

    def _ways(self, rows: Integers) -> Ways:
        call = self._call
        return Ways(call.vectors, call.temperature, self._excluded, call.threads).take(rows)

    def _of(self, row: int) -> Integers:
        return self._excluded[0 if len(self._excluded) == 1 else row]

    def _logits(self, row: int) -> Logits:
        layer = self._tail.layer
        inverse = 1.0 / temperature_of(self._call.temperature, row)
        return Logits(layer, layer.screen.prepare(self._call.vectors[row]), inverse, None, self._call.threads)


def _take(call: Call, rows: Integers) -> Call:
    each = call.temperature if isinstance(call.temperature, float) else call.temperature[rows]
    return replace(call, vectors=call.vectors[rows], temperature=each, exclusion=call.exclusion.take(rows))
