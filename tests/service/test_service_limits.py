"""Whatever comes is bounded and answered: sizes, slow and silent clients, nonsense, and too many at once."""

import asyncio
import json
import selectors
import socket
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
from servers import D, Process, items, running, wait_until

import softindex
from softindex.service import Limits
from softindex.service import gate as gate_module
from softindex.service.gate import Gate

QUERY = items(1).tolist()
PROBE = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def small(saved):
    limits = {"body_bytes": 20_000, "header_bytes": 2_000, "batch": 4, "n": 50, "results": 100, "k": 20, "excluded": 10}
    with running(saved, seconds=0.5, pool_threads=1, pooled=1, connections=20, **limits) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("sample", {"queries": QUERY * 5}),
        ("sample", {"n": 51}),
        ("sample", {"queries": QUERY * 4, "n": 26}),
        ("sample", {"exclude": [f"item {row}" for row in range(11)]}),
        ("sample", {"exclude": [[f"item {row}" for row in range(11)]]}),
        ("top-k", {"k": 21}),
        ("log-prob", {"ids": [f"item {row}" for row in range(101)]}),
        ("sample", {"method": "top-k", "k": 21}),
    ],
)
def test_more_than_is_allowed_is_413_with_the_limit(small, path, change):
    found = small.post(path, {"queries": QUERY, "temperature": 0.5} | change)
    assert found.status_code == 413
    assert "at most" in found.json()["detail"]


def test_large_bodies_are_refused_whether_they_say_so_or_not(small):
    headers = {"content-type": "application/json"}
    assert small.client.post("/v1/sample", content=b" " * 20_001, headers=headers).status_code == 413
    chunked = (b" " * 1000 for _ in range(100))
    assert small.client.post("/v1/sample", content=chunked, headers=headers).status_code == 413


def test_long_headers_are_431(small):
    assert small.client.get("/livez", headers={"x-long": "a" * 3000}).status_code == 431
    with socket.create_connection(("127.0.0.1", small.port)) as peer:
        # A header that never ends.
        peer.settimeout(10)
        peer.sendall(b"GET / HTTP/1.1\r\nx: ")
        try:
            for _ in range(100):
                peer.sendall(b"a" * 1000)
        except OSError:
            pass
        else:
            assert b" 431 " in peer.recv(4096)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"queries": [[NaN]], "temperature": 1}', b"[" * 10_000, b'{"a": 1}'],
)
def test_nonsense_is_answered_with_a_sentence(small, body):
    found = small.client.post("/v1/sample", content=body, headers={"content-type": "application/json"})
    assert found.status_code in (400, 422)
    assert found.json()["detail"].endswith(".")


@pytest.mark.parametrize(
    "queries",
    [
        "%%%",
        "AAA=",
        {"float32": "AAAA", "shape": [2]},
        {"float32": "", "shape": [-1, 0]},
        [[1.0], [1.0, 2.0]],
        [],
        [[]],
    ],
)
def test_bad_queries_are_422(small, queries):
    found = small.post("sample", {"queries": queries, "temperature": 1.0})
    assert found.status_code == 422, found.text


def test_what_is_not_http_is_400(small):
    with socket.create_connection(("127.0.0.1", small.port)) as peer:
        peer.sendall(b"\x16\x03\x01 this is not http\r\n\r\n")
        assert b" 400 " in peer.recv(4096)


def test_a_slow_client_is_408_and_a_silent_one_is_let_go(small):
    head = (
        b"POST /v1/sample HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    peers = [socket.create_connection(("127.0.0.1", small.port)) for _ in range(2)]
    peers[0].sendall(head)
    for peer, status in zip(peers, (b" 408 ", b""), strict=True):
        peer.settimeout(10)
        with peer:
            assert status in peer.recv(4096)
    # Meanwhile the others are served.
    assert small.client.get("/livez").status_code == 200


def test_slow_clients_do_not_keep_others_out(saved):
    head = (
        b"POST /v1/sample HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    with running(saved, in_flight=2) as server:
        peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10)]
        # One after the other: requests that arrive at once count until the server has looked at them.
        for count, peer in enumerate(peers, 1):
            peer.sendall(head)
            wait_until(lambda count=count: server.state.gate.suspended == count)
        assert server.post("sample", {"queries": QUERY, "temperature": 1.0}).status_code == 200
        for peer in peers:
            peer.close()
        wait_until(lambda: server.state.gate.suspended == 0)


