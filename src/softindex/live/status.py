"""What a catalogue reports about itself."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CompactionState", "Status"]


@dataclass(frozen=True, slots=True)
class CompactionState:
    """How compaction fares in this process."""

    running: bool
    completed: int
    failures: int
    """In a row: 0 once one succeeded."""
    error: str | None
    """Why the last one failed; None if it did not."""
    seconds: float | None
    """How long the last one took."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a catalogue holds."""

    path: str
    snapshot: int
    """Number of the present state."""
    items: int
    delta_rows: int
    """Rows that are not part of the clusters yet: every call scans them."""
    removed: int
    """Positions of items that are gone and still take space."""
    clusters: int
    segments: int
    bytes_on_disk: int
    """Of all files, those included that only readers of old snapshots need, as far as they have names."""
    writable: bool
    compaction: CompactionState | None
    """None for a reader."""
