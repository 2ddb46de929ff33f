"""The service on loopback: overhead over a call in process, requests per second, and what happens under overload.

The same handler in FastAPI runs beside it, on the same server program, as a peer.  Client and servers share the CPUs.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import uvloop

import softindex
from benchmarks.data import open_glove
from benchmarks.tables import Table

TEMPERATURE, DRAWS = 0.1, 5
CALLS, CONNECTIONS, SECONDS = 1500, (1, 8, 64), 6.0
OVERLOAD_SECONDS = float(os.environ.get("OVERLOAD_SECONDS", "60"))
CALM_SECONDS = 12.0
"""At a fifth of the capacity: some 5,000 requests, so that fifty are slower than the p99."""
NAMES = {"softindex": "softindex serve", "fastapi": "the same handler in FastAPI"}


def request_of(query, seed):
    """The bytes of one request."""
    body = json.dumps({"queries": [query.tolist()], "n": DRAWS, "temperature": TEMPERATURE, "seed": seed}).encode()
    head = (
        f"POST /v1/sample HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    return f"{head}\r\n\r\n".encode() + body


@contextmanager
def server(kind, path, *options):
    """A server of the index at the path: its port and its process id."""
    command = {
        "softindex": [sys.executable, "-m", "softindex", "serve", str(path), "--port", "0", *options],
        "fastapi": [sys.executable, "-m", "benchmarks.serve_fastapi", str(path)],
    }[kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{NAMES[kind]} did not start: try {' '.join(command)}, and install the extra bench.")
        port = int(line.split("http://127.0.0.1:")[1].split(";")[0].strip())
        for _ in range(1000):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.01)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(30)


class Caller:
    """One connection that blocks: the least that a client can cost."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, request):
        """Status and body of the answer."""
        self._socket.sendall(request)
        data = self._socket.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(body) < length:
            body += self._socket.recv(65536)
        return int(head.split()[1]), body

    def close(self):
        """Close it."""
        self._socket.close()


def overhead(index, queries, ports):
    """Median microseconds of a call in process and by each server, in turns; the same ids and log_prob from all."""
    callers = {kind: Caller(port) for kind, port in ports.items()}
    seconds = {"in process": [], **{kind: [] for kind in ports}}
    for number in range(CALLS):
        query = queries[number % len(queries)]
        request = request_of(query, number)
        start = time.perf_counter()
        draws = index.sample(query[None], DRAWS, temperature=TEMPERATURE, seed=number, threads=1)
        seconds["in process"].append(time.perf_counter() - start)
        for kind, caller in callers.items():
            start = time.perf_counter()
            status, body = caller.call(request)
            seconds[kind].append(time.perf_counter() - start)
            found = json.loads(body)
            assert status == 200
            assert found["ids"] == draws.ids.tolist()
            assert found["log_prob"] == draws.log_prob.tolist()
    for caller in callers.values():
        caller.close()
    return {kind: np.array(found[100:]) for kind, found in seconds.items()}


class Peer(asyncio.Protocol):
    """A connection of the load: sends a request when it is told to, and notes how long the answer took."""

    def __init__(self, requests, finished):
        self._requests, self._finished = requests, finished
        self._data, self._begun, self._number = b"", 0.0, 0

    def connection_made(self, transport):
        """Keep what it writes to."""
        self.transport = transport

    def send(self, begun=None):
        """Send the next request; begun: when it should have been sent."""
        self._begun = time.perf_counter() if begun is None else begun
        self._number += 1
        self.transport.write(self._requests[self._number % len(self._requests)])

    def data_received(self, data):
        """Note an answer when it is complete."""
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if len(body) >= length:
            self._data = b""
            self._finished(self, int(head[9:12]), time.perf_counter() - self._begun)