def test_there_are_not_more_connections_than_allowed(small):
    wait_until(lambda: small.client.get("/livez").status_code == 200)
    peers = [socket.create_connection(("127.0.0.1", small.port)) for _ in range(25)]
    answers = []
    for peer in peers:
        peer.settimeout(10)
        with peer:
            answers.append(peer.recv(4096))
    assert sum(b" 429 " in answer for answer in answers) >= 5
    assert small.client.get("/livez").status_code == 200


def test_a_call_that_takes_too_long_is_503_and_its_place_stays_taken(small, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(small.state.served, "starting_with", lambda *_: release.wait(20) and [])
    assert small.client.get("/v1/ids").status_code == 503
    # The only place of the pool is taken: refused at once, and short calls go on.
    begun = small.client.get("/v1/ids")
    assert begun.status_code == 429
    assert int(begun.headers["retry-after"]) >= 1
    assert small.post("sample", {"queries": QUERY, "temperature": 1.0}).status_code == 200
    release.set()
    wait_until(lambda: small.state.gate.pooled == 0)
    assert small.client.get("/v1/ids").status_code == 200


def test_too_many_at_once_are_429_and_the_rest_is_served(saved):
    """A burst on many connections: each is answered 200 or 429, and then everything is as before."""
    body = json.dumps({"queries": items(1)[0].tolist(), "temperature": 1.0, "n": 2}).encode()
    request = (
        b"POST /v1/sample HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )
    with running(saved, in_flight=2) as server:
        peers = accepted_connections(server.port, 60)
        sent = threading.Event()
        server.state.served.function = once(sent, server.state.served.function)
        for peer in peers:
            peer.sendall(request)
        sent.set()
        statuses = []
        for peer in peers:
            with peer:
                statuses.append(int(peer.recv(65536).split()[1]))
        assert set(statuses) == {200, 429}
        del server.state.served.function
        assert server.post("sample", {"queries": QUERY, "temperature": 1.0}).status_code == 200
        assert 'softindex_rejected_total{reason="busy"}' in server.client.get("/metrics").text


def test_what_arrives_during_a_draw_is_looked_at_before_the_next():
    """Draws that wait take turns with the loop: what arrives meanwhile does not wait for all of them."""
    gate, seen = Gate(Limits()), []

    async def serve():
        loop = asyncio.get_running_loop()

        def draw(number):
            seen.append(f"draw {number}")
            loop.call_soon(seen.append, f"arrived during {number}")
            return number if number != 2 else 1 / 0

        tasks = [loop.create_task(gate.run(partial(draw, number), 1)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(serve())
    gate.close()
    # One that fails or is given up does not keep the next from its turn.
    assert seen == [f"{what} {number}" for number in (0, 1, 2, 4) for what in ("draw", "arrived during")]
    assert [found[number] for number in (0, 1, 4)] == [0, 1, 4]
    assert isinstance(found[2], ZeroDivisionError)
    assert isinstance(found[3], asyncio.CancelledError)


def test_after_a_refusal_fewer_are_taken_on_for_a_moment(monkeypatch):
    now, gate = [100.0], Gate(Limits())
    monkeypatch.setattr(gate_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for most in (8, 3):
        assert [gate.admit() for _ in range(10)] == [True] * most + [False] * (10 - most)
        for _ in range(most):
            gate.leave()
    now[0] += 2 * gate_module.PRESSED_SECONDS
    assert all(gate.admit() for _ in range(8))
    gate.close()


def test_eight_connections_are_never_refused(saved):
    """Each sends the next request when it has its answer."""
    with running(saved) as server:
        content = request_of({"queries": items(1)[0].tolist(), "temperature": 1.0})
        assert set(load(server.port, content, connections=8, seconds=0.5)) == {200}


def test_refused_requests_do_not_have_the_next_ones_refused(server):
    gate = Gate(Limits(in_flight=2))
    taken = [gate.admit() for _ in range(50)]
    assert taken == [True] * 2 + [False] * 48
    gate.leave()
    assert [gate.admit() for _ in range(3)] == [True, False, False]
    gate.close()
    # And a server that is idle has nobody inside.
    server.post("sample", {"queries": QUERY, "temperature": -1.0})
    wait_until(lambda: server.state.gate.waiting == 0)


def accepted_connections(port, count):
    """Connections that the server has accepted: others would be served one after the other."""
    peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for peer in peers:
        peer.settimeout(20)
        peer.sendall(PROBE)
        assert b" 200 " in peer.recv(65536)
    return peers


def once(event, function):
    """The function, held back until the event: what arrives meanwhile waits for the loop, all of it together."""

    def found(name, index):
        assert event.wait(20)
        return function(name, index)

    return found


def test_an_id_that_json_cannot_carry_is_a_sentence(tmp_path):
    index = softindex.build(items(2), ids=["plain", "half \ud800"], clusters=1)
    index.save(tmp_path / "index")
    with running(tmp_path / "index") as server:
        asked = {"queries": QUERY, "temperature": 1.0}
        answer = server.post("sample", {**asked, "n": 2, "replace": False})
        assert answer.status_code == 500
        assert "half of a surrogate pair" in answer.json()["detail"]
        assert server.post("sample", {**asked, "top_p": 1e-9, "n": 1, "allow": ["plain"]}).json()["ids"] == [["plain"]]


def test_queries_of_another_size_get_the_sentence_of_the_library(server):
    found = server.post("sample", {"queries": [[0.0] * (D + 1)], "temperature": 1.0}).json()
    assert (
        found["detail"] == f"queries have {D + 1} dimensions but this index has {D}; encode them with the same model."
    )


def test_under_overload_memory_stays_and_every_answer_is_200_or_429(saved):
    """Two seconds of 40 connections that never pause, and two requests at a time: memory within 1.2 times.

    Nobody reads the access log, which fills its pipe and stops nobody.
    """
    content = request_of({"queries": items(1)[0].tolist(), "temperature": 1.0, "n": 50})
    with Process(saved, "--limit", "in_flight=2") as server:
        port = int(server.url.rpartition(":")[2])
        load(port, content, connections=4, seconds=1.0)
        before = resident(server.process.pid)
        statuses = load(port, content, connections=40, seconds=2.0)
        assert set(statuses) <= {200, 429}
        assert 200 in statuses
        assert resident(server.process.pid) <= 1.2 * before
        # What was sent last may still be there for a moment.
        wait_until(lambda: server.client.get("/v1/info").status_code == 200)


def request_of(body):
    content = json.dumps(body).encode()
    head = (
        b"POST /v1/sample HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    return head % len(content) + content


def load(port, content, connections, seconds):
    """Statuses of the answers to connections that each send the next request when they have their answer."""
    watched, statuses, end = selectors.DefaultSelector(), [], time.monotonic() + seconds
    for _ in range(connections):
        peer = socket.create_connection(("127.0.0.1", port))
        watched.register(peer, selectors.EVENT_READ, bytearray())
        peer.sendall(content)
    while time.monotonic() < end:
        for key, _ in watched.select(0.1):
            key.data.extend(key.fileobj.recv(65536))
            head, found, body = bytes(key.data).partition(b"\r\n\r\n")
            if found and len(body) >= int(head.lower().partition(b"content-length: ")[2].split()[0]):
                statuses.append(int(head[9:12]))
                key.data.clear()
                key.fileobj.sendall(content)
    for key in list(watched.get_map().values()):
        key.fileobj.close()
    return statuses


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1])
