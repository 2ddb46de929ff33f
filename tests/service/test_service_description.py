"""The OpenAPI description is valid, and no request, however strange, is answered outside it."""

import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from servers import D, items, running

import softindex
from softindex.service.openapi import describe

ROOT = "urn:description"


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("described")
    with softindex.open(folder / "live", create=items(60), ids=[f"item {row}" for row in range(60)]):
        pass
    with running(folder / "live", body_bytes=30_000, batch=5, n=40) as server:
        yield server


def test_the_description_is_valid_openapi(server):
    described = server.client.get("/openapi.json").json()
    validate(described)
    assert described == json.loads(json.dumps(describe()))


def test_every_route_is_described(server):
    page = {"/", "/page/page.css", "/page/page.js"}
    assert set(describe()["paths"]) | {"/openapi.json"} | page == server.state.known_paths


def validator(schema):
    registry = Registry().with_resource(ROOT, Resource.from_contents(describe(), default_specification=DRAFT202012))
    return Draft202012Validator({"$ref": f"{ROOT}#{schema}"}, registry=registry)


def check(response, path, method):
    """The status is one that is described, and the body has the form that is described for it."""
    assert response.status_code != 500, response.text
    described = describe()["paths"][path][method]["responses"]
    status = str(response.status_code)
    assert status in described, (path, method, status, response.text)
    media = response.headers["content-type"].partition(";")[0]
    assert media in described[status]["content"]
    if media.endswith("json"):
        at = f"/paths/{path.replace('/', '~1')}/{method}/responses/{status}/content/{media.replace('/', '~1')}/schema"
        validator(at).validate(response.json())
    if status != "200":
        assert response.json()["status"] == response.status_code
        assert "Traceback" not in response.text


numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**70), 2**70))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
name = st.one_of(st.integers(0, 70).map("item {}".format), st.text(max_size=5), st.integers(-3, 2**65))
names = st.one_of(st.lists(name, max_size=6), st.lists(st.one_of(st.none(), st.lists(name, max_size=3)), max_size=4))
number = st.one_of(st.floats(-10, 10, width=32), st.floats(allow_nan=False, allow_infinity=False))
row = st.lists(number, min_size=D, max_size=D)
matrix = st.one_of(
    row,
    st.lists(row, min_size=1, max_size=6),
    st.just("AAAA" * D),
    st.text(max_size=9),
    st.fixed_dictionaries({"float32": st.just("AAAA" * D), "shape": st.lists(st.integers(-2, 20), max_size=3)}),
)
VALUES = {
    "queries": matrix,
    "vectors": matrix,
    "item": name,
    "items": st.lists(name, max_size=6),
    "ids": names,
    "exclude": names,
    "unknown": st.sampled_from(["error", "ignore", "maybe"]),
    "missing": st.sampled_from(["error", "-inf", "maybe"]),
    "temperature": st.one_of(st.floats(0.05, 2.0), numbers),
    "method": st.sampled_from(["exact", "certified", "2ls", "s-2ls", "sd-2ls", "hierarchical", "top-k", "best"]),
    "probes": st.integers(-2, 9),
    "n": st.integers(-1, 45),
    "k": st.integers(-1, 70),
    "replace": st.booleans(),
    "top_p": st.floats(-0.5, 1.5),
    "seed": st.one_of(st.integers(-1, 2**66), st.integers(0, 2**66).map(str), st.text(max_size=4)),
}
BODIES = {
    ("/v1/sample", "post"): ({"queries", "temperature"}, "n method probes replace exclude unknown top_p k seed"),
    ("/v1/log-prob", "post"): ({"queries", "temperature", "ids"}, "method probes exclude unknown top_p k missing"),
    ("/v1/log-partition", "post"): ({"item", "temperature"}, "method probes exclude unknown seed width confidence"),
    ("/v1/measure", "post"): ({"queries", "temperature"}, "method probes tolerance exclude"),
    ("/v1/top-k", "post"): ({"items", "k"}, "temperature probes recall exclude unknown"),
    ("/v1/items", "put"): ({"ids", "vectors"}, "bias log_bias"),
    ("/v1/items", "delete"): ({"ids"}, "unknown"),
}


@st.composite
def requests(draw):
    """A request that is nearly right: each field of its body may be left out, or be anything."""
    path, method = draw(st.sampled_from(sorted(BODIES)))
    needed, possible = BODIES[path, method]
    chosen = needed | set(draw(st.lists(st.sampled_from(possible.split()), max_size=4)))
    odd = draw(st.integers(0, 9))
    body = {
        field: draw(VALUES.get(field, numbers) if odd or draw(st.booleans()) else anything) for field in sorted(chosen)
    }
    if odd == 1:
        body[draw(st.sampled_from(["extra", "threads", *sorted(chosen)]))] = draw(anything)
    return path, method, draw(anything) if odd == 2 else body


@settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(request=requests())
def test_every_answer_is_described(live, request):
    path, method, body = request
    content = json.dumps(body).encode()
    check(
        live.client.request(method.upper(), path, content=content, headers={"content-type": "application/json"}),
        path,
        method,
    )


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["/v1/sample", "/v1/top-k"]),
    content=st.binary(max_size=200),
    media=st.sampled_from(["application/json", "application/octet-stream", "text/plain", "", "a/b/c"]),
    options=st.dictionaries(st.sampled_from(sorted([*VALUES, "extra"])), st.text(max_size=6), max_size=4),
)
def test_every_answer_to_bytes_is_described(live, path, content, media, options):
    sent = live.client.post(path, content=content, params=options, headers={"content-type": media})
    check(sent, path, "post")


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(["/v1/items", "/v1/ids"]), words=st.lists(st.text(max_size=12), max_size=7))
def test_every_answer_to_a_search_is_described(live, path, words):
    check(live.client.get(path, params={"id": words, "text": words[:1]}), path, "get")


CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "unsupported_method,use_after_free,ensure_resource_availability"
)


def test_schemathesis_finds_no_answer_outside_the_description(live, tmp_path):
    """What it makes of the description, right and wrong.  Whether values fit the index is for the library to say."""
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: it is part of the extra dev")
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"]
    options = ["--checks", CHECKS, "--max-examples", "15", "--generation-deterministic", "--no-color"]
    done = subprocess.run(
        [*command, f"{live.url}/openapi.json", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_answer_to_a_wrong_method_names_the_right_ones(live):
    found = live.client.post("/v1/items", json={})
    assert found.status_code == 405
    assert {word.strip() for word in found.headers["allow"].split(",")} == {"GET", "HEAD", "PUT", "DELETE"}


@pytest.mark.parametrize("path", ["/v1/info", "/livez", "/readyz", "/metrics"])
def test_the_other_answers_are_described(live, path):
    check(live.client.get(path), path, "get")
