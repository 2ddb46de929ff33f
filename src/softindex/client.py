"""`Client`: the methods of an index or a catalogue, answered by a server.  httpx is imported on first use."""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Mapping
from copy import copy
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray

from softindex.arguments import as_array, check_count, check_positive, check_queries
from softindex.errors import (
    CorruptIndexError,
    InputError,
    MethodError,
    SaveError,
    ServiceError,
    SoftindexError,
    UnknownIdError,
    show,
)
from softindex.optional import need
from softindex.records import Doubles, Draws, Estimate, Floats, Ids, TopK
from softindex.temperatures import Temperature

__all__ = ["Client"]

PREFIX = "urn:softindex:problem:"
_ERRORS: dict[str, type[SoftindexError]] = {
    "unknown-id": UnknownIdError,
    "method": MethodError,
    "input": InputError,
    "limit": InputError,
    "too-large": InputError,
    "save": SaveError,
    "corrupt-index": CorruptIndexError,
}
SAFE = 2**53
"""Seeds from here on are sent as strings, which no program rounds."""
LONGEST_WAIT = 5.0


class Client:
    """An index or a catalogue behind `softindex serve`: `sample`, `log_prob`, `log_partition`, `top_k`, `vectors`,
    `upsert` and `remove` as `Index` and `LiveIndex` have them.

    The same seed gives the same ids and the same `log_prob` as in process, to the last bit; errors are those of the
    library.  Use it in a `with` block, or close it.  All methods may be called from any thread.

    Args:
        url: Of the server, such as "http://127.0.0.1:8080".
        key: API key; None where the server has none.
        timeout: Seconds to wait for an answer.
        retries: How often a request is sent again.  Reading is, when the connection breaks or the server is busy or too
            slow.  A change is only where it was certainly not made: no connection, or refused because of a limit.
    """

    def __init__(self, url: str, key: str | None = None, *, timeout: float = 30.0, retries: int = 3) -> None:
        self._httpx = need("httpx", user="softindex.Client", extra="serve")
        self._retries = 0 if retries == 0 else check_count(retries, "retries", 100)
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        seconds = check_positive(timeout, "timeout", 30.0)
        self._http = self._httpx.Client(base_url=_check_url(url), headers=headers, timeout=seconds)
        self._known: Mapping[str, Any] | None = None
        self._logged = True

    # Reading

    def sample(self, queries: ArrayLike, n: int = 1, *, temperature: Temperature, **options: Any) -> Draws:
        """Draw n items per query, as `Index.sample` does, which explains the options.

        Returns:
            The draws; `snapshot` is the number of the state of a catalogue, `request_id` names them in the server's log
            of decisions.
        """
        seed = options.pop("seed", None)
        if seed is not None:
            options["seed"] = str(int(seed)) if isinstance(seed, int | np.integer) and seed >= SAFE else seed
        if not self._logged:
            options["log"] = False
        response = self._ask("sample", queries, {"n": n, "temperature": temperature, **options})
        found = response.json()
        optional = {name: _numbers(found[name]) for name in ("low", "high", "scores") if name in found}
        estimate = None
        if "log_partition" in found:
            parts = {name: found.get(f"log_partition_{name}") for name in ("low", "high", "guarantee")}
            if "log_partition_error" in found:
                parts["error"] = found["log_partition_error"]
            estimate = _estimate({"value": found["log_partition"], **parts})
        return Draws(
            ids=_ids(found["ids"]),
            log_prob=_numbers(found["log_prob"]),
            error=_numbers(found["error"])[()],
            items_scored=np.array(found["items_scored"], np.int64)[()],
            method=found["method"],
            seed=int(found["seed"]),
            log_partition=estimate,
            confidence=found.get("confidence"),
            snapshot=found.get("snapshot"),
            request_id=response.headers.get("x-request-id"),
            **optional,
        )

    def log_prob(self, queries: ArrayLike, ids: Any, *, temperature: Temperature, **options: Any) -> Doubles:
        """Natural log of the probability that one draw returns the id, or of steps of slates, as `Index.log_prob`."""
        body = {"ids": _plain(ids), "temperature": temperature, **options}
        return _numbers(self._ask("log-prob", queries, body).json()["log_prob"])

    def log_partition(self, queries: ArrayLike, *, temperature: Temperature, **options: Any) -> Estimate:
        """Log of the sum over all items, as `Index.log_partition`."""
        return _estimate(self._ask("log-partition", queries, {"temperature": temperature, **options}).json())

    def top_k(self, queries: ArrayLike, k: int, **options: Any) -> TopK:
        """The k items of highest score, as `Index.top_k`."""
        found = self._ask("top-k", queries, {"k": k, **options}).json()
        scores = _numbers(found["scores"])
        return TopK(
            ids=_ids(found["ids"]),
            # An index scores in float32, which float64 holds; a learned similarity in float64.
            scores=scores if self.info["kind"] == "learned-similarity" else scores.astype(np.float32),
            proven=np.array(found["proven"], np.bool_),
            gap=_numbers(found["gap"])[()],
            items_scored=np.array(found["items_scored"], np.int64)[()],
            recall=_numbers(found["recall"])[()] if "recall" in found else None,
        )

    def vectors(self, ids: Any) -> Floats:
        """(m, d) the vectors of these ids, (m,); (d,) for a single id."""
        single = np.ndim(ids) == 0
        wanted = [_plain(ids)] if single else _plain(ids)
        found = self._send("GET", "/v1/items", params={"id": [str(one) for one in wanted]}, safe=True).json()
        rows = np.array(found["vectors"], np.float32)
        return rows[0] if single else rows

    @property
    def info(self) -> Mapping[str, Any]:
        """What the server serves, as it said when it was first asked: kind, dim, methods, limits and so on."""
        if self._known is None:
            self._known = self._read_info()
        return self._known

    @property
    def most_queries(self) -> int:
        """That the server takes in one call."""
        return int(self.info["limits"]["batch"])

    def unlogged(self) -> Client:
        """The same server, whose log of decisions leaves out what this client draws.

        For draws that nobody is shown, such as those of `decisions.score`.  It shares the connections: close the first.
        """
        other = copy(self)
        other._logged = False
        return other

    @property
    def dim(self) -> int | None:
        """Dimensions of a query; None where queries are components."""
        found: int | None = self.info["dim"]
        return found

    @property
    def number(self) -> int | None:
        """Of the present state of a catalogue; None for an index."""
        found: int | None = self._read_info()["snapshot"]
        return found

    def __len__(self) -> int:
        return int(self._read_info()["items"])

    # Writing

    def upsert(self, ids: Any, vectors: Any, *, log_bias: Any = None, bias: Any = None) -> int:
        """Add or replace items of a catalogue, as `LiveIndex.upsert`: on the server's disk when this returns."""
        single = np.ndim(ids) == 0
        array = as_array(vectors, "vectors")
        body = {
            "ids": [_plain(ids)] if single else _plain(ids),
            "vectors": _encoded(array[None] if single and array.ndim == 1 else array),
            "log_bias": None if log_bias is None else np.atleast_1d(log_bias).tolist(),
            "bias": None if bias is None else np.atleast_1d(bias).tolist(),
        }
        return int(self._send("PUT", "/v1/items", body=body, safe=False).json()["snapshot"])

    def remove(self, ids: Any, *, unknown: str = "error") -> int:
        """Remove items of a catalogue, as `LiveIndex.remove`."""
        body = {"ids": [_plain(ids)] if np.ndim(ids) == 0 else _plain(ids), "unknown": unknown}
        return int(self._send("DELETE", "/v1/items", body=body, safe=False).json()["snapshot"])

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<softindex.Client: {self._http.base_url}>"

    # How it is done

    def _read_info(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._send("GET", "/v1/info", safe=True).json()
        return found

    def _ask(self, name: str, queries: ArrayLike, body: dict[str, Any]) -> Any:
        if body.pop("threads", None) is not None:
            raise InputError("threads is decided by the server; leave it out.")
        for option in ("exclude", "allow", "users", "temperature"):
            if option in body:
                body[option] = _plain(body[option])
        array: NDArray[Any]
        if self.dim is None:
            array = as_array(queries, "queries")
        else:
            batch, single = check_queries(queries, self.dim)
            array = batch[0] if single else batch
        return self._send("POST", f"/v1/{name}", body={"queries": _encoded(array), **body}, safe=True)

    def _send(self, method: str, path: str, *, safe: bool, body: Any = None, params: Any = None) -> Any:
        content = None if body is None else _json({name: value for name, value in body.items() if value is not None})
        headers = {} if content is None else {"content-type": "application/json"}
        unsent = (self._httpx.ConnectError, self._httpx.ConnectTimeout, self._httpx.PoolTimeout)
        again = self._httpx.TransportError if safe else unsent
        for remaining in reversed(range(self._retries + 1)):
            try:
                found = self._http.request(method, path, content=content, headers=headers, params=params)
            except self._httpx.HTTPError as error:
                if not remaining or not isinstance(error, again):
                    raise ServiceError(
                        f"{self._http.base_url} did not answer ({error or type(error).__name__}); check that it runs."
                    ) from error
                _pause(self._retries - remaining, None)
                continue
            if remaining and (found.status_code == 429 or (safe and found.status_code == 503)):
                _pause(self._retries - remaining, found.headers.get("retry-after"))
                continue
            if found.status_code == 200:
                return found
            raise _error(found)
        raise AssertionError("the last round returns or raises")


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except (ValueError, AttributeError, TypeError):
        good = False
    if not good:
        raise InputError(f"url is {show(url)}; expected one such as 'http://127.0.0.1:8080'.")
    return url


def _pause(number: int, stated: str | None) -> None:
    """Wait before another try: longer each time, never in step with other clients, and as long as the server says."""
    waiting = 0.05 * 2**number * (1 + random.random())
    if stated is not None and stated.isdigit():
        waiting = max(waiting, float(stated) * (0.5 + random.random()))
    time.sleep(min(waiting, LONGEST_WAIT))


def _error(found: Any) -> SoftindexError:
    """The error of the library that the server answered with."""
    try:
        problem = found.json()
        kind, detail = str(problem["type"]).removeprefix(PREFIX), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"{found.url} answered {found.status_code}, and not as softindex does; check the URL.")
    known = _ERRORS.get(kind)
    return ServiceError(detail, found.status_code) if known is None else known(detail)


