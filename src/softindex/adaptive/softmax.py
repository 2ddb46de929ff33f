"""AdaptiveSoftmax: checks what a caller passes, and hands it to the solver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from softindex.adaptive.answers import (
    collect_best,
    collect_estimated,
    collect_log_partition,
    collect_nuclei,
    pick,
)
from softindex.adaptive.calls import Call
from softindex.adaptive.classes import check_classes, check_exclude, check_unknown
from softindex.adaptive.conformal import check_enough, check_question
from softindex.adaptive.goals import Nucleus
from softindex.adaptive.layer import Layer
from softindex.adaptive.queries import Given, as_given, check_given
from softindex.adaptive.rows import Rows
from softindex.adaptive.sampling import (
    TOP_K,
    SampleMethod,
    check_method,
    collect_draws,
    draw_among,
    goals_to_draw,
    left_out,
)
from softindex.adaptive.screen import encode
from softindex.adaptive.solver import GUARANTEES, Guarantee, Solver
from softindex.adaptive.storing import LAZY, from_arrays, to_arrays
from softindex.adaptive.strategies import Answer
from softindex.arguments import check_count, check_per_item, check_room, check_seed, check_share, check_threads
from softindex.kernels import Guard
from softindex.records import Doubles, Draws, Estimate, Floats, Stored, TopK
from softindex.restrictions import Unknown
from softindex.store import check_guards
from softindex.store import save as save_stored
from softindex.streams import generators
from softindex.temperatures import Temperature, check_each_temperature

__all__ = ["GUARANTEES", "AdaptiveSoftmax", "Guarantee", "SampleMethod", "from_stored"]


class AdaptiveSoftmax:
    """The softmax of an output layer, for callers who want its few most probable classes.

    Class i has probability proportional to `exp((weights_i . x + bias_i) / temperature + log_bias_i)`.

    Weights are copied in four and eight bits for "deterministic" and "calibrated", at construction; in another order
    for "pac", when first used; and in Fortran order.  Do not edit them afterwards: the copies would not follow.

    Args:
        weights: (n, d), one row per class: float32 or float16 array, memmap, torch tensor or path, or bfloat16 as
            uint16.
        bias: (n,) the layer's bias, divided by the temperature like the rest of the logit.
        log_bias: (n,) log prior, not divided by the temperature.
        seed: Seed of the estimates that "pac" makes.

    Raises:
        InputError: When weights or biases have a wrong shape or type, or hold NaN, infinity or too large numbers.
    """

    __slots__ = ("_guards", "_made")

    def __init__(
        self,
        weights: ArrayLike | str | os.PathLike[str],
        bias: ArrayLike | None = None,
        *,
        log_bias: ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        rows = Rows.checked(weights)
        biases = (_biases(bias, rows.n, "bias"), _biases(log_bias, rows.n, "log_bias"))
        self._guards: Mapping[str, Guard] = {}
        self._made = Solver(Layer(rows, *biases, encode(rows), check_seed(seed)))

    def __len__(self) -> int:
        return self._made.layer.rows.n

    @property
    def dim(self) -> int:
        """Numbers in a row of the weights."""
        return self._made.layer.rows.d

    def __repr__(self) -> str:
        return f"<softindex.AdaptiveSoftmax: {len(self)} classes, {self.dim} dimensions>"

    def __reduce__(self) -> str:
        raise TypeError(
            "an AdaptiveSoftmax cannot be pickled; save it with layer.save(path) and open it with softindex.load(path)."
        )

    def top_k(
        self,
        queries: ArrayLike,
        k: int,
        *,
        temperature: Temperature,
        epsilon: float = 0.3,
        confidence: float = 0.95,
        guarantee: Guarantee = "deterministic",
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown = "error",
        threads: int | None = None,
    ) -> TopK:
        """Return the k most probable classes, and their probabilities within relative error epsilon.

        Guarantees:

        - "deterministic": certain.  Rows are screened in eight or four bits; those in doubt are scored exactly.
        - "calibrated": holds with the given confidence for queries like those passed to `calibrate`.
        - "pac": holds with the given confidence over calls, if estimates from a few coordinates are nearly normal.
        - "exact": certain.  Every row is scored.

        Where thousands of rows would have to be scored, all are, and the guarantee of the answer is "exact".

        Args:
            queries: Query vectors, (b, d) or (d,); scipy.sparse rows, or (indices, values) for one, are queries too.
            k: Number of classes.
            temperature: Divides the scores and the bias.  One for all queries, or (b,), one for each; so everywhere.
            epsilon: Relative error allowed in the probabilities and in Z.
            confidence: Probability with which "pac" and "calibrated" hold.
            guarantee: See above.
            exclude: Class numbers to leave out, for all queries or one sequence per query; or booleans, (n,) or (b, n).
            allow: The only classes to have, in the same forms.
            unknown: What to do with numbers in `exclude` and `allow` that are no class: "error" or "ignore".
            threads: Number of threads; None for all CPUs.

        Returns:
            Ids and scores (b, k), the score being (weights . x + bias) + temperature * log_bias, with `log_prob`,
            `log_partition` and its bounds, the guarantee that each answer has, and what it cost.  `proven` is True
            and `gap` 0 where the guarantee is "exact" or "deterministic".  With "pac" scores are estimates too.

        Raises:
            InputError: When an argument is out of range, or k exceeds the classes that are left.
            MethodError: When there is no such guarantee, or nothing was calibrated.
            UnknownIdError: When `exclude` or `allow` has a number that is no class, unless `unknown` is "ignore".
        """
        pac, found = guarantee == "pac", None
        if pac and exclude is None and allow is None:
            check_unknown(unknown)
            found = self._solver.pac.answer_one(queries, (k, epsilon, confidence, temperature), threads)
        if found is not None:
            return found
        given = as_given(queries, self.dim) if pac else None
        call = self._call(queries, temperature, (exclude, allow, unknown), threads, given)
        call.exclusion.check_fits(count := check_count(k, "k", len(self)))
        if pac:
            return collect_estimated(self._solver.estimate(call, count, epsilon, confidence), len(self), call.single)
        answers = self._solver.best(call, count, epsilon, confidence, guarantee)
        return collect_best(answers, call.temperature, len(self), single=call.single)

    def log_partition(
        self,
        queries: ArrayLike,
        *,
        temperature: Temperature,
        epsilon: float = 0.3,
        confidence: float = 0.95,
        guarantee: Guarantee = "deterministic",
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown = "error",
        threads: int | None = None,
    ) -> Estimate:
        """Return log Z with bounds; Z is within relative error epsilon of exp(value).

        Args:
            queries: Query vectors, (b, d) or (d,).
            temperature: Divides the scores and the bias.
            epsilon: Relative error allowed in Z.
            confidence: Probability with which "pac" and "calibrated" hold.
            guarantee: As for `top_k`.
            exclude: As for `top_k`, like `allow` and `unknown`.
            threads: Number of threads; None for all CPUs.

        Returns:
            Value, low and high, each (b,), of the classes that are not excluded.
        """
        call = self._call(queries, temperature, (exclude, allow, unknown), threads)
        return collect_log_partition(self._solver.best(call, 1, epsilon, confidence, guarantee), single=call.single)

    def log_prob(
        self,
        queries: ArrayLike,
        ids: ArrayLike,
        *,
        temperature: Temperature,
        epsilon: float = 0.3,
        confidence: float = 0.95,
        guarantee: Guarantee = "deterministic",
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown = "error",
        threads: int | None = None,
    ) -> Doubles:
        """Return log-probabilities of given classes; each probability is within relative error epsilon.

        The logits are exact; the error is that of log Z, the same for all classes of a query.

        Args:
            queries: Query vectors, (b, d) or (d,).
            ids: Class numbers, (b, m), or (m,) for all queries.
            temperature: Divides the scores and the bias.
            epsilon: Relative error allowed in the probabilities.
            confidence: Probability with which "pac" and "calibrated" hold.
            guarantee: As for `top_k`.
            exclude: As for `top_k`, like `allow` and `unknown`.
            threads: Number of threads; None for all CPUs.

        Returns:
            (b, m) float64; -inf for an excluded class.

        Raises:
            UnknownIdError: When an id is not a class number.
        """
        call = self._call(queries, temperature, (exclude, allow, unknown), threads)
        classes = check_classes(ids, len(call.vectors), len(self), single=call.single)
        result = np.empty(classes.shape)
        for row, answer in enumerate(self._solver.best(call, 1, epsilon, confidence, guarantee)):
            logits = self._solver.logits(call, row, classes[row])
            # log Z may be a little too small, and a probability is never above one.
            result[row] = np.minimum(logits - answer.log_partition[0], 0.0)
            result[row, np.isin(classes[row], call.exclusion.excluded(row))] = -np.inf
        return result.reshape(np.shape(ids)) if call.single else result

    def nucleus(
        self,
        queries: ArrayLike,
        top_p: float,
        *,
        temperature: Temperature,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown = "error",
        threads: int | None = None,
    ) -> TopK:
        """Return the fewest most probable classes that together have probability top_p.

        The set is proven; probabilities are within relative error 0.01.

        Args:
            queries: Query vectors, (b, d) or (d,).
            top_p: Probability to reach, above 0 and up to 1.
            temperature: Divides the scores and the bias.
            exclude: As for `top_k`, like `allow` and `unknown`.
            threads: Number of threads; None for all CPUs.

        Returns:
            As from `top_k`, with `sizes` (b,), the number of classes in each row.  Shorter rows are filled with id -1,
            score and log_prob -inf.
        """
        call = self._call(queries, temperature, (exclude, allow, unknown), threads)
        answers = self._nuclei(call, top_p)
        return collect_nuclei(answers, call.temperature, len(self), single=call.single)

    def sample(
        self,
        queries: ArrayLike,
        n: int = 1,
        *,
        temperature: Temperature,
        method: SampleMethod = "exact",
        k: int | None = None,
        top_p: float | None = None,
        epsilon: float | None = None,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown = "error",
        seed: int | None = None,
        threads: int | None = None,
    ) -> Draws:
        """Draw n classes per query, with replacement.

        - "exact" draws from the softmax itself by rejection: a class is proposed in proportion to its upper bound and
          accepted with the ratio of its true weight to it.  That is exact.  Z is known within relative error `epsilon`,
          proven: `low` and `high` bound `log_prob`.  Where bounds in few bits cannot tell, every row is scored.
        - "exact" with `top_p` draws from the nucleus, renormalised; the set is proven.
        - "top-k" draws from the softmax of the k best classes, which are proven.  `error` is a proven upper bound on
          the probability that they leave out.

        Args:
            queries: Query vectors, (b, d) or (d,).
            n: Number of draws per query.
            temperature: Divides the scores and the bias.
            method: See above.
            k: Number of classes for "top-k"; None for 1000, or all if there are fewer.
            top_p: Draw only from the fewest most probable classes that reach this probability.
            epsilon: Relative error allowed in Z, and so in `log_prob`; None for 1e-4, and 0.3 is several times cheaper.
            exclude: As for `top_k`, like `allow` and `unknown`.
            seed: The same seed, query and options give the same draws in any batch; copies of a query draw differently.
                None for a fresh one, which the result reports.
            threads: Number of threads; None for all CPUs.

        Returns:
            Ids and `log_prob` (b, n) under the distribution drawn from; `log_partition` is that of all classes left.

        Raises:
            InputError: When an argument is out of range, or does not go with the method.
        """
        call = self._call(queries, temperature, (exclude, allow, unknown), threads)
        count, key = check_count(n, "n"), check_seed(seed)
        check_room(len(call.vectors), count)
        allowed = check_method(method, k, top_p, epsilon)
        # Zero has two signs and is one number.  The streams are named by the queries in float64.
        streams = generators(((vector + np.float64(0.0)).tobytes() for vector in call.vectors), key)
        if method == TOP_K:
            answers = self._solver.answer(call, goals_to_draw(call, k, len(self)))
            draws = draw_among(answers, count, streams, len(self), key, single=call.single)
            error = left_out(answers, [call.exclusion.left(row) for row in range(len(answers))])
            return replace(draws, method=TOP_K, error=pick(error, call.single))
        if top_p is not None:
            answers = self._nuclei(call, top_p)
            return draw_among(answers, count, streams, len(self), key, single=call.single)
        return collect_draws(self._solver.draw(call, count, streams, allowed), len(self), key, single=call.single)

    def calibrate(
        self,
        queries: ArrayLike,
        *,
        confidence: float = 0.95,
        k: int | None = None,
        temperature: float = 1.0,
        epsilon: float = 0.3,
        threads: int | None = None,
    ) -> None:
        """Measure on held-out queries how far coded scores really are from the truth, for guarantee="calibrated".

        With k, also how much of that the answers can bear: calls with this k, temperature and epsilon, without
        `exclude` and `allow`, then read less, and are wrong about as often as their confidence allows.

        Args:
            queries: Query vectors (m, d) like those to come.
            confidence: The highest that calls will ask for; it takes m >= 2 / (1 - confidence) - 1 queries.
            k: Number of classes that calls will ask for; None to calibrate scores only.
            temperature: With k: that of the calls, one number.
            epsilon: With k: that of the calls.
            threads: Number of threads; None for all CPUs.

        Raises:
            InputError: When there are too few queries; the calibration before stays.
        """
        (batch, _), workers = check_given(queries, self.dim), check_threads(threads)
        check_enough(len(batch), len(self._solver.layer.screen.levels), confidence)
        self._solver.calibrate(batch, check_question(k, temperature, epsilon, len(self)), workers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the layer, its copies in few bits and the calibration to a directory, atomically.

        Args:
            path: Directory; `softindex.load` opens it.  What was saved there before is replaced.
        """
        save_stored(path, to_arrays(self._solver.layer, self._solver.calibration))

    @property
    def _solver(self) -> Solver:
        """The solver over arrays that are those that were saved: the first call checks large mapped ones."""
        if self._guards:
            check_guards(self._guards)
            self._guards = {}
        return self._made

    def _call(
        self, queries: Any, temperature: Any, chosen: tuple[Any, Any, Any], threads: Any, given: Given | None = None
    ) -> Call:
        """given: the queries, where native code takes them as they are."""
        vectors, single, limit, sparse = given or Given(*check_given(queries, self.dim))
        exclusion = check_exclude(chosen, len(vectors), len(self))
        divisor = check_each_temperature(temperature, len(vectors))
        return Call(vectors, single, divisor, exclusion, check_threads(threads), limit, sparse)

    def _nuclei(self, call: Call, top_p: Any) -> list[Answer]:
        return self._solver.answer(call, [Nucleus(check_share(top_p, "top_p"))] * len(call.vectors))


def _biases(values: Any, n: int, name: str) -> Floats:
    checked = check_per_item(values, n, name=name, of="class")
    return np.zeros(n, np.float32) if checked is None else checked


def from_stored(stored: Stored) -> AdaptiveSoftmax:
    """Return the layer that was saved; CorruptIndexError where arrays or parameters do not fit together."""
    check_guards(stored.guards, stored.guards.keys() - LAZY)
    made = AdaptiveSoftmax.__new__(AdaptiveSoftmax)
    made._made, made._guards = Solver(*from_arrays(stored)), stored.guards
    return made
