"""A server is told to stop, to take a new index, and to run several processes, and fails no request meanwhile."""

import json
import os
import signal
import socket
import threading

import httpx
import numpy as np
import pytest
from servers import D, Process, items, wait_until

import softindex
from softindex.cli import app

BODY = {"queries": items(1).tolist(), "temperature": 0.5, "n": 3}


def save(path, seed):
    softindex.build(items(400, seed=seed), ids=[f"{seed}-{row}" for row in range(400)], threads=1).save(path)


class Load:
    """Requests one after the other in a thread, until it is stopped: their answers."""

    def __init__(self, url):
        self.answers, self._stop, self._url = [], threading.Event(), url
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        with httpx.Client(base_url=self._url, timeout=20) as client:
            while not self._stop.is_set():
                self.answers.append(client.post("/v1/sample", json=BODY))

    def stop(self):
        self._stop.set()
        self._thread.join()
        return self.answers


def test_a_newly_saved_index_replaces_the_old_one_and_no_request_fails(tmp_path):
    save(tmp_path / "index", 0)
    with Process(tmp_path / "index") as server:
        load = Load(server.url)
        wait_until(lambda: len(load.answers) > 20)
        save(tmp_path / "index", 1)
        wait_until(lambda: load.answers[-1].json()["ids"][0][0].startswith("1-"))
        server.signal(signal.SIGHUP)
        wait_until(lambda: "softindex_reloads 2.0" in server.client.get("/metrics").text)
        answers = load.stop()
        assert {answer.status_code for answer in answers} == {200}
        kinds = [answer.json()["ids"][0][0][0] for answer in answers]
        # First the old items, then the new ones, and never both in one answer.
        assert kinds == sorted(kinds)
        for answer in answers:
            assert len({name.partition("-")[0] for name in answer.json()["ids"][0]}) == 1


def test_a_damaged_index_is_not_taken(tmp_path):
    save(tmp_path / "index", 0)
    with Process(tmp_path / "index") as server:
        manifest = tmp_path / "index" / "manifest.json"
        text = manifest.read_bytes()
        manifest.write_bytes(text[:-10])
        wait_until(lambda: "softindex_reload_failures 0.0" not in server.client.get("/metrics").text)
        assert server.client.post("/v1/sample", json=BODY).status_code == 200


def test_sigterm_answers_what_has_begun(tmp_path):
    save(tmp_path / "index", 0)
    with Process(tmp_path / "index") as server:
        head = b"POST /v1/sample HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        body = json.dumps(BODY).encode()
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.settimeout(20)
            peer.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body[:10])
            server.client.get("/livez")
            server.signal(signal.SIGTERM)
            wait_until(lambda: not accepts(host, int(port)))
            peer.sendall(body[10:])
            assert b" 200 " in peer.recv(65536)
        assert server.process.wait(20) == 0
        lines = [json.loads(line) for line in server.process.stderr.read().splitlines()]
        assert lines[-1]["path"] == "/v1/sample"
        assert {"time", "request_id", "status", "milliseconds", "client", "method", "bytes"} <= lines[-1].keys()


def accepts(host, port):
    try:
        socket.create_connection((host, port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_workers_share_one_index_add_up_their_counts_and_are_replaced(tmp_path):
    save(tmp_path / "index", 0)
    with Process(tmp_path / "index", "--workers", 2, "--no-access-log") as server:
        workers = children(server.process.pid)
        assert len(workers) == 2
        wanted = softindex.load(tmp_path / "index").sample(np.array(BODY["queries"]), 3, temperature=0.5, seed=4).ids
        for _ in range(20):
            with httpx.Client(base_url=server.url) as client:
                assert client.post("/v1/sample", json=BODY | {"seed": 4}).json()["ids"] == wanted.tolist()
        counted = 'softindex_responses_total{route="/v1/sample",status="200"} 20.0'
        assert counted in server.client.get("/metrics").text
        # The files of the index are mapped by each, not read into memory of their own.
        for worker in workers:
            with open(f"/proc/{worker}/maps") as maps:
                assert "vectors" in maps.read()
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: len(set(children(server.process.pid)) - set(workers)) == 1)
        save(tmp_path / "index", 1)
        server.signal(signal.SIGHUP)
        wait_until(lambda: all(_answers_new(server.url) for _ in range(10)))
        server.signal(signal.SIGTERM)
        assert server.process.wait(20) == 0


def _answers_new(url):
    try:
        return httpx.post(f"{url}/v1/sample", json=BODY).json()["ids"][0][0].startswith("1-")
    except httpx.TransportError:
        # The connection was accepted by the process that was killed.
        return False


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def test_what_cannot_be_served_is_one_sentence(tmp_path):
    with softindex.open(tmp_path / "live", create=D):
        pass
    live = str(tmp_path / "live")
    tries = [
        ([], "say what to serve"),
        ([live, "--demo"], "say what to serve"),
        ([str(tmp_path / "nothing")], "nothing"),
        ([live, "--workers", "2"], "one process writes a catalogue"),
        ([live, "--host", "0.0.0.0"], "there is no API key"),
        ([live, "--port", "70000"], "port is 70000"),
        ([live, "--limit", "seconds=-1"], "seconds is -1"),
        ([live, "--limit", "batch=many"], "limit batch is 'many'"),
        ([live, "--limit", "speed=1"], "there is no limit 'speed'"),
        ([live, "--limit", "n=0"], "n is 0"),
    ]
    for arguments, words in tries:
        with pytest.raises(softindex.SoftindexError, match=words):
            app(["serve", *arguments], standalone_mode=False)
