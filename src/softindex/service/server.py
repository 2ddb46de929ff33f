"""Runs worker processes: one in this process, or several that share a socket and the mapped files of the index."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

import msgspec
import uvicorn

from softindex.errors import InputError
from softindex.live import is_catalogue
from softindex.service.app import make_app
from softindex.service.metrics import SHARED
from softindex.service.protocol import bounded_protocol
from softindex.service.settings import Settings
from softindex.service.worker_state import WorkerState

__all__ = ["bind", "serve"]

POLL_SECONDS = 0.2
"""How often a worker looks for a newer state or index."""
DRAIN_SECONDS = 20
RESTART_SECONDS = 1.0


def serve(settings: Settings, announce: Any) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    Args:
        settings: What to serve.
        announce: Called with the URL when the socket is open.
    """
    if settings.workers > 1 and not settings.read_only and settings.path is not None and is_catalogue(settings.path):
        raise InputError(
            "one process writes a catalogue; serve it with one worker, or with --read-only and several, which follow "
            "the writer."
        )
    if settings.workers == 1:
        state = WorkerState.open(settings)
        with bind(settings) as listening:
            announce(_url(settings, listening))
            return run_worker(state, listening)
    # Opened once here, so that what cannot be served is refused before workers start.
    WorkerState.open(settings).close()
    with bind(settings) as listening:
        announce(_url(settings, listening))
        return _supervise(settings, listening)


def bind(settings: Settings) -> socket.socket:
    """The listening socket; InputError where the address cannot be had."""
    try:
        return socket.create_server(
            (settings.host, settings.port),
            family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET,
            backlog=min(settings.limits.connections, 1024),
        )
    except OSError as error:
        raise InputError(
            f"{settings.host} port {settings.port} cannot be used ({error.strerror}); choose another with --port."
        ) from error


def run_worker(state: WorkerState, listening: socket.socket) -> int:
    """Serve in this process until it is told to stop: then answer what has begun, and return."""
    settings = state.settings
    config = uvicorn.Config(
        make_app(state),
        loop="uvloop",
        http=bounded_protocol(settings.limits, state.gate),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    server = uvicorn.Server(config)
    # What was loaded until now stays: looking through it for garbage would take milliseconds, again and again.
    gc.collect()
    gc.freeze()
    # uvicorn raises the signal again when it has stopped: the process then ends as usual, with code 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_serve(server, state, listening))
    finally:
        state.close()
    return 0


async def _serve(server: uvicorn.Server, state: WorkerState, listening: socket.socket) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    with suppress(ValueError, RuntimeError):
        loop.add_signal_handler(signal.SIGHUP, asked.set)
    following = asyncio.create_task(_follow(state, asked))
    stopping = asyncio.create_task(_watch(server, state))
    try:
        await server.serve(sockets=[listening])
    finally:
        following.cancel()
        stopping.cancel()


async def _watch(server: uvicorn.Server, state: WorkerState) -> None:
    """Ready from when the server accepts connections until it is told to stop."""
    while not server.started:
        await asyncio.sleep(0.005)
    state.ready = True
    while not server.should_exit:
        await asyncio.sleep(0.02)
    state.ready = False


async def _follow(state: WorkerState, asked: asyncio.Event) -> None:
    """Take newer states and indexes as they come; at once after SIGHUP."""
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), POLL_SECONDS)
        force = asked.is_set()
        asked.clear()
        await asyncio.to_thread(state.served.refresh, force=force)
        await state.keep_up()


def _supervise(settings: Settings, listening: socket.socket) -> int:
    """Keep worker processes running, pass signals on, and wait for all of them."""
    stopping: list[int] = []
    workers: list[subprocess.Popen[bytes]] = []

    def stop(number: int, _: Any) -> None:
        stopping.append(number)
        _send(workers, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, lambda *_: _send(workers, signal.SIGHUP))
    with tempfile.TemporaryDirectory(prefix="softindex-metrics-") as folder:
        workers += [_start(settings, listening, folder) for _ in range(settings.workers)]
        while not stopping:
            time.sleep(POLL_SECONDS)
            for place, worker in enumerate(workers):
                if not stopping and worker.poll() is not None:
                    sys.stderr.write(
                        f"softindex: worker {worker.pid} ended with {worker.returncode}; starting another.\n"
                    )
                    time.sleep(RESTART_SECONDS)
                    workers[place] = _start(settings, listening, folder)
        _send(workers, signal.SIGTERM)
        for worker in workers:
            worker.wait()
    return 0


def _send(workers: list[subprocess.Popen[bytes]], number: int) -> None:
    for worker in workers:
        with suppress(ProcessLookupError):
            worker.send_signal(number)


def _start(settings: Settings, listening: socket.socket, folder: str) -> subprocess.Popen[bytes]:
    """A new process: a fork would share locks that threads of the libraries hold."""
    command = [sys.executable, "-m", "softindex.service", str(listening.fileno())]
    worker = subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, pass_fds=[listening.fileno()], env={**os.environ, SHARED: folder}
    )
    assert worker.stdin is not None
    # Not on the command line, which everybody on the machine can read: the settings have the keys.
    with worker.stdin as pipe, suppress(BrokenPipeError):
        pipe.write(msgspec.json.encode(settings))
    return worker


def _url(settings: Settings, listening: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listening.getsockname()[1]}"
