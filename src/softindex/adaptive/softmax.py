"""AdaptiveSoftmax: wires rows, screen, pulls and bounds to the k best classes and their probabilities."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from softindex.adaptive.bandit import TooDear, find_best
from softindex.adaptive.calibration import Calibration, calibrate, check_levels, check_part, fewest
from softindex.adaptive.pulls import PulledRows, permute
from softindex.adaptive.resolve import Bounds, Unresolved
from softindex.adaptive.rows import Rows
from softindex.adaptive.screen import Level, Scores, Screen, check_stored, encode
from softindex.arguments import (
    check_count,
    check_per_item,
    check_queries,
    check_seed,
    check_share,
    check_temperature,
    check_threads,
)
from softindex.errors import CorruptIndexError, InputError, MethodError, show
from softindex.kernels import hash_bytes
from softindex.records import Doubles, Estimate, Integers, Stored
from softindex.store import load as load_stored
from softindex.store import save as save_stored

__all__ = ["GUARANTEES", "AdaptiveSoftmax", "SoftTopK"]

GUARANTEES = ("pac", "deterministic", "calibrated", "exact")
KIND = "adaptive-softmax"
TINY = 1e-33
"""What products too small for float32 may lose."""
SHORT = 256
"""Rows of fewer numbers are scored at once: screening them takes longer than reading them."""
NAMED = 256
"""Coordinates by which the order of blocks tells queries apart: all of a long one take as long as its estimates."""
GROUP = 8
"""Queries screened together: their scores of all rows are held at once."""


class SoftTopK(NamedTuple):
    """What `AdaptiveSoftmax.top_k` returns; one row per query (a 1-D query: no row axis)."""

    ids: Integers
    """(b, k) the most probable classes, best first; equal ones by their number."""
    probabilities: Doubles
    """(b, k) theirs, each within a part epsilon of the true one."""
    log_partition: Estimate
    """log Z; its bounds hold for certain, or with probability 1 - delta where the guarantee is pac or calibrated."""
    guarantee: Any
    """(b,) what is really guaranteed: "exact" where every row was scored."""
    multiplications: Any
    """(b,) of any width."""
    bytes_read: Any
    """(b,) of the weights and their copies."""


class _Answer(NamedTuple):
    rows: Integers
    logits: Doubles
    log_partition: tuple[float, float, float]
    guarantee: str
    multiplications: int
    bytes_read: int


class _Asked(NamedTuple):
    k: int
    inverse: float
    epsilon: float
    delta: float
    guarantee: str
    threads: int


Find = Callable[[Bounds], tuple[Integers, Doubles, tuple[float, float, float]]]


class AdaptiveSoftmax:
    """The softmax of weights (n, d) times a vector, for those who want its few most probable classes.

    weights: float32 or float16 array, memmap, torch tensor or path, or bfloat16 as uint16.  bias (n,): added to the
    logits.  Nothing is copied but what a guarantee needs: copies in four and eight bits for "deterministic" and
    "calibrated", made at once, and one in another order for "pac", made when it is first asked for.  Rows in Fortran
    order are copied too.  Do not edit the weights afterwards: the copies would not follow.
    """

    __slots__ = ("_bias", "_calibration", "_pulls", "_rows", "_screen", "_seed")

    def __init__(self, weights: Any, bias: Any = None, seed: int = 0) -> None:
        rows = Rows.checked(weights)
        given = check_per_item(bias, rows.n, name="bias", of="class")
        self._set(rows, np.zeros(rows.n, np.float32) if given is None else given, check_seed(seed), encode(rows))

    def _set(self, rows: Rows, bias: Any, seed: int, screen: Screen) -> None:
        self._rows, self._bias, self._seed, self._screen = rows, bias, seed, screen
        self._pulls: PulledRows | None = None
        self._calibration: Calibration | None = None

    def __len__(self) -> int:
        return self._rows.n

    @property
    def dim(self) -> int:
        """Numbers in a row."""
        return self._rows.d

    def __repr__(self) -> str:
        return f"<softindex.AdaptiveSoftmax: {len(self)} classes, {self.dim} dimensions>"

    def top_k(
        self,
        x: Any,
        k: int = 1,
        *,
        temperature: float = 1.0,
        epsilon: float = 0.3,
        delta: float = 0.05,
        guarantee: str = "pac",
        threads: int | None = None,
    ) -> SoftTopK:
        """Return the k most probable classes of x (d,) or (b, d), and their probabilities within a part epsilon.

        - "exact": every row is scored.
        - "deterministic": for certain; rows are screened in four and eight bits, and scored where that leaves a doubt.
        - "pac": with probability 1 - delta over the seed, by estimates from a few coordinates, if nearly normal.
        - "calibrated": with probability 1 - delta over queries like those given to `calibrate`.

        Where rows would have to be scored by the thousand, all are scored, and the guarantee is "exact".
        """
        batch, single = self._check(x)
        count, heat = check_count(k, "k", len(self)), check_temperature(temperature)
        small, unlikely = check_levels(epsilon, delta)
        given = self._check_guarantee(guarantee, unlikely)
        asked = _Asked(count, 1.0 / heat, small, unlikely, given, check_threads(threads))
        answers = [self._top_k(one, asked) for one in self._screened(batch, given, asked.threads)]
        return _collect(answers, single)

    def log_partition(
        self,
        x: Any,
        *,
        temperature: float = 1.0,
        epsilon: float = 0.3,
        delta: float = 0.05,
        guarantee: str = "deterministic",
        threads: int | None = None,
    ) -> Estimate:
        """Return log Z of x (d,) or (b, d), such that Z is within a part epsilon of exp(value), with its bounds."""
        found = self.top_k(
            x, 1, temperature=temperature, epsilon=epsilon, delta=delta, guarantee=guarantee, threads=threads
        )
        return found.log_partition

    def nucleus(
        self, x: Any, top_p: float, *, temperature: float = 1.0, threads: int | None = None
    ) -> list[SoftTopK] | SoftTopK:
        """Return the fewest most probable classes that hold top_p together; one result per query.

        The set is proven; its probabilities are within 1 %.
        """
        batch, single = self._check(x)
        share, heat, workers = check_share(top_p, "top_p"), check_temperature(temperature), check_threads(threads)
        found = self._nuclei(batch, share, heat, workers)
        return found[0] if single else found

    def _nuclei(self, batch: Doubles, share: float, heat: float, threads: int) -> list[SoftTopK]:
        asked, factors = _Asked(1, 1.0 / heat, 0.01, 0.5, "deterministic", threads), [1.0] * len(self._screen.levels)
        return [
            _collect([self._proven(one, asked, lambda bounds: bounds.nucleus(share), factors)], single=True)
            for one in self._screened(batch, asked.guarantee, threads)
        ]

    def sample(
        self,
        x: Any,
        n: int = 1,
        *,
        temperature: float = 1.0,
        k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        threads: int | None = None,
    ) -> Integers:
        """Draw n classes for each x: from the k best, from a nucleus, or exactly from the softmax.

        x (d,) or (b, d); returns (n,) or (b, n).  The whole softmax is drawn from by rejection: a class in proportion
        to its upper bound, kept with the chance that its true weight has of the bound.  With a seed a query has the
        same draws in any batch and order; copies of it in one call get draws of their own.
        """
        batch, single = self._check(x)
        count, heat, workers = check_count(n, "n"), check_temperature(temperature), check_threads(threads)
        streams = _streams(batch, check_seed(seed))
        if k is not None and top_p is not None:
            raise InputError("k and top_p are both given; draw from the k best or from a nucleus, not from both.")
        if k is not None:
            best = self.top_k(batch, k, temperature=heat, guarantee="deterministic", threads=workers)
            parts = zip(streams, best.ids, best.probabilities, strict=True)
            found = [_choose(rng, ids, chances, count) for rng, ids, chances in parts]
        elif top_p is not None:
            share = check_share(top_p, "top_p")
            nuclei = self._nuclei(batch, share, heat, workers)
            found = [
                _choose(rng, part.ids, part.probabilities, count) for rng, part in zip(streams, nuclei, strict=True)
            ]
        else:
            screened = self._screened(batch, "deterministic", workers)
            found = [
                self._draw(one, count, 1.0 / heat, rng, workers) for rng, one in zip(streams, screened, strict=True)
            ]
        return found[0] if single else np.array(found)

    def calibrate(self, queries: Any, *, delta: float = 0.05, threads: int | None = None) -> None:
        """Learn from held-out queries (m, d) how far scores in few bits really are, for guarantee="calibrated".

        delta: the smallest that will be asked for; it takes m >= 2 / delta - 1 queries, 39 for 0.05.
        """
        batch, _ = self._check(queries)
        workers, screen = check_threads(threads), self._screen
        wanted = fewest(len(screen.levels), check_part(delta, "delta"))
        if len(batch) < wanted:
            raise InputError(
                f"there are {len(batch)} queries to calibrate with; a delta of {delta:g} takes at least {wanted}: "
                "pass more, or a larger delta."
            )
        ratios = np.empty((len(screen.levels), len(batch)))
        for column, query in enumerate(batch):
            exact = self._scan(query, workers)
            for row, level in enumerate(screen.levels):
                scores = screen.score(level, query[None], workers)[0]
                ratios[row, column] = (
                    (np.abs(exact.values - scores.values) + exact.radii) / (scores.radii + TINY)
                ).max()
        self._calibration = calibrate(ratios)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights, their copies in few bits and the calibration to a directory, atomically."""
        arrays = {"weights": self._rows.array, "bias": self._bias, **self._screen.arrays()}
        if self._calibration is not None:
            arrays["calibration"] = self._calibration.ratios
        save_stored(path, Stored(KIND, {"seed": self._seed, "n": len(self), "d": self.dim}, arrays))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mmap: bool = True) -> AdaptiveSoftmax:
        """Open what `save` wrote."""
        stored = load_stored(path, mmap=mmap, kind=KIND)
        made = cls.__new__(cls)
        arrays, facts = stored.arrays, stored.parameters
        try:
            n, d = int(facts["n"]), int(facts["d"])
            check_stored(arrays["weights"], "weights", (n, d), np.float32, np.float16, np.uint16)
            check_stored(arrays["bias"], "bias", (n,), np.float32)
            screen = Screen.from_arrays(arrays, n, d)
            made._set(Rows(arrays["weights"]), arrays["bias"], int(facts["seed"]), screen)
            if "calibration" in arrays:
                ratios = np.asarray(arrays["calibration"])
                check_stored(ratios, "calibration", (len(screen.levels), ratios.size // len(screen.levels)), np.float64)
                if ratios.size == 0:
                    raise ValueError("calibration is empty")
                made._calibration = Calibration(ratios)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptIndexError(f"this is not a whole adaptive softmax ({error}); restore a copy.") from error
        return made

    def _check(self, x: Any) -> tuple[Doubles, bool]:
        batch, single = check_queries(x, self.dim, owner="these weights have")
        return batch.astype(np.float64), single

    def _check_guarantee(self, guarantee: Any, delta: float) -> str:
        if not isinstance(guarantee, str) or guarantee not in GUARANTEES:
            raise MethodError(f"there is no guarantee {show(guarantee)}; use one of {', '.join(GUARANTEES)}.")
        if guarantee == "calibrated":
            if self._calibration is None:
                raise MethodError("nothing is calibrated yet; call calibrate(queries) with held-out queries first.")
            self._calibration.factors(delta)
        return guarantee

    def _screened(self, batch: Doubles, guarantee: str, threads: int) -> Iterator[tuple[Doubles, Scores | None]]:
        """Each query with its scores of the coarsest level, where the guarantee needs them."""
        if guarantee in ("exact", "pac") or self.dim < SHORT:
            yield from ((query, None) for query in batch)
            return
        for begin in range(0, len(batch), GROUP):
            part = batch[begin : begin + GROUP]
            yield from zip(part, self._screen.score(self._screen.levels[0], part, threads), strict=True)

    def _top_k(self, one: tuple[Doubles, Scores | None], asked: _Asked) -> _Answer:
        if asked.guarantee == "pac" and self.dim >= SHORT:
            return self._estimated(one[0], asked)
        factors = [1.0] * len(self._screen.levels)
        if asked.guarantee == "calibrated" and self._calibration is not None:
            factors = self._calibration.factors(asked.delta)

        def find(bounds: Bounds) -> tuple[Integers, Doubles, tuple[float, float, float]]:
            if bounds.hopeless(asked.k, asked.epsilon, bounds.limit):
                raise Unresolved
            return *bounds.best(asked.k), bounds.log_partition(asked.epsilon * (1 - 1e-6))

        return self._proven(one, asked, find, factors)

    def _proven(self, one: tuple[Doubles, Scores | None], asked: _Asked, find: Find, factors: list[float]) -> _Answer:
        """Find by the coarsest level that does; by scoring every row where none does, or none is wanted."""
        query, scores = one
        spent = read = 0
        if scores is not None:
            answer, spent, read = self._screen_through(query, scores, asked, find, factors)
            if answer is not None:
                return answer
        scanned = self._scan(query, asked.threads)
        bounds = self._bounds(query, scanned.values, scanned.radii, asked.inverse, bounded=False)
        rows, logits, log_z = find(bounds)
        more = len(self) + bounds.scored
        return _Answer(rows, logits, log_z, "exact", spent + more * self.dim, read + more * self._rows.bytes_per_row)

    def _screen_through(
        self, query: Doubles, scores: Scores, asked: _Asked, find: Find, factors: list[float]
    ) -> tuple[_Answer | None, int, int]:
        """The answer of the coarsest level that has one, if any; what was multiplied, and read.

        scores: of the coarsest level, which is there already.
        """
        spent = read = 0
        for level, factor in zip(self._screen.levels, factors, strict=True):
            if spent:
                if self._is_hopeless(level, factor, query, scores, asked):
                    break
                scores = self._screen.score(level, query[None], asked.threads)[0]
            bounds = self._bounds(query, scores.values, factor * scores.radii, asked.inverse)
            found = None
            with contextlib.suppress(Unresolved):
                found = find(bounds)
            spent += (len(self) + bounds.scored) * self.dim
            read += level.bytes_read + bounds.scored * self._rows.bytes_per_row
            if found is not None:
                return _Answer(*found, asked.guarantee, spent, read), spent, read
        return None, spent, read

    def _is_hopeless(self, level: Level, factor: float, query: Doubles, scores: Scores, asked: _Asked) -> bool:
        """Whether a finer level would leave too many rows as well, as far as the scores of a coarser one tell."""
        foreseen = self._bounds(query, scores.values, factor * self._screen.radii(level, query), asked.inverse)
        # The coarse values are more spread out than the true ones, which makes it look easier than it is.
        return foreseen.hopeless(asked.k, asked.epsilon, foreseen.limit // 4)

    def _scan(self, query: Doubles, threads: int) -> Scores:
        """Scores of all rows in float32, with what that loses."""
        radii = self._rows.scan_error() * self._screen.magnitudes(query) + TINY
        return Scores(self._rows.scan(query, threads), radii)

    def _bounds(
        self, query: Doubles, values: Doubles, radii: Doubles, inverse: float, *, bounded: bool = True
    ) -> Bounds:
        bias = self._bias.astype(np.float64)
        # What float64 loses: a product of d terms, the temperature, the bias.
        lost = (self.dim + 8) * 2.0**-52 * inverse * self._screen.magnitudes(query) + 2.0**-50 * np.abs(bias)

        def score(rows: Integers) -> tuple[Doubles, Doubles]:
            return inverse * self._rows.products(rows, query) + bias[rows], lost[rows]

        return Bounds(inverse * values + bias, inverse * radii + lost, score, bounded=bounded)

    def _estimated(self, query: Doubles, asked: _Asked) -> _Answer:
        if self._pulls is None:
            self._pulls = permute(self._rows, self._seed)
        inverse = asked.inverse
        bias = self._bias.astype(np.float64)
        # Every query has an order of its own, and the same one again in any batch.
        rng = np.random.default_rng([self._seed, _name(query)])
        pulled = self._pulls.start(query, rng)
        d, width = self.dim, self._rows.bytes_per_row
        try:
            found = find_best(
                pulled,
                lambda rows: inverse * self._rows.products(rows, query) + bias[rows],
                k=asked.k,
                d=d,
                inverse_temperature=inverse,
                bias=bias,
                epsilon=asked.epsilon,
                delta=asked.delta,
            )
        except TooDear:
            answer = self._top_k((query, None), asked._replace(guarantee="exact", epsilon=asked.epsilon / 2))
            spent = answer.multiplications + pulled.multiplications
            return answer._replace(multiplications=spent, bytes_read=answer.bytes_read + 4 * pulled.multiplications)
        # A little for the rounding of sums.
        value, error = found.log_partition, found.error + 1e-9
        spent, read = (
            pulled.multiplications + found.exact_rows * d,
            4 * pulled.multiplications + found.exact_rows * width,
        )
        return _Answer(found.rows, found.logits, (value, value - error, value + error), "pac", spent, read)

    def _draw(
        self, one: tuple[Doubles, Scores | None], n: int, inverse: float, rng: np.random.Generator, threads: int
    ) -> Integers:
        """Draw from the softmax itself; a row once scored is never rejected again."""
        query, scores = one
        scores = scores or self._scan(query, threads)
        bounds = self._bounds(query, scores.values, scores.radii, inverse, bounded=False)
        found: list[int] = []
        while len(found) < n:
            # Relative to what is now the largest bound: the first may have stood far above all logits.
            peak = float(bounds.high.max())
            weights = np.exp(bounds.high - peak)
            cumulative = np.cumsum(weights)
            wanted = n - len(found)
            picks = np.searchsorted(cumulative, rng.random(wanted) * cumulative[-1], side="right")
            picks = np.minimum(picks, len(weights) - 1)
            before = weights[picks]
            bounds.resolve(np.unique(picks))
            truth = np.exp((bounds.low[picks] + bounds.high[picks]) / 2 - peak)
            found += picks[rng.random(wanted) * before < truth].tolist()
        return np.array(found[:n])


def _choose(rng: np.random.Generator, ids: Integers, probabilities: Doubles, count: int) -> Integers:
    return np.asarray(rng.choice(ids, size=count, p=probabilities / probabilities.sum()))


def _streams(batch: Doubles, seed: int) -> list[np.random.Generator]:
    """A generator for each query, named by the seed, what is in the query, and which of its copies it is."""
    copies: Counter[int] = Counter()
    found = []
    for query in batch:
        # Zero has two signs and is one number.
        name = hash_bytes((query + 0.0).tobytes())
        found.append(np.random.default_rng([seed, name, copies[name]]))
        copies[name] += 1
    return found


def _name(query: Doubles) -> int:
    """A number that differs between queries; of a long one some coordinates and the sum of all are looked at."""
    step = max(1, len(query) // NAMED)
    return hash_bytes(np.append(query[::step], query.sum()).tobytes())


def _collect(answers: list[_Answer], single: bool) -> SoftTopK:
    ids = np.array([answer.rows for answer in answers])
    log_z = np.array([answer.log_partition for answer in answers])
    chances = np.exp(np.array([answer.logits for answer in answers]) - log_z[:, :1])
    chances = np.minimum(chances, 1.0)
    told = np.array([answer.guarantee for answer in answers])
    costs = np.array([(answer.multiplications, answer.bytes_read) for answer in answers])
    if single:
        estimate = Estimate(*(float(value) for value in log_z[0]))
        return SoftTopK(ids[0], chances[0], estimate, str(told[0]), int(costs[0, 0]), int(costs[0, 1]))
    return SoftTopK(ids, chances, Estimate(*log_z.T), told, costs[:, 0], costs[:, 1])
