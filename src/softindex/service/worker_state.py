"""What the requests of one worker process share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import msgspec

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

    @classmethod
    def open(cls, settings: Settings) -> WorkerState:
        """Open what is to be served; the errors of the library where that is not possible."""
        served = Served(settings.path, read_only=settings.read_only)
        state = cls(settings, served, Gate(settings.limits), Metrics(), local=is_loopback(settings.host))
        if settings.log_decisions is not None:
            state.decisions = DecisionLog(settings.log_decisions, queries=settings.log_queries)
            recover(settings.log_decisions)
        return state

    def log_line(self, line: Mapping[str, Any]) -> None:
        """Write one line of JSON to standard error."""
        sys.stderr.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stderr.buffer.flush()

    def keep_up(self) -> None:
        """Make the log of decisions durable, and its journal a file when it is due.  For the event loop."""
        log = self.decisions
        if log is not None:
            log.sync()
            if log.due():
                old = log.switch()
                # Not in the pool of calls, whose places are for requests.
                Thread(target=log.finish, args=old, daemon=True).start()

    def close(self) -> None:
        """Finish what runs, and let others write the catalogue."""
        self.gate.close()
        if self.decisions is not None:
            self.decisions.close()
        self.served.close()
