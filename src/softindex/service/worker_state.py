"""What the requests of one worker process share."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread

from softindex.service.access_log import AccessLog
from softindex.service.decisions import DecisionLog, recover
from softindex.service.gate import Gate
from softindex.service.metrics import Metrics
from softindex.service.served import Served
from softindex.service.settings import Settings, is_loopback

__all__ = ["WorkerState"]


@dataclass(slots=True)
class WorkerState:
    """The index that is served, its limits and its counters."""

    settings: Settings
    served: Served
    gate: Gate
    metrics: Metrics
    ready: bool = False
    known_paths: set[str] = field(default_factory=set)
    local: bool = False
    """Whether only this machine can reach the server."""
    decisions: DecisionLog | None = None
    access_log: AccessLog | None = None

    @classmethod
    def open(cls, settings: Settings) -> WorkerState:
        """Open what is to be served; the errors of the library where that is not possible."""
        served = Served(settings.path, read_only=settings.read_only, ray=settings.ray)
        state = cls(settings, served, Gate(settings.limits), Metrics(), local=is_loopback(settings.host))
        if settings.log_decisions is not None:
            state.decisions = DecisionLog(settings.log_decisions, queries=settings.log_queries)
            recover(settings.log_decisions)
        if settings.access_log:
            state.access_log = AccessLog()
        return state

    async def keep_up(self) -> None:
        """Make the log of decisions durable, and its journal a file when it is due."""
        log = self.decisions
        if log is None:
            return
        # A sync takes milliseconds, which requests must not wait for.
        await asyncio.to_thread(log.sync)
        # On a full disk there is no new journal: the old one goes on, and the next round tries again.
        with suppress(OSError):
            if log.due():
                old = log.switch()
                # Not in the pool of calls, whose places are for requests.
                Thread(target=log.finish, args=old, daemon=True).start()

    def close(self) -> None:
        """Finish what runs, and let others write the catalogue."""
        self.gate.close()
        if self.decisions is not None:
            self.decisions.close()
        if self.access_log is not None:
            self.access_log.close()
        self.served.close()
