"""A catalogue over HTTP: what was acknowledged is there, for the next request and after kill -9."""

import json
import random
import sys
import threading
import time

import httpx
import numpy as np
import pytest
from servers import D, Process, items, running, wait_until

import softindex


@pytest.fixture
def catalogue(tmp_path):
    with softindex.open(tmp_path / "live", create=items(300), ids=list(range(300))):
        pass
    return tmp_path / "live"


def test_the_next_request_sees_an_acknowledged_change(catalogue):
    with running(catalogue) as server:
        new = items(3, seed=5)
        change = server.client.put("/v1/items", json={"ids": [1, 1000, 1001], "vectors": new.tolist()}).json()
        assert change == {"snapshot": 1, "items": 302}
        found = server.client.get("/v1/items", params={"id": [1000, 1]}).json()
        np.testing.assert_array_equal(np.array(found["vectors"], np.float32), new[[1, 0]])
        assert found["snapshot"] == 1
        best = server.answer("top-k", {"queries": new[2].tolist(), "k": 1})
        assert (best["ids"], best["snapshot"]) == ([1001], 1)
        gone = server.client.request("DELETE", "/v1/items", json={"ids": [1001]}).json()
        assert gone == {"snapshot": 2, "items": 301}
        assert server.client.get("/v1/items", params={"id": 1001}).status_code == 404
        assert server.answer("top-k", {"queries": new[2].tolist(), "k": 1})["ids"] != [1001]
        assert server.answer("sample", {"item": 1, "temperature": 1.0})["snapshot"] == 2
    with softindex.open(catalogue, read_only=True) as reader:
        assert len(reader) == 301


def test_a_refused_change_changes_nothing(catalogue):
    with running(catalogue) as server:
        refused = [
            ("PUT", {"ids": [1, 1], "vectors": items(2).tolist()}, 422),
            ("PUT", {"ids": ["a"], "vectors": items(1).tolist()}, 422),
            ("PUT", {"ids": [1], "vectors": [[1.0] * (D - 1)]}, 422),
            ("PUT", {"ids": [1], "vectors": [[1e300] + [1.0] * (D - 1)]}, 422),
            ("PUT", {"ids": [1], "vectors": items(1).tolist(), "bias": [1.0]}, 422),
            ("DELETE", {"ids": [5000]}, 422),
            ("DELETE", {"ids": [1], "unknown": "maybe"}, 422),
        ]
        for method, body, status in refused:
            assert server.client.request(method, "/v1/items", json=body).status_code == status, body
        assert server.client.get("/v1/info").json()["snapshot"] == 0


def test_an_empty_catalogue_is_served_and_filled(tmp_path):
    with softindex.open(tmp_path / "live", create=D):
        pass
    with running(tmp_path / "live") as server:
        assert server.client.get("/readyz").status_code == 200
        found = server.post("sample", {"queries": items(1).tolist(), "temperature": 1.0})
        assert (found.status_code, "upsert" in found.json()["detail"]) == (422, True)
        server.client.put("/v1/items", json={"ids": ["a"], "vectors": items(1).tolist()})
        assert server.answer("sample", {"queries": items(1).tolist(), "temperature": 1.0})["ids"] == [["a"]]


def test_a_reader_follows_the_writer(catalogue):
    with softindex.open(catalogue) as live, running(catalogue, read_only=True) as server:
        assert not server.client.get("/v1/info").json()["writable"]
        refused = server.client.put("/v1/items", json={"ids": [1], "vectors": items(1).tolist()})
        assert refused.status_code == 422
        number = live.upsert([7777], items(1))
        wait_until(lambda: server.client.get("/v1/info").json()["snapshot"] == number)
        assert server.client.get("/v1/items", params={"id": 7777}).status_code == 200


def test_metrics_tell_of_the_delta_and_of_compaction(catalogue):
    with running(catalogue) as server:
        server.client.put("/v1/items", json={"ids": [1, 2], "vectors": items(2).tolist()})
        text = server.client.get("/metrics").text
        assert "softindex_delta_rows 2.0" in text
        assert "softindex_snapshot 1.0" in text
        server.state.served.live.compact()
        text = server.client.get("/metrics").text
        assert "softindex_delta_rows 0.0" in text
        assert "softindex_compactions 1.0" in text


def test_acknowledged_upserts_survive_kill_9(tmp_path):
    rounds(tmp_path / "live", 2, seed=0)


def rounds(path, count, seed):
    """Kill a server under writes again and again; what it acknowledged must be there.  Returns upserts that were."""
    with softindex.open(path, create=D) as live:
        live.upsert([0], items(1))
    chance, acknowledged, number = random.Random(seed), {}, 0
    for _ in range(count):
        server = Process(path, "--no-access-log")
        stop = threading.Timer(chance.uniform(0.05, 0.5), server.kill)
        stop.start()
        try:
            while True:
                number += 1
                row = items(1, seed=number)
                key = chance.randrange(1, 200)
                # Whether a request that is cut off was done is not known: only its predecessor may not be there.
                pending = key
                found = server.client.put("/v1/items", json={"ids": [key], "vectors": row.tolist()})
                assert found.status_code == 200
                acknowledged[key] = row[0]
                pending = None
        except httpx.TransportError:
            pass
        stop.join()
        server.client.close()
        with softindex.open(path, read_only=True) as reader:
            snapshot = reader.snapshot()
            for key, vector in acknowledged.items():
                kept = snapshot.vectors(key)
                assert (kept == vector).all() or (key == pending and (kept == row[0]).all()), key
            if pending is not None and pending in snapshot.ids:
                acknowledged[pending] = snapshot.vectors(pending)
    return len(acknowledged)


if __name__ == "__main__":
    import tempfile
    from pathlib import Path

    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        kept = rounds(Path(folder) / "live", int(sys.argv[1]), seed=1)
    sys.stdout.write(json.dumps({"kills": int(sys.argv[1]), "ids": kept, "seconds": time.monotonic() - begun}) + "\n")
