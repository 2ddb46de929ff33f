"""A catalogue that changes: a log, a delta, snapshots and compaction."""

from softindex.live.catalogue import LiveIndex
from softindex.live.opening import is_catalogue, open
from softindex.live.status import CompactionState, Status

__all__ = ["CompactionState", "LiveIndex", "Status", "is_catalogue", "open"]
