"""The routes: each reads a request, makes one call of the library, and answers its record."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import resources
from typing import Any, TypeVar

import msgspec
import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

import softindex
from softindex.errors import InputError, UnknownIdError
from softindex.index import Index
from softindex.service.answers import ChangeAnswer, IdsAnswer, InfoAnswer, ItemsAnswer
from softindex.service.bodies import RemoveBody, UpsertBody, read_matrix, rows_of_bytes
from softindex.service.metrics import CONTENT_TYPE_LATEST
from softindex.service.openapi import describe
from softindex.service.operations import OPERATIONS, Operation, prepare
from softindex.service.problems import Problem
from softindex.service.worker_state import WorkerState
from softindex.sharded import ShardedIndex

__all__ = ["Routes"]

Body = TypeVar("Body", bound=msgspec.Struct)
Result = TypeVar("Result")
Endpoint = Callable[[Request], Awaitable[Response]]
JSON, RAW = "application/json", "application/octet-stream"
ALWAYS_POOLED = float("inf")
MOST_NAMES = 50
PAGE = {
    "/": ("index.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""The page runs its own code and calls its own server, and nothing else."""


class Routes:
    """The endpoints of a worker process."""

    def __init__(self, state: WorkerState) -> None:
        self._state, self._served = state, state.served
        self._limits = state.settings.limits
        self._decoders: dict[type, msgspec.json.Decoder[Any]] = {}

    def router(self) -> Router:
        """All routes."""
        routes = [Route(path, self._operate(one), methods=["POST"]) for path, one in OPERATIONS.items()]
        routes += [
            Route("/v1/items", self.items, methods=["GET", "PUT", "DELETE"]),
            Route("/v1/ids", self.find_ids, methods=["GET"]),
            Route("/v1/info", self.info, methods=["GET"]),
            Route("/livez", self.live, methods=["GET"]),
            Route("/readyz", self.ready, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
            *(Route(path, _page(*file), methods=["GET"]) for path, file in PAGE.items()),
        ]
        self._state.known_paths = {route.path for route in routes}
        return Router(routes, redirect_slashes=False)

    def _operate(self, operation: Operation) -> Endpoint:
        settings, gate = self._state.settings, self._state.gate

        async def endpoint(request: Request) -> Response:
            body = await self._read(request, operation.body)
            call = prepare(operation, body, self._served, self._limits, settings.threads)
            request.scope["law"] = call.method
            record, milliseconds = await gate.run(partial(_timed, call.run), call.numbers)
            if operation.name == "sample":
                self._state.metrics.drew(record)
                if getattr(body, "log", True) and (log := self._state.decisions) is not None:
                    log.add(call, record, request.scope["request_id"], call.version)
            answer = operation.encode(record, getattr(call.index, "snapshot", None))
            return _json(answer, {"server-timing": f"call;dur={milliseconds:.3f}"})

        return endpoint

    async def items(self, request: Request) -> Response:
        """One path for three methods, so that the answer to any other names all of them."""
        change = {"PUT": self.upsert, "DELETE": self.remove}
        return await change.get(request.method, self.get_items)(request)

    async def get_items(self, request: Request) -> Response:
        """Vectors of items by id."""
        index = self._served.index
        if not isinstance(index, Index | ShardedIndex):
            raise InputError("this kind of index gives out no vectors; use sample or top-k.")
        wanted = self._ids(request.query_params.getlist("id"), index)
        if len(wanted) > self._limits.batch:
            most = self._limits.batch
            raise Problem(
                413, "limit", f"{len(wanted)} ids were given, and this server allows at most {most} at a time."
            )
        try:
            vectors = await self._state.gate.run(partial(index.vectors, wanted), ALWAYS_POOLED)
        except UnknownIdError as error:
            raise Problem(404, "unknown-id", str(error)) from error
        self._served.checked = True
        return _json(ItemsAnswer(ids=wanted, vectors=vectors.tolist(), snapshot=self._served.snapshot))

    async def upsert(self, request: Request) -> Response:
        """Add or replace items; answered when they are on disk."""
        body = await self._read(request, UpsertBody)
        vectors = read_matrix(body.vectors, "vectors", self._served.dim)
        options = {
            name: np.array(value, float)
            for name in ("log_bias", "bias")
            if (value := getattr(body, name)) is not msgspec.UNSET
        }
        return await self._change(partial(self._served.upsert, body.ids, vectors, **options))

    async def remove(self, request: Request) -> Response:
        """Remove items; answered when that is on disk."""
        body = await self._read(request, RemoveBody)
        options = {} if body.unknown is msgspec.UNSET else {"unknown": body.unknown}
        return await self._change(partial(self._served.remove, body.ids, **options))

    async def find_ids(self, request: Request) -> Response:
        """Ids that begin with a text, for completion."""
        text = request.query_params.get("text", "")[:200]
        found = await self._state.gate.run(partial(self._served.starting_with, text, MOST_NAMES), ALWAYS_POOLED)
        return _json(IdsAnswer(ids=found))

    async def info(self, request: Request) -> Response:
        """What is served."""
        served = self._served
        index = served._current
        kind = None if index is None or not isinstance(index, Index | ShardedIndex) else index.parameters["ids"]
        answer = InfoAnswer(
            kind=served.kind,
            items=len(served),
            dim=served.dim,
            clusters=index.clusters if isinstance(index, Index) else None,
            ids="integers" if kind == "rows" else kind,
            methods=served.methods,
            writable=served.writable,
            snapshot=served.snapshot,
            version=softindex.__version__,
            limits=msgspec.structs.asdict(self._limits),
        )
        return _json(answer)

    async def live(self, request: Request) -> Response:
        """Whether the process answers."""
        return _json({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        """Whether it can serve requests."""
        if not self._state.ready:
            raise Problem(503, "not-ready", "the server is starting or stopping; try again.", {"retry-after": "1"})
        return _json({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Counters for Prometheus."""
        lost = 0 if self._state.decisions is None else self._state.decisions.lost
        text = await run_in_threadpool(self._state.metrics.text, self._served, lost)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    async def openapi(self, request: Request) -> Response:
        """The description of this service."""
        return _json(describe())

    async def _change(self, call: Callable[[], int]) -> Response:
        number = await self._state.gate.run(call, ALWAYS_POOLED)
        return _json(ChangeAnswer(snapshot=number, items=len(self._served)))

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        queries = "queries" in kind.__struct_fields__
        if media != JSON and not (media == RAW and queries):
            expected = f"{JSON}, or {RAW} for raw float32" if queries else JSON
            raise Problem(415, "media-type", f"the body is {media or 'of no type'}; send {expected}.")
        raw = await self._receive(request)
        if media == JSON:
            decoder = self._decoders.get(kind)
            if decoder is None:
                decoder = self._decoders[kind] = msgspec.json.Decoder(kind)
            found: Body = decoder.decode(raw)
            return found
        body = msgspec.convert(dict(request.query_params), kind, strict=False)
        body.queries = rows_of_bytes(raw, "queries", self._served.dim)  # type: ignore[attr-defined]
        return body

    async def _receive(self, request: Request) -> bytes:
        most, gate = self._limits.body_bytes, self._state.gate
        too_large = Problem(
            413, "limit", f"the body has more than {most} bytes; send less at a time.", {"connection": "close"}
        )
        stated = request.headers.get("content-length", "")
        if stated.isdigit() and int(stated) > most:
            raise too_large
        parts, size = [], 0
        gate.suspended += 1
        try:
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
        finally:
            gate.suspended -= 1
        return b"".join(parts)

    def _ids(self, words: list[str], index: Index | ShardedIndex) -> list[int | str]:
        if not words:
            raise InputError("there are no ids; pass ?id=..., as often as needed.")
        if index.parameters["ids"] == "strings":
            return list(words)
        try:
            return [int(word) for word in words]
        except ValueError as error:
            raise InputError(f"got string ids, but this index has integer ids ({error}).") from error


def _timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """The result of a call and its milliseconds, without those that it waited for others."""
    begun = time.perf_counter()
    result = call()
    return result, (time.perf_counter() - begun) * 1e3


def _page(name: str, media: str) -> Endpoint:
    content = resources.files("softindex.service").joinpath("page", name).read_bytes()
    headers = {"content-security-policy": POLICY, "referrer-policy": "no-referrer"}

    async def endpoint(request: Request) -> Response:
        return Response(content, headers=headers, media_type=media)

    return endpoint


def _json(answer: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(answer), headers=headers, media_type=JSON)
