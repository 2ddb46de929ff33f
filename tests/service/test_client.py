"""A client has the methods of the library: the same arguments give the same records and the same errors."""

import dataclasses
import inspect
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from servers import D, items, running

import softindex
from softindex import client as client_module

QUERIES = items(3, seed=1)


@pytest.fixture(scope="module")
def client(server):
    with softindex.Client(server.url) as found:
        yield found


def same(got, wanted):
    """Equal records: every field of the same type, shape and bits."""
    assert type(got) is type(wanted)
    for field in dataclasses.fields(wanted):
        one, other = getattr(got, field.name), getattr(wanted, field.name)
        if field.name == "request_id":
            # Only the log of a server has names for calls.
            assert (type(one), other) == (str, None)
        elif dataclasses.is_dataclass(other):
            same(one, other)
        elif other is None or isinstance(other, str):
            assert one == other, field.name
        else:
            assert np.asarray(one).dtype.kind == np.asarray(other).dtype.kind, field.name
            assert np.shape(one) == np.shape(other), field.name
            np.testing.assert_array_equal(one, other, err_msg=field.name)


CALLS = [
    ("sample", (4,), {"temperature": 0.2, "seed": 5}),
    ("sample", (4,), {"temperature": 0.2, "seed": 2**64 - 1, "method": "certified"}),
    ("sample", (4,), {"temperature": 0.2, "seed": 5, "method": "exact", "replace": False}),
    ("sample", (4,), {"temperature": 0.2, "seed": 5, "probes": 0}),
    ("sample", (), {"temperature": 1, "seed": np.int64(5), "method": "hierarchical"}),
    ("sample", (4,), {"temperature": np.float32(0.5), "seed": 5, "exclude": np.array(["item 1", "item 2"])}),
    ("sample", (4,), {"temperature": 0.5, "seed": 5, "allow": ["item 1", "item 2", "item 3"]}),
    ("log_prob", (["item 1", "item 2"],), {"temperature": 0.2}),
    ("log_prob", (np.array(["item 1", "item 2"]),), {"temperature": 0.2, "method": "exact"}),
    ("log_prob", (["item 1", "nobody"],), {"temperature": 0.2, "missing": "-inf"}),
    ("log_prob", (["item 1", "item 2", "item 1"],), {"temperature": 0.2, "replace": False}),
    ("log_partition", (), {"temperature": 0.2}),
    ("log_partition", (), {"temperature": 0.2, "method": "certified"}),
    ("log_partition", (), {"temperature": 0.2, "confidence": 0.9, "seed": 3}),
    ("top_k", (7,), {}),
    ("top_k", (7,), {"exclude": {"item 3"}, "temperature": 0.3}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), CALLS)
@pytest.mark.parametrize("queries", [QUERIES, QUERIES[0], QUERIES.astype(np.float64)], ids=["batch", "one", "float64"])
def test_a_call_gives_the_record_of_the_library(client, index, name, arguments, options, queries):
    got = getattr(client, name)(queries, *arguments, **options)
    wanted = getattr(index, name)(queries, *arguments, **options)
    if name == "log_prob":
        np.testing.assert_array_equal(got, wanted)
    else:
        same(got, wanted)


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("sample", (QUERIES,), {"temperature": -1.0}),
        ("sample", (QUERIES[:, :3],), {"temperature": 1.0}),
        ("sample", (np.full((1, D), np.nan),), {"temperature": 1.0}),
        ("sample", (QUERIES,), {"temperature": 1.0, "method": "best"}),
        ("sample", (QUERIES,), {"temperature": 1.0, "exclude": ["nobody"]}),
        ("top_k", (QUERIES, 5000), {}),
        ("log_prob", (QUERIES, ["nobody"]), {"temperature": 1.0}),
    ],
)
def test_a_mistake_raises_the_error_of_the_library(client, index, name, arguments, options):
    with pytest.raises(softindex.SoftindexError) as wanted:
        getattr(index, name)(*arguments, **options)
    with pytest.raises(type(wanted.value)) as got:
        getattr(client, name)(*arguments, **options)
    assert str(got.value) == str(wanted.value)


def test_every_method_of_the_client_is_one_of_the_library():
    own = {name for name, _ in inspect.getmembers(softindex.Client, inspect.isfunction) if not name.startswith("_")}
    # Only a server has a log that draws can stay out of.
    assert own - {"unlogged"} <= set(dir(softindex.Index)) | set(dir(softindex.LiveIndex))


