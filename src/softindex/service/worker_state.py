"""What the requests of one worker process share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

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

    @classmethod
    def open(cls, settings: Settings) -> WorkerState:
        """Open what is to be served; the errors of the library where that is not possible."""
        served = Served(settings.path, read_only=settings.read_only)
        return cls(settings, served, Gate(settings.limits), Metrics(), local=is_loopback(settings.host))

    def log_line(self, line: Mapping[str, Any]) -> None:
        """Write one line of JSON to standard error."""
        sys.stderr.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stderr.buffer.flush()

    def close(self) -> None:
        """Finish what runs, and let others write the catalogue."""
        self.gate.close()
        self.served.close()