async def closed_loop(port, requests, connections, seconds):
    """Each connection sends the next request when it has its answer."""
    loop, answers, end = asyncio.get_running_loop(), [], time.perf_counter() + seconds

    def finished(peer, status, taken):
        answers.append((status, taken))
        if time.perf_counter() < end:
            peer.send()

    peers = [
        (await loop.create_connection(lambda: Peer(requests, finished), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    for peer in peers:
        peer.send()
    await asyncio.sleep(seconds + 0.2)
    for peer in peers:
        peer.transport.close()
    return answers


async def open_loop(port, requests, rate, seconds, most=256):
    """Requests at a rate, whether or not earlier ones were answered; without a free connection they wait for one."""
    loop, answers, free, late = asyncio.get_running_loop(), [], deque(), deque()

    def finished(peer, status, taken):
        answers.append((status, taken))
        if late:
            peer.send(late.popleft())
        else:
            free.append(peer)

    free += [
        (await loop.create_connection(lambda: Peer(requests, finished), "127.0.0.1", port))[1] for _ in range(most)
    ]
    everybody = list(free)
    # A connection's first request also waits for the server to accept it: each has sent one before the clock runs.
    for peer in everybody:
        free.remove(peer)
        peer.send()
        while peer not in free:
            await asyncio.sleep(0.0005)
    answers.clear()
    begun, sent = time.perf_counter(), 0
    while (now := time.perf_counter()) < begun + seconds:
        while sent < (now - begun) * rate:
            moment = begun + sent / rate
            sent += 1
            if free:
                # The one that has been idle longest: the server closes connections that never send anything.
                free.popleft().send(moment)
            else:
                late.append(moment)
        await asyncio.sleep(0.0005)
    await asyncio.sleep(1.0)
    for peer in everybody:
        peer.transport.close()
    return answers, sent


def run_loop(work):
    """What the coroutine returns."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def accepted(answers):
    """Seconds of the answers that were 200."""
    return np.array([taken for status, taken in answers if status == 200])


def resident(pid):
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def throughput(ports, requests):
    """Rows: requests per second and latency of each server by the number of connections, in turns."""
    rows = []
    for connections in CONNECTIONS:
        for kind, port in ports.items():
            answers = run_loop(closed_loop(port, requests, connections, SECONDS))
            taken = accepted(answers)
            assert len(taken) == len(answers)
            low, high = np.percentile(taken, [50, 99]) * 1e3
            rows.append([f"{connections}", NAMES[kind], f"{len(taken) / SECONDS:,.0f}", f"{low:.2f}", f"{high:.2f}"])
    return rows


def overload(path, requests):
    """Rows: the server, with its default limits, at a fifth of its capacity, at twice its capacity, and afterwards."""
    rows, slowest = [], []
    with server("softindex", path) as (port, pid):
        run_loop(closed_loop(port, requests, 4, 2.0))
        capacity = len(accepted(run_loop(closed_loop(port, requests, 8, 4.0)))) / 4.0
        before = resident(pid)
        for name, share, seconds in (
            ("a fifth", 0.2, CALM_SECONDS),
            ("twice", 2.0, OVERLOAD_SECONDS),
            ("a fifth, after it", 0.2, CALM_SECONDS),
        ):
            answers, sent = run_loop(open_loop(port, requests, capacity * share, seconds))
            taken = accepted(answers)
            low, high = np.percentile(taken, [50, 99]) * 1e3
            slowest.append(high)
            rows.append(
                [
                    f"{name}, {seconds:.0f} s",
                    f"{sent / seconds:,.0f}",
                    f"{len(taken) / len(answers):.0%}",
                    ", ".join(map(str, sorted({status for status, _ in answers}))),
                    f"{sent - len(answers)}",
                    f"{low:.2f}",
                    f"{high:.2f}",
                    f"{resident(pid) / before:.2f}x",
                ]
            )
    # Against the better of the two calm stretches, which have the same client, connections and number of requests.
    calm = min(slowest[0], slowest[2])
    return [[*row, f"{high / calm:.1f}x"] for row, high in zip(rows, slowest, strict=True)]


def run(options):
    """Measure on GloVe, 341,479 x 100."""
    data = open_glove()
    rng = np.random.default_rng(0)
    queries = data.vectors[rng.choice(len(data.vectors), 200, replace=False)].copy()
    requests = [request_of(query, number) for number, query in enumerate(queries)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(os.environ.get("SERVED_INDEX") or Path(folder) / "index")
        if not path.exists():
            softindex.build(data.vectors, seed=0, progress=True).save(path)
        index = softindex.load(path)
        with server("softindex", path, "--limit", "in_flight=128") as (own, _), server("fastapi", path) as (other, _):
            ports = {"softindex": own, "fastapi": other}
            seconds = overhead(index, queries, ports)
            loads = throughput(ports, requests)
        stress = overload(path, requests)
    base = np.median(seconds["in process"])
    calls = [
        [NAMES.get(kind, kind), f"{np.median(found) * 1e3:.3f}", f"{(np.median(found) - base) * 1e3:.3f}"]
        for kind, found in seconds.items()
    ]
    return [
        Table("One query, five draws, one connection, in turns", ["", "median, ms", "above in process, ms"], calls),
        Table("Closed loop", ["connections", "", "requests/s", "p50, ms", "p99, ms"], loads),
        Table(
            "Load at a rate, default limits",
            [
                "share of capacity",
                "sent/s",
                "accepted",
                "statuses",
                "unanswered",
                "p50, ms",
                "p99, ms",
                "memory",
                "p99 over the calm one",
            ],
            stress,
        ),
    ]
