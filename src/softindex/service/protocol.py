"""Limits on a connection that uvicorn does not have: bytes of headers, and time to send and to receive."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from softindex.service.gate import Gate
from softindex.service.problems import MEDIA_TYPE, Problem
from softindex.service.settings import Limits

__all__ = ["bounded_protocol"]

REASONS = {400: "Bad Request", 408: "Request Timeout", 429: "Too Many Requests", 431: "Request Header Fields Too Large"}


class _BoundedProtocol(HttpToolsProtocol):
    """Adds timers and counts to the hooks of the parser; each hook goes on to do what it did."""

    limits: ClassVar[Limits]
    gate: ClassVar[Gate]
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _in_headers = True
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(Problem(429, "busy", "the server has too many connections; try again in a moment."))
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_headers:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._head_bytes > self.limits.header_bytes:
            self._refuse(self._too_long())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._arm()

    def on_headers_complete(self) -> None:
        self._in_headers, self._head_bytes = False, 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.limits.header_bytes:
            self.scope["state"]["problem"] = self._too_long()
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        # Decided as requests arrive: those that come while others are computed are refused, and not the last to run.
        cycle.scope["state"]["admitted"] = self.gate.admit()
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        self._in_headers = True
        self._disarm()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "http", "this is not an HTTP request; send HTTP/1.1."))

    def pause_writing(self) -> None:
        super().pause_writing()
        # A client that does not take its answer must not keep the memory of it.
        self._write_timer = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.flow is not None:
            super().resume_writing()

    def _arm(self) -> None:
        self._disarm()
        self._timer = self.loop.call_later(self.limits.seconds, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        text = f"the request took longer than {self.limits.seconds:g} s to arrive; send it in one go."
        started = self.cycle is not None and self.cycle.response_started
        if started or (self._in_headers and not self._head_bytes):
            self.transport.close()
        else:
            self._refuse(Problem(408, "timeout", text))

    def _too_long(self) -> Problem:
        most = self.limits.header_bytes
        return Problem(431, "limit", f"the headers have more than {most} bytes; send fewer.", {"connection": "close"})

    def _refuse(self, problem: Problem) -> None:
        body = problem.body("")
        again = "retry-after: 1\r\n" if problem.status == 429 else ""
        head = (
            f"HTTP/1.1 {problem.status} {REASONS[problem.status]}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\n{again}connection: close\r\n\r\n"
        )
        if not self.transport.is_closing():
            self.transport.write(head.encode() + body)
            self.transport.close()


def bounded_protocol(limits: Limits, gate: Gate) -> type[asyncio.Protocol]:
    """The protocol for connections with these limits, whose requests pass this gate."""
    return type("BoundedProtocol", (_BoundedProtocol,), {"limits": limits, "gate": gate})