def test_what_the_server_decides_is_not_silently_ignored(client):
    with pytest.raises(softindex.InputError, match="threads is decided by the server"):
        client.sample(QUERIES, temperature=1.0, threads=2)


def test_vectors_and_sizes(client, index):
    np.testing.assert_array_equal(client.vectors(["item 3", "item 4"]), index.vectors(["item 3", "item 4"]))
    np.testing.assert_array_equal(client.vectors("item 3"), index.vectors("item 3"))
    assert (len(client), client.dim, client.number) == (len(index), index.dim, None)


def test_a_catalogue_changes_through_the_client(tmp_path):
    with softindex.open(tmp_path / "live", create=items(100), ids=list(range(100))):
        pass
    with running(tmp_path / "live") as server, softindex.Client(server.url) as client:
        new = items(2, seed=4)
        assert client.upsert([1, 500], new) == 1
        assert client.upsert(501, new[0]) == 2
        np.testing.assert_array_equal(client.vectors([1, 500, 501]), new[[0, 1, 0]])
        assert client.sample(new[0], temperature=0.1, seed=1).snapshot == 2
        assert client.remove(500) == 3
        assert (len(client), client.number) == (101, 3)
        with pytest.raises(softindex.UnknownIdError):
            client.remove([500])
        assert client.remove([500], unknown="ignore") == 3
        with pytest.raises(softindex.InputError, match="without bias"):
            client.upsert([1], new[:1], bias=[0.5])


class Flaky(BaseHTTPRequestHandler):
    """Fails as often as it is told to, in the way it is told to."""

    protocol_version = "HTTP/1.1"

    def handle_any(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.seen.append(self.command)
        if self.server.failures:
            failure = self.server.failures.pop(0)
            if failure == "cut":
                self.connection.close()
                self.close_connection = True
                return
            status, body = failure, {"type": "urn:softindex:problem:busy", "detail": "busy."}
        else:
            status, body = 200, {"snapshot": 1, "items": 1, "dim": 2, "vectors": [[1.0, 2.0]]}
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_DELETE = do_POST = handle_any  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def flaky(monkeypatch):
    monkeypatch.setattr(client_module, "_pause", lambda *_: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    server.failures, server.seen = [], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("failure", ["cut", 429, 503])
def test_reading_is_tried_again(flaky, failure):
    with softindex.Client(f"http://127.0.0.1:{flaky.server_port}") as client:
        flaky.failures = [failure] * 3
        assert client.number == 1
        assert len(flaky.seen) == 4
        flaky.failures = [failure] * 4
        with pytest.raises(softindex.ServiceError):
            len(client)


@pytest.mark.parametrize(("failure", "tries"), [("cut", 1), (503, 1), (429, 2)])
def test_a_change_is_sent_again_only_if_it_was_certainly_not_made(flaky, failure, tries):
    with softindex.Client(f"http://127.0.0.1:{flaky.server_port}") as client:
        flaky.failures = [failure]
        if tries == 1:
            with pytest.raises(softindex.ServiceError):
                client.upsert([1], [[1.0, 2.0]])
        else:
            assert client.upsert([1], [[1.0, 2.0]]) == 1
        assert len(flaky.seen) == tries


def test_a_server_that_is_not_there_is_one_sentence():
    with (
        softindex.Client("http://127.0.0.1:9", retries=0) as client,
        pytest.raises(softindex.ServiceError, match="runs"),
    ):
        len(client)
    with pytest.raises(softindex.InputError, match="url"):
        softindex.Client("http://[broken")


def test_a_wrong_key_is_a_service_error(tmp_path):
    (tmp_path / "keys").write_text("read " + "k" * 20)
    softindex.build(items(20), threads=1).save(tmp_path / "index")
    with running(tmp_path / "index", keys_file=str(tmp_path / "keys")) as server:
        with softindex.Client(server.url, "wrong" * 5) as client, pytest.raises(softindex.ServiceError) as raised:
            len(client)
        assert raised.value.status == 401
        with softindex.Client(server.url, "k" * 20) as client:
            assert len(client) == 20


def test_each_query_has_its_own_temperature(client, index):
    each = np.array([0.1, 0.3, 0.9])
    draws = client.sample(QUERIES, 4, temperature=each, seed=5, replace=False)
    same(draws, index.sample(QUERIES, 4, temperature=each, seed=5, replace=False))
    steps = client.log_prob(QUERIES, draws.ids, temperature=each.tolist(), replace=False)
    np.testing.assert_array_equal(steps, draws.log_prob)
    with pytest.raises(softindex.InputError, match="one per query"):
        client.sample(QUERIES, temperature=each[:2])
