"""What a server reports to Prometheus."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

from softindex.service.served import Served

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
ERRORS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Set by the process that starts several workers: where they leave their counts for each other."""


class Metrics:
    """Counters of one worker process; several of them add up."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "softindex_request_seconds", "Time to answer.", ["route", "method"], buckets=SECONDS, registry=own
        )
        self._responses = Counter("softindex_responses", "Answers.", ["route", "status"], registry=own)
        self._rejected = Counter("softindex_rejected", "Requests refused because of a limit.", ["reason"], registry=own)
        self._scored = Counter("softindex_items_scored", "Items whose score was computed.", ["method"], registry=own)
        self._error = Histogram(
            "softindex_stated_error", "Stated error of draws.", ["method"], buckets=ERRORS, registry=own
        )
        self._gauges = {name: _gauge(name, text, own) for name, text in GAUGES.items()}
        # Finding a child by its labels takes longer than counting.
        self._timer = cache(lambda route, method: self._seconds.labels(route, method))
        self._answer = cache(lambda route, status: self._responses.labels(route, str(status)))
        self._drawn = cache(lambda method: (self._scored.labels(method), self._error.labels(method)))

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._timer(route, method).observe(seconds)
        self._answer(route, status).inc()

    def rejected(self, reason: str) -> None:
        """Count a request that a limit refused."""
        self._rejected.labels(reason).inc()

    def drew(self, record: Any) -> None:
        """Count what draws cost, and the error that they state."""
        scored, errors = self._drawn(record.method)
        scored.inc(float(np.sum(record.items_scored)))
        for value in np.atleast_1d(record.error).tolist():
            if value == value:
                errors.observe(value)

    def text(self, served: Served, decisions_lost: int = 0) -> bytes:
        """The present values, of all worker processes."""
        self._look_at(served)
        self._gauges["decisions_lost"].set(decisions_lost)
        if SHARED not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)

    def _look_at(self, served: Served) -> None:
        values: dict[str, float] = {"items": len(served), "reloads": served.reloads, "reload_failures": served.failures}
        if (state := served.status()) is not None:
            values |= {"snapshot": state.snapshot, "delta_rows": state.delta_rows, "removed": state.removed}
            values["disk_bytes"] = state.bytes_on_disk
            if (compaction := state.compaction) is not None:
                values |= {"compactions": compaction.completed, "compaction_failures": compaction.failures}
                values |= {"compaction_running": compaction.running, "compaction_seconds": compaction.seconds or 0}
        for name, value in values.items():
            self._gauges[name].set(value)


GAUGES = {
    "items": "Items that are served.",
    "reloads": "Times that a newer index or state was taken.",
    "reload_failures": "Times in a row that it could not be taken.",
    "snapshot": "Number of the state of the catalogue.",
    "delta_rows": "Rows of the catalogue that are not part of its clusters yet.",
    "removed": "Positions of items that are gone and still take space.",
    "disk_bytes": "Size of the catalogue on disk.",
    "compactions": "Compactions that succeeded.",
    "compaction_failures": "Compactions that failed in a row.",
    "compaction_running": "Whether one runs.",
    "compaction_seconds": "How long the last one took.",
    "decisions_lost": "Requests whose decisions could not be logged.",
}


def _gauge(name: str, text: str, registry: CollectorRegistry) -> Gauge:
    return Gauge(f"softindex_{name}", text, registry=registry, multiprocess_mode="mostrecent")
