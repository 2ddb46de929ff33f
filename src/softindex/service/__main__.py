"""A worker process: `python -m softindex.service FD` serves on the socket FD; its settings come on standard input."""

from __future__ import annotations

import signal
import socket
import sys

import msgspec

from softindex.service.server import run_worker
from softindex.service.settings import Settings
from softindex.service.worker_state import WorkerState


def main() -> int:
    """Serve until told to stop."""
    # Until the worker can follow it: the index it opens is the newest anyway.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        return run_worker(WorkerState.open(settings), listening)


if __name__ == "__main__":
    sys.exit(main())
