"""How much a worker process takes on at a time: what is beyond that is refused at once instead of queued."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from softindex.service.problems import Problem
from softindex.service.settings import Limits

__all__ = ["Gate", "busy"]

Result = TypeVar("Result")
SHORT = 1 << 22
"""Numbers that a call may read in the event loop: about a millisecond."""

PRESSED_SECONDS = 0.1
"""After a refusal, fewer requests are taken on at a time for so long."""


class Gate:
    """Counts requests, and runs long calls in a few threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(limits.pool_threads, thread_name_prefix="softindex")
        self._short: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        """Short calls that wait for their turn."""
        self._taken = False
        """Whether a short call has run in this pass of the loop."""
        self._pressed_until = 0.0
        self.waiting = 0
        """Requests that were taken on and are not answered yet."""
        self.suspended = 0
        """Requests that wait for their body, for the pool or for a slow client: they keep nobody from the loop."""
        self.pooled = 0

    def admit(self) -> bool:
        """Whether a request that arrives now is taken on; `leave` must follow when it is answered.

        Only those taken on count: if refused ones did, a burst would have the next one refused as well.
        """
        now, most = time.monotonic(), self._limits.in_flight
        if now < self._pressed_until:
            # More come than can be answered: fewer at a time are answered as fast, and each of them sooner.
            most = min(most, max(2, most * 3 // 8))
        if self.waiting - self.suspended >= most:
            self._pressed_until = now + PRESSED_SECONDS
            return False
        self.waiting += 1
        return True

    def leave(self) -> None:
        """A request that was taken on is answered."""
        self.waiting -= 1

    async def run(self, call: Callable[[], Result], numbers: float) -> Result:
        """The result of the call, in the event loop if it reads few numbers, otherwise in the pool.

        Raises:
            Problem: 429 where the pool has as many calls as allowed; 503 where the call takes too long.
        """
        if numbers <= SHORT:
            return await self._run_short(call)
        if self.pooled >= self._limits.pooled:
            raise busy("pooled")
        self.pooled += 1
        self.suspended += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        # A call that was given up still occupies its thread, and so its place.
        future.add_done_callback(self._leave_pool)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._limits.seconds)
        except TimeoutError:
            future.add_done_callback(_forget)
            raise Problem(
                503,
                "timeout",
                f"the answer took longer than {self._limits.seconds:g} s; ask for less. A change may still be made.",
                {"retry-after": "1"},
            ) from None
        finally:
            self.suspended -= 1

    async def _run_short(self, call: Callable[[], Result]) -> Result:
        """One for each pass of the loop, which in between reads and refuses what arrived.

        Run one after the other they would leave it unread, and it would then wait behind as many again.
        """
        loop = asyncio.get_running_loop()
        if self._taken:
            future: asyncio.Future[Result] = loop.create_future()
            self._short.append((call, future))
            return await future
        self._taken = True
        try:
            return call()
        finally:
            loop.call_soon(self._run_next, loop)

    def _run_next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._short:
            call, future = self._short.popleft()
            if future.done():
                continue
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)
            finally:
                loop.call_soon(self._run_next, loop)
            return
        self._taken = False

    def close(self) -> None:
        """Wait for running calls."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _leave_pool(self, _: object) -> None:
        self.pooled -= 1


def busy(which: str) -> Problem:
    """The answer to a request that would have to wait for too many others."""
    return Problem(429, "busy", f"the server is at its limit ({which}); try again in a moment.", {"retry-after": "1"})


def _forget(future: asyncio.Future[Result]) -> None:
    # Nobody waits for it any more; asking keeps asyncio from reporting an error that nobody took.
    if not future.cancelled():
        future.exception()
