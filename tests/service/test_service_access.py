"""Safe by default: who may call, what a web page may do, and what an error gives away."""

import numpy as np
import pytest
from servers import D, items, running, wait_until

import softindex
from softindex.service import make_settings
from softindex.service.settings import KEYS_VARIABLE

READ, WRITE = "r" * 20, "w" * 20
BODY = {"queries": items(1).tolist(), "temperature": 0.5}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys").write_text(f"# who may call\nread {READ}\nwrite {WRITE}\n")
    with softindex.open(folder / "live", create=items(50), ids=list(range(50))):
        pass
    with running(folder / "live", keys_file=str(folder / "keys")) as server:
        yield server


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_without_a_key_nothing_is_told(guarded):
    for path in ("/v1/info", "/metrics", "/v1/items?id=1", "/v1/ids"):
        found = guarded.client.get(path)
        assert found.status_code == 401
        assert found.headers["www-authenticate"] == "Bearer"
    for headers in (
        {},
        bearer("wrong" * 5),
        {"authorization": "Bearer"},
        {"authorization": f"Basic {READ}"},
        bearer(READ + "x"),
    ):
        assert guarded.post("sample", BODY, headers=headers).status_code == 401


def test_probes_and_the_description_need_no_key(guarded):
    for path in ("/livez", "/readyz", "/openapi.json"):
        assert guarded.client.get(path).status_code == 200


def test_a_key_that_reads_cannot_write(guarded):
    assert guarded.post("sample", BODY, headers=bearer(READ)).status_code == 200
    change = {"ids": [1], "vectors": items(1).tolist()}
    assert guarded.client.put("/v1/items", json=change, headers=bearer(READ)).status_code == 403
    assert guarded.client.request("DELETE", "/v1/items", json={"ids": [1]}, headers=bearer(READ)).status_code == 403
    assert guarded.client.put("/v1/items", json=change, headers=bearer(WRITE)).status_code == 200
    assert guarded.post("sample", BODY, headers=bearer(WRITE)).status_code == 200


def test_an_address_that_others_reach_needs_a_key(monkeypatch):
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(softindex.InputError, match="TLS"):
            make_settings(path="x", host=host)
    monkeypatch.setenv(KEYS_VARIABLE, f"read:{READ},write:{WRITE}")
    settings = make_settings(path="x", host="0.0.0.0")
    assert [key.role for key in settings.keys] == ["read", "write"]
    assert READ not in repr(settings)


@pytest.mark.parametrize("text", ["admin " + READ, "read short", "read", ""])
def test_bad_keys_are_refused_with_a_sentence_that_does_not_repeat_them(tmp_path, text):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(softindex.InputError) as raised:
        make_settings(path="x", keys_file=str(tmp_path / "keys"))
    assert READ not in str(raised.value)


def test_a_page_elsewhere_cannot_call_a_local_server(server):
    # A name of its own that points to this machine.
    found = server.client.get("/v1/info", headers={"host": "evil.example:8080"})
    assert found.status_code == 421
    # A form of another page, which browsers send without asking.
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        found = server.client.post("/v1/sample", content=b"{}", headers={"content-type": media})
        assert found.status_code == 415
    # And the answer to the question that they ask before anything else.
    asked = {"origin": "https://evil.example", "access-control-request-method": "PUT"}
    found = server.client.options("/v1/items", headers=asked)
    assert "access-control-allow-origin" not in found.headers


def test_cors_is_for_the_origins_that_were_named(saved):
    with running(saved, cors=("https://shop.example",)) as server:
        for origin, allowed in (("https://shop.example", True), ("https://evil.example", False)):
            headers = {"origin": origin, "access-control-request-method": "POST"}
            found = server.client.options("/v1/sample", headers=headers)
            assert (found.headers.get("access-control-allow-origin") == origin) is allowed
        wait_until(lambda: server.state.gate.waiting == 0)


def test_a_failure_of_the_server_gives_nothing_away(server, monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("the secret of /etc/passwd")

    monkeypatch.setattr(server.state.served, "function", lambda name, index: fail)
    found = server.post("sample", BODY)
    assert found.status_code == 500
    assert "secret" not in found.text
    assert found.json()["request_id"] == found.headers["x-request-id"]
    assert "the secret of /etc/passwd" in capsys.readouterr().err


def test_request_ids_are_kept_where_they_are_harmless(server):
    for given, kept in (("order-17.b_2", True), ("x" * 65, False), ("a b", False)):
        found = server.client.get("/livez", headers={"x-request-id": given})
        assert (found.headers["x-request-id"] == given) is kept


def test_vectors_of_another_size_are_refused(guarded):
    wrong = {"ids": [1], "vectors": np.ones((1, D + 1)).tolist()}
    found = guarded.client.put("/v1/items", json=wrong, headers=bearer(WRITE))
    assert found.status_code == 422
    assert "dimensions" in found.json()["detail"]
