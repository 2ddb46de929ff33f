"""The application: what every request passes, from its limits to its line in the log."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from datetime import UTC, datetime

import msgspec
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from softindex.service.access import check_access, check_host
from softindex.service.gate import busy
from softindex.service.problems import MEDIA_TYPE, Problem, as_problem
from softindex.service.routes import Routes
from softindex.service.worker_state import WorkerState

__all__ = ["make_app"]

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
OPEN = ("/livez", "/readyz", "/openapi.json", "/")
"""Paths that need no key: probes, the description, and the page, which asks for one."""
OPEN_PREFIX = "/page/"


def make_app(state: WorkerState) -> ASGIApp:
    """The application of a worker process."""
    app: ASGIApp = Front(Routes(state).router(), state)
    if state.settings.cors:
        app = CORSMiddleware(
            app,
            allow_origins=state.settings.cors,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=["X-Request-Id", "Server-Timing", "Retry-After"],
        )

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        # Outside of everything else that may answer: whoever was let in by the gate must leave.
        try:
            await app(scope, receive, send)
        finally:
            if scope.get("state", {}).get("admitted"):
                state.gate.leave()

    return counted


class Front:
    """Gives a request its id, checks who asks, answers errors, and counts and logs the answer."""

    def __init__(self, app: Router, state: WorkerState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id"))
        # Starlette raises what it would answer as plain text where there is an application.
        scope["app"], scope["request_id"], scope["law"] = self, request_id, ""
        sent: dict[str, int] = {"status": 0, "bytes": 0}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent["status"] = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode()), *SAFE_HEADERS]
            else:
                sent["bytes"] += len(message.get("body", b""))
            await send(message)

        try:
            self._check(scope, headers)
            await self._app(scope, receive, answer)
        except ClientDisconnect:
            sent["status"] = 499
        except Exception as error:
            if sent["status"]:
                raise
            await self._answer_error(error, scope, answer)
        finally:
            self._finish(scope, sent, time.perf_counter() - begun)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        settings, known = self._state.settings, scope.get("state", {})
        if (problem := known.get("problem")) is not None:
            raise problem
        path = scope["path"]
        if not settings.keys and self._state.local:
            check_host(headers.get(b"host"))
        if path in OPEN or path.startswith(OPEN_PREFIX):
            return
        if not known.get("admitted", True):
            raise busy("in_flight")
        changes = path == "/v1/items" and scope["method"] in ("PUT", "DELETE")
        check_access(settings.keys, headers.get(b"authorization"), "write" if changes else "read")

    async def _answer_error(self, error: Exception, scope: Scope, send: Send) -> None:
        problem = _explain(error)
        if problem is None:
            # Whoever runs the server sees what happened; whoever called it does not.
            sys.stderr.write("".join(traceback.format_exception(error)))
            text = "the server failed; whoever runs it finds the reason in its log under this request id."
            problem = Problem(500, "internal", text)
        if problem.status in (408, 413, 429, 431):
            self._state.metrics.rejected(problem.kind)
        body = problem.body(scope["request_id"])
        headers = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
        headers += [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _finish(self, scope: Scope, sent: dict[str, int], seconds: float) -> None:
        path, status = scope["path"], sent["status"]
        route = path if status not in (404, 405) and path in self._state.known_paths else "other"
        self._state.metrics.answered(route, scope["law"], status, seconds)
        if (log := self._state.access_log) is not None and not (path in OPEN[:2] and status == 200):
            client = scope.get("client") or ("", 0)
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "request_id": scope["request_id"],
                "client": client[0],
                "method": scope["method"],
                "path": path[:200],
                "status": status,
                "bytes": sent["bytes"],
                "milliseconds": round(seconds * 1e3, 3),
            }
            log.add(line)


SAFE_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


def _explain(error: Exception) -> Problem | None:
    if isinstance(error, HTTPException):
        text = {404: "there is nothing at this path; see /openapi.json.", 405: "this path has no such method."}
        detail = text.get(error.status_code, f"{error.detail}.")
        return Problem(error.status_code, "http", detail, dict(error.headers or {}))
    if isinstance(error, msgspec.ValidationError):
        return Problem(422, "input", f"the body does not fit: {error}.")
    if isinstance(error, msgspec.DecodeError | RecursionError | UnicodeDecodeError):
        return Problem(400, "json", f"the body is not valid JSON: {error}.")
    if isinstance(error, UnicodeEncodeError):
        reason = "an id in the answer holds half of a surrogate pair, which JSON cannot carry; give the item another."
        return Problem(500, "id", reason)
    return as_problem(error)


def _request_id(given: bytes | None) -> str:
    if given is not None and REQUEST_ID.fullmatch(given):
        return given.decode()
    return os.urandom(8).hex()
