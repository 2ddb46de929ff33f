"""Servers for the tests: on loopback, in a thread of this process or in a process of their own."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import numpy as np
import uvicorn

from softindex.service.app import make_app
from softindex.service.protocol import bounded_protocol
from softindex.service.server import _serve, bind
from softindex.service.settings import make_settings
from softindex.service.worker_state import WorkerState

D = 16


def items(n=2000, d=D, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Running:
    """A server in a thread: its URL, a client and its state."""

    def __init__(self, state, listening, headers):
        self.state = state
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=20)

    def post(self, path, body, **options):
        return self.client.post(f"/v1/{path}", json=body, **options)

    def answer(self, path, body):
        found = self.post(path, body)
        assert found.status_code == 200, found.text
        return found.json()


@contextmanager
def running(path, headers=None, **options):
    """A server of what is at the path, in a thread."""
    settings = make_settings(path=None if path is None else str(path), port=0, access_log=False, **options)
    state = WorkerState.open(settings)
    listening = bind(settings)
    config = uvicorn.Config(
        make_app(state),
        http=bounded_protocol(settings.limits, state.gate),
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)

    def run():
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_serve(server, state, listening))

    thread = threading.Thread(target=run)
    thread.start()
    found = Running(state, listening, headers)
    try:
        wait_until(lambda: state.ready)
        yield found
    finally:
        found.client.close()
        server.should_exit = True
        thread.join(20)
        state.close()


class Process:
    """`softindex serve` in a process of its own."""

    def __init__(self, *arguments, environment=None):
        command = [sys.executable, "-m", "softindex", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        line = self.process.stdout.readline()
        found = re.search(r"http://[^\s;]+", line)
        assert found, line + self.process.stderr.read()
        self.url = found.group()
        self.client = httpx.Client(base_url=self.url, timeout=20)
        wait_until(self._ready)

    def _ready(self):
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        """The process and those it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def wait_until(test, seconds=20.0):
    """Wait for something that must happen; the time allowed is far more than it takes."""
    end = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
