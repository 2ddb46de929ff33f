"""The operations by query: a body becomes a call of the library, and its record the answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from numpy.typing import NDArray

from softindex.errors import InputError, show
from softindex.index import Index
from softindex.laws import CERTIFIED, EXACT, TOP_K
from softindex.service.answers import (
    SAFE,
    DrawsAnswer,
    EstimateAnswer,
    LogProbAnswer,
    TopKAnswer,
    answer_draws,
    answer_estimate,
    answer_log_prob,
    answer_top_k,
)
from softindex.service.bodies import (
    LogPartitionBody,
    LogProbBody,
    QueryBody,
    SampleBody,
    TopKBody,
    read_matrix,
)
from softindex.service.measuring import MeasureAnswer, MeasureBody, answer_measure, measure
from softindex.service.problems import Problem
from softindex.service.served import Served, check_options
from softindex.service.settings import Limits
from softindex.sharded import ShardedIndex

__all__ = ["OPERATIONS", "Call", "Operation", "prepare"]

_fresh = random.SystemRandom()
_PLAIN = ("queries", "item", "items", "n", "ids", "log")
"""Fields that are not options of the library's call."""
SCANNING = (EXACT, CERTIFIED, TOP_K)
"""Methods that may score every item."""
DRAW = 100
"""Numbers that one draw is worth."""
PROVEN_SHARE = 20
"""An adaptive call reads at most one item in this many, or 2^20 numbers."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of an index, as a route."""

    name: str
    body: type[QueryBody]
    answer: type[msgspec.Struct]
    encode: Callable[[Any, int | None], Any]
    summary: str


OPERATIONS = {
    "/v1/sample": Operation(
        "sample", SampleBody, DrawsAnswer, answer_draws, "Draw items, with their log-probabilities."
    ),
    "/v1/log-prob": Operation(
        "log_prob", LogProbBody, LogProbAnswer, answer_log_prob, "Log of the probability that one draw returns an id."
    ),
    "/v1/log-partition": Operation(
        "log_partition", LogPartitionBody, EstimateAnswer, answer_estimate, "Log of the sum over all items."
    ),
    "/v1/measure": Operation(
        "measure",
        MeasureBody,
        MeasureAnswer,
        answer_measure,
        "Stated error against the measured one; scores every item.",
    ),
    "/v1/top-k": Operation("top_k", TopKBody, TopKAnswer, answer_top_k, "The items of highest score."),
}


@dataclass(slots=True)
class Call:
    """A checked request, ready to run."""

    run: Callable[[], Any]
    """Returns the record of the library."""
    numbers: float
    """About as many numbers as it reads."""
    method: str
    body: QueryBody
    queries: list[NDArray[Any]]
    """Filled when it runs: the queries, for the log of decisions."""
    index: Any
    version: str | None
    """Of a saved index."""


def prepare(operation: Operation, body: QueryBody, served: Served, limits: Limits, threads: int) -> Call:
    """Turn a body into a call of the index that is served now."""
    index, version = served.versioned
    find, count, by_item = _find_queries(body, index, served.dim)
    _check_limits(body, count, limits)
    options = _options(body)
    if operation.name == "measure":
        function: Any = partial(measure, index)
        check_options(Index, "cluster_log_masses", options)
    else:
        function = served.function(operation.name, index)
        check_options(type(index), operation.name, options)
    if operation.name == "sample" and "seed" not in options:
        # Below 2^53, so that every program can read the answer and send it again.
        options["seed"] = _fresh.randrange(SAFE)
    arguments = [getattr(body, name) for name in ("n", "ids") if hasattr(body, name)]
    if isinstance(body, TopKBody):
        arguments = [options.pop("k")]
    taken: list[NDArray[Any]] = []

    def run() -> Any:
        taken.append(find())
        served.checked = served.checked or by_item
        return function(taken[0], *arguments, threads=threads, **options)

    # Counters are kept by method: only for those that exist.
    method = options.get("method", "default")
    method = method if method in served.methods else "default"
    # The first look at a vector checks the file that it is in.
    numbers = float("inf") if by_item and not served.checked else _numbers(index, operation.name, count, body, options)
    return Call(run, numbers, method, body, taken, index, version)


def _find_queries(body: QueryBody, index: Any, dim: int | None) -> tuple[Callable[[], NDArray[Any]], int, bool]:
    """What finds the queries, how many there are, and whether they are items."""
    given = [name for name in ("queries", "item", "items") if getattr(body, name) is not UNSET]
    if len(given) != 1:
        raise InputError("pass exactly one of queries, item and items.")
    if given[0] == "queries":
        sent: Any = body.queries
        found = read_matrix(sent, "queries", dim) if isinstance(sent, msgspec.Raw) else sent
        return (lambda: found), (len(found) if found.ndim > 1 else 1), False
    if not isinstance(index, Index | ShardedIndex):
        raise InputError("this kind of index has no vectors to take as queries; pass queries.")
    wanted = getattr(body, given[0])
    return (lambda: index.vectors(wanted)), (len(wanted) if given[0] == "items" else 1), True


def _options(body: QueryBody) -> dict[str, Any]:
    """What the client gave; the library has the defaults of the rest."""
    fields = type(body).__struct_fields__
    found = {name: value for name in fields if name not in _PLAIN and (value := getattr(body, name)) is not UNSET}
    seed = found.get("seed")
    if isinstance(seed, str):
        if not (seed.isascii() and seed.isdigit() and len(seed) <= 20):
            raise InputError(f"seed is {show(seed)}; expected one integer from 0 to {2**64 - 1}.")
        found["seed"] = int(seed)
    return found


def _check_limits(body: QueryBody, count: int, limits: Limits) -> None:
    checked = {"batch": count}
    if isinstance(body, SampleBody):
        checked |= {"n": body.n, "results": body.n * count}
    if isinstance(body, TopKBody | SampleBody | LogProbBody) and body.k is not UNSET:
        checked |= {"k": body.k}
    if isinstance(body, TopKBody):
        checked |= {"results": body.k * count}
    if isinstance(body, LogProbBody) and isinstance(body.ids, list):
        checked |= {"results": _count(body.ids) * (1 if body.ids and isinstance(body.ids[0], list) else count)}
    listed = [one for one in (body.exclude, body.allow) if isinstance(one, list)]
    if listed:
        checked |= {"excluded": sum(map(_count, listed))}
    for name, value in checked.items():
        most = getattr(limits, name)
        if value > most:
            raise Problem(
                413, "limit", f"{name} is {value}, and this server allows at most {most}; ask for less at a time."
            )


def _count(ids: list[Any]) -> int:
    return sum(len(one) if isinstance(one, list) else 1 for one in ids)


def _numbers(index: Any, name: str, count: int, body: QueryBody, options: dict[str, Any]) -> float:
    """About how many numbers the call reads: a bound for the methods that stop at a budget."""
    if not isinstance(index, Index):
        return float("inf")
    everything = len(index) * index.dim
    all_scanned = (
        options.get("method") in SCANNING
        or name in ("top_k", "measure")
        or options.keys() & {"top_p", "width", "confidence"}
    )
    per_query = everything if all_scanned else min(everything, max(everything / PROVEN_SHARE, 1 << 20))
    return float(count * (per_query + DRAW * getattr(body, "n", 1)))