def _json(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False, default=_scalar).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"an option cannot be sent ({error}); pass numbers, strings and lists.") from error


def _scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} has no JSON")


def _encoded(array: NDArray[Any]) -> dict[str, Any]:
    """An array of numbers as the server takes it; float32 keeps every bit."""
    if array.dtype.kind not in "fiu":
        raise InputError(f"got {array.dtype}; expected floats: pass a float32 array.")
    with np.errstate(over="ignore"):
        packed = np.ascontiguousarray(array, "<f4")
    return {"float32": base64.b64encode(packed.tobytes()).decode(), "shape": list(array.shape)}


def _plain(ids: Any) -> Any:
    """Ids as lists: arrays, sets and nested sequences."""
    if isinstance(ids, np.ndarray | np.generic):
        return ids.tolist()
    if isinstance(ids, list | tuple | set | frozenset | range):
        return [_plain(one) for one in ids]
    return ids


def _ids(found: list[Any]) -> Ids:
    array = np.array(found)
    return array if array.dtype.kind == "U" else array.astype(np.int64)


def _numbers(found: Any) -> Doubles:
    """Numbers as float64; null is NaN, and infinities are spelled out."""
    return np.array(found, np.float64)


def _estimate(found: Mapping[str, Any]) -> Estimate:
    parts = [found.get(name) for name in ("value", "low", "high")]
    value, low, high = (None if part is None else _numbers(part)[()] for part in parts)
    assert value is not None
    error = _numbers(found["error"])[()] if "error" in found else None
    return Estimate(value, low, high, found.get("guarantee"), error)
